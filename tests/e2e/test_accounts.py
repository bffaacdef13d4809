"""Where the scheduler runs as root, a tenant's job is a process of the tenant's account, with its
rights alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from brim.client import Client
from brim.domain.job import WorkerRange
from brim.storage.contact import read_contact
from brim_lab.driver import Driver
from e2e.people import BASH, Person
from e2e.reachable import can_be_reachable, reachable
from e2e.running import DEADLINE, DIGITS, LONG_JOB, leftovers, until

NOBODY = 65534
CLUSTER = """
nodes: [{name: n1, workers: 2}]
tenants:
  - {name: ads, guaranteed: 1, user: nobody}
  - {name: ops, guaranteed: 1}
"""
TRIES = """
import os
def tried(path, how):
    try:
        with open(path, how) as file:
            return file.read() if how == "r" else "written"
    except OSError as error:
        return type(error).__name__
STATE = os.path.dirname(os.path.dirname(os.environ["BRIM_RUN_DIR"]))
print("is", os.getuid(), os.getgid(), sorted(os.getgroups()), os.environ["HOME"])
for name in ("token", "scheduler.json", "scheduler.db", "scheduler.log", "audit.jsonl", "authority.pem"):
    print("tried", name, tried(os.path.join(STATE, name), "r"))
print("has secret", "AWS_SECRET_ACCESS_KEY" in os.environ)
print("tried list", "listed" if os.access(STATE, os.R_OK) else "PermissionError")
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of others"),
    pytest.mark.skipif(not can_be_reachable(), reason="no namespaces of mounts here"),
]


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        (folder / "cluster.yaml").write_text(CLUSTER)

    def brim(self, *words: str) -> str:
        driver = Driver(self.folder, BRIM_HOME=str(self.state)).with_prefix(reachable())
        done = driver.call(*words, timeout=DEADLINE, codes=())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, file: Path, tenant: str) -> str:
        slow = ("--set", "pause=0.1", "--set", f"hurry={self.folder / 'hurry'}")
        words = [*LONG_JOB[1:], *slow, "--workers", "1:2"]
        return self.brim("submit", str(file), *words, "--tenant", tenant).strip()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-administrators")
    folder = Path(tempfile.mkdtemp(prefix="brim-accounts-"))
    folder.chmod(0o755)
    home = Home(folder)
    home.brim("up", "--cluster", "cluster.yaml")
    yield home
    home.brim("down", "--kill")
    until(lambda: not leftovers(home.state), "the end")
    shutil.rmtree(folder)


def accounts_of(run_dir: Path) -> set[int]:
    found = set()
    for process in psutil.process_iter(["uids", "environ", "cmdline"]):
        environment: dict[str, Any] = process.info["environ"] or {}
        command: list[str] = (
            process.info["cmdline"] or []
        )  # of one that has just ended there is none
        if str(run_dir) in command or environment.get("BRIM_RUN_DIR") == str(run_dir):
            found.add(process.info["uids"].effective)
    return found


def test_job_runs_under_the_account_of_its_tenant(home: Home) -> None:
    file = home.folder / "tries.py"
    file.write_text(Path(DIGITS).read_text() + TRIES)
    job = home.job(file, "ads")
    client = Client(home.state)
    run_dir = home.state / "jobs" / job
    until(lambda: client.job(job).step >= 3, f"steps of {job}")
    assert accounts_of(run_dir) == {NOBODY}
    contact = read_contact(run_dir)
    assert contact is not None
    assert Path(f"/proc/{contact.pid}").stat().st_uid == NOBODY
    client.resize(job, WorkerRange(minimum=2, maximum=2))
    until(lambda: client.job(job).workers == 2, "2 workers")
    client.suspend(job)
    until(lambda: client.job(job).state == "suspended", "its checkpoint")
    (home.folder / "hurry").touch()
    client.resume(job)
    assert client.wait(job, timeout=DEADLINE).summary["exit"] == "done"
    output = "".join(f"{line}\n" for _, line in client.logs(job))
    assert f"is {NOBODY} {NOBODY} [{NOBODY}] /nonexistent" in output
    assert "has secret False" in output
    for name in (
        "token",
        "scheduler.json",
        "scheduler.db",
        "scheduler.log",
        "audit.jsonl",
        "authority.pem",
        "list",
    ):
        assert f"tried {name} PermissionError" in output, output
    assert {path.stat().st_uid for path in run_dir.rglob("*")} == {NOBODY}
    assert run_dir.stat().st_mode & 0o777 == 0o700


def test_program_at_a_terminal_is_the_accounts(home: Home) -> None:
    driver = Driver(home.folder, BRIM_HOME=str(home.state)).with_prefix(reachable())
    person = Person(driver, "--tenant", "ads", *BASH)
    person.at_bash()
    assert person.runs("id -u; tty", r"(\d+)\s+/dev/pts/\d+")[1] == str(NOBODY)
    person.type("exit 4\r")
    assert person.ends() == 4
    person.close()


def test_links_of_a_tenant_lead_the_scheduler_nowhere(home: Home) -> None:
    (home.folder / "hurry").touch()
    job = home.job(Path(DIGITS), "ads")
    client = Client(home.state)
    assert client.wait(job, timeout=DEADLINE).summary["exit"] == "done"
    log = home.state / "jobs" / job / "logs" / "w9.log"
    log.symlink_to(home.state / "token")
    token = (home.state / "token").read_text()
    (home.state / "token").write_text(f"{token}\n")  # a whole line, for readers of lines
    tenant = Client(address=_address(home), token=client.give_token("ads"))
    with log.with_name("w1.log").open("a") as log_file:
        log_file.write("its own words\n")
    assert list(tenant.logs(job)) == [("w1", "its own words")], "a link is passed over"
    assert list(tenant.logs(job, worker="w9")) == []


def _address(home: Home) -> str:
    contact = msgspec.json.decode((home.state / "scheduler.json").read_bytes())
    return f"{contact['host']}:{contact['port']}"
