"""`brim submit --tty`: a person at a real terminal, a real cluster, and bash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.client import Client
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.storage.contact import read_scheduler_contact
from brim.wire.cluster import JobView
from brim_lab.driver import Driver
from e2e.people import BASH, Person
from e2e.running import DEADLINE, has_ended, leftovers, until

LONG = f"1000.{os.getpid()}"  # seconds that nobody else sleeps
pytestmark = pytest.mark.e2e

CLUSTER = """
nodes: [{name: n1, workers: 1}]
grace: 10s
tenants:
  - {name: ads, guaranteed: 1}
  - {name: web}
"""


class Home:
    """A cluster with one device, and people at terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        (folder / "cluster.yaml").write_text(CLUSTER)
        self.driver = Driver(folder, BRIM_HOME=str(self.state), TERM="vt100", PS1="$ ")

    def brim(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        done = self.driver.call(*words, timeout=DEADLINE, codes=())
        assert done.returncode in codes, done.stderr
        return done.stdout + done.stderr

    def job(self, job: str) -> JobView:
        return Client(self.state).job(job)

    def held(self) -> int:
        return Client(self.state).cluster().held


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("terminals"))
    home.brim("up", "--cluster", "cluster.yaml")
    yield home
    if read_scheduler_contact(home.state) is not None:
        home.brim("down", "--kill")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


@pytest.fixture
def shell(home: Home) -> Iterator[Person]:
    """A person at bash."""
    until(lambda: home.held() == 0, "a free device")
    person = Person(home.driver, "--tenant", "ads", *BASH, rows=31, columns=97)
    person.at_bash()
    yield person
    person.close()


def test_bash_is_used_as_at_any_terminal(home: Home, shell: Person) -> None:
    size = shell.runs("stty size; tty; echo $TERM", r"(\d+ \d+)\s+/dev/pts/\d+\s+(\w+)")
    assert size.groups() == ("31 97", "vt100")
    shell.resize(40, 120)
    shell.runs("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo wi''de", "wide")
    shell.type(f"sleep {LONG}\r")
    shell.sees(f"sleep {LONG}")
    until(lambda: bool(sleeping()), "sleep")
    shell.type("\x03")
    shell.runs("echo status $?", "status 130")
    assert not sleeping()
    # More than what is on its way at once, and each byte of it.
    shell.runs(
        "seq 1 40000 | tee /tmp/$$ | tail -1 > /dev/null; cat /tmp/$$; rm /tmp/$$",
        r"(?s)\n39999\r\n40000\r\n",
    )
    assert home.job(shell.job).workers == 1
    shell.type("exit 7\r")
    assert shell.ends() == 7
    assert "failed: bash ended with exit status 7" in shell.seen
    until(lambda: home.held() == 0, "the device")
    assert home.job(shell.job).launches == 1  # there are no retries


def sleeping() -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", LONG] and process.status() != "zombie":
            found.append(process.pid)
    return found


@pytest.mark.long
def test_person_may_think_for_a_while(shell: Person) -> None:
    shell.runs("echo fi''rst", "first")
    time.sleep(7.0)  # longer than a scheduler keeps a connection without a request
    shell.runs("echo sec''ond", "second")
    shell.type("exit\r")
    assert shell.ends() == 0


def test_person_who_leaves_ends_the_job(home: Home, shell: Person) -> None:
    shell.type(f"trap '' HUP; sleep {LONG}\r")
    until(lambda: bool(sleeping()), "sleep")
    (pid,) = sleeping()
    shell.process.kill()
    until(lambda: has_ended(pid), "what ignores that its terminal is gone")
    until(lambda: home.job(shell.job).state == "cancelled", "the end of the job")
    until(lambda: home.held() == 0, "the device")


def test_others_have_no_way_to_a_terminal(home: Home, shell: Person) -> None:
    job, contact = shell.job, read_scheduler_contact(home.state)
    assert contact is not None
    address = f"{contact.host}:{contact.port}"
    token = home.brim("token", "web").strip().splitlines()[-1]
    with pytest.raises(SpecError, match="job"):
        Client(address=address, token=token).attach(job, rows=24, columns=80)
    with pytest.raises(EnvironmentFault, match="token"):
        Client(address=address, token="0" * 32).attach(job, rows=24, columns=80)
    with pytest.raises(EnvironmentFault, match="somebody is at the terminal"):
        Client(home.state).attach(job, rows=24, columns=80)
    with pytest.raises(SpecError, match="--tty"):
        home_resize(home, job)
    shell.runs("echo un''harmed", "unharmed")
    shell.type("exit\r")
    assert shell.ends() == 0
    assert home.job(job).state == "done"


def home_resize(home: Home, job: str) -> None:
    from brim.domain.job import WorkerRange

    Client(home.state).resize(job, WorkerRange(minimum=1, maximum=2))


def test_job_that_is_preempted_says_so_and_ends(home: Home) -> None:
    until(lambda: home.held() == 0, "a free device")
    shell = Person(home.driver, "--tenant", "web", *BASH)  # on what tenant ads lends
    shell.at_bash()
    owner = home.brim("submit", "--tenant", "ads", "--grace", "2s", "--", "true").split()[0]
    assert shell.ends() == 1
    assert "workers 1 -> 0 (reclaimed-by-owner: tenant web held 1" in shell.seen
    assert "an interactive job does not go on: it is cancelled" in shell.seen
    assert f"\n{shell.job}: workers 1 -> 0" in shell.seen, "a line of its own"
    until(lambda: home.job(shell.job).state == "cancelled", "the end of the job")
    until(lambda: home.job(owner).state == "done", "the owner's job")
    shell.close()


def test_program_that_the_node_lacks_is_named(home: Home) -> None:
    until(lambda: home.held() == 0, "a free device")
    program = home.folder / "bin" / "only-here"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    person = Person(home.driver, "--tenant", "ads", "--grace", "2s", "--", program.name, PATH=path)
    assert person.ends() == 1
    assert "'only-here', which cannot be started (No such file or directory)" in person.seen
    assert "failed" in person.seen
    person.close()


def test_suspended_job_ends(home: Home, shell: Person) -> None:
    with contextlib.suppress(BrimError):
        Client(home.state).suspend(shell.job)
    assert shell.ends() == 1
    assert "hold (by the administrator" in shell.seen
    until(lambda: home.job(shell.job).state == "cancelled", "the end of the job")


def test_waiting_person_is_told_why_and_may_leave(home: Home, shell: Person) -> None:
    second = Person(home.driver, "--tenant", "ads", *BASH)
    job = second.sees(r"(shell-\d+): submitted")[1]
    second.sees("it waits for a device")
    second.type("\x03")
    assert second.ends() != 0
    second.close()
    until(lambda: home.job(job).state == "cancelled", "the end of the second job")
    shell.type("exit\r")
    assert shell.ends() == 0


def test_end_of_the_scheduler_hangs_up(home: Home, shell: Person) -> None:
    contact = read_scheduler_contact(home.state)
    assert contact is not None
    os.kill(contact.pid, signal.SIGKILL)
    assert shell.ends() == 1
    assert "the connection to the scheduler broke" in shell.seen
    assert "its program is hung up" in shell.seen
    home.brim("up")
    until(lambda: home.job(shell.job).ended is not None, "the end of the job")
    view = home.job(shell.job)
    assert (view.state, view.launches) == ("failed", 1)
    assert "its person has left" in view.problem


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--", "bash"), "standard input or output that is no terminal"),
        (("--workers", "2", "--", "bash"), "--workers 2"),
        (("--no-restart", "--", "bash"), "--no-restart"),
        (("--retries", "2", "--", "bash"), "--retries"),
        (("--array", "1-3", "--", "bash"), "--array"),
        (("--wait", "--", "bash"), "--wait"),
        (("flights.py",), "a command behind --"),
    ],
)
def test_wrong_uses_are_refused_before_anything_starts(
    home: Home, words: tuple[str, ...], problem: str
) -> None:
    if problem.startswith("standard"):
        output = home.brim("submit", "--tty", *words, codes=(2,))
    else:
        person = Person(home.driver, *words)
        assert person.ends() == 2
        output = person.seen
        person.close()
    assert problem in output
    jobs = json.loads(home.driver.call("jobs", "--all", "--json").stdout)
    assert not any("bash" in str(job) for job in jobs)
