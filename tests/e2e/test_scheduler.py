"""The scheduler with real jobs: despite deaths, each job is run once to its end, with the weights
of a calm run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.client import Client
from brim.storage.contact import read_contact, read_scheduler_contact
from brim.wire.cluster import JobView
from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    FILES,
    LONG_JOB,
    PACED,
    has_ended,
    leftovers,
    lines,
    train,
    undisturbed,
    until,
)
from groups import groups_can_be_made

pytestmark = pytest.mark.e2e

CLUSTER = """
nodes: [{name: n1, workers: 4}]
grace: 20s
tenants:
  - {name: ads, guaranteed: 2}
  - {name: web, guaranteed: 2}
"""


class Home:
    """A state directory, and the command line on it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.file = folder / "cluster.yaml"
        self.file.write_text(CLUSTER)
        self.driver = Driver(folder)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        # As it is now: a test may move it.
        return self.driver.start(*words, variables={"BRIM_HOME": str(self.state)})

    def brim(self, *words: str, code: int = 0) -> str:
        process = self.begin(*words)
        output, self.err = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, self.err
        return output

    def submit(self, *words: str, tenant: str = "ads", file: str = DIGITS) -> str:
        return self.brim("submit", *self.words(tenant, file), *words).strip()

    def words(self, tenant: str, file: str = DIGITS) -> tuple[str, ...]:
        """Of a submission."""
        return file, *LONG_JOB[1:], "--tenant", tenant

    def job(self, job: str) -> JobView:
        client = Client(self.state)
        return client.job(job)

    def wait_for_step(self, job: str, step: int) -> None:
        until(lambda: self.job(job).step >= step, f"step {step} of {job}")

    def finished(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.brim("status", job, "--wait", "--json"))
        return found

    def story(self, job: str) -> list[dict[str, Any]]:
        story: list[dict[str, Any]] = json.loads(self.brim("explain", job, "--json"))["story"]
        return story

    def events(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [
            event for event in lines(self.run_dir(job) / "events.jsonl") if event["kind"] == kind
        ]

    def run_dir(self, job: str) -> Path:
        return self.state / "jobs" / job

    def kill_scheduler(self) -> None:
        contact = read_scheduler_contact(self.state)
        assert contact is not None
        os.kill(contact.pid, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(contact.pid), "the scheduler's end")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    yield home
    home.brim("simulate", "replay")  # its journal, decided again, gives the same plans
    if read_scheduler_contact(home.state) is not None:
        home.brim("down", "--kill")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


@pytest.fixture(scope="module")
def calm() -> str:
    return str(undisturbed(*LONG_JOB)["weights_sha256"])


TELLS_ITS_ENVIRONMENT = """
import os
print("has", *sorted(f"{name}={value}" for name, value in os.environ.items()))
"""


def test_job_has_only_its_declared_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_HOME"):
        monkeypatch.setenv(name, f"the-administrators-{name}")
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file), "--env", "HF_HOME")
    monkeypatch.setenv("WANDB_API_KEY", "the-tenants")
    file = tmp_path / "telling.py"
    file.write_text(Path(DIGITS).read_text() + TELLS_ITS_ENVIRONMENT)
    plain = ["submit", str(file), "--tenant", "ads", "--epochs", "1"]
    jobs = [
        home.brim(*plain).strip(),
        home.brim(*plain, "--env", "WANDB_API_KEY", "--env", "A=b").strip(),
    ]
    environments = []
    for job in jobs:
        assert home.finished(job)["exit"] == "done"
        environments.append(home.brim("logs", job))
    home.brim("down")
    for text in environments:
        assert "HF_HOME=the-administrators-HF_HOME" in text
        assert "PATH=" in text
        assert "AWS_SECRET" not in text
    assert "WANDB_API_KEY" not in environments[0]
    assert "A=b" in environments[1]
    assert "WANDB_API_KEY=the-tenants" in environments[1]
    assert home.state.stat().st_mode & 0o777 == 0o700


DIES_BEFORE_ITS_ANSWER = """
import os, signal
from brim.scheduler import loop
from brim.backends.up import main
submit = loop.Scheduler.submit
def die(*words, **more):
    submit(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)
loop.Scheduler.submit = die
main()
"""


def test_jobs_and_clients_outlive_a_killed_scheduler(home: Home, calm: str) -> None:
    home.kill_scheduler()
    deadly = subprocess.Popen([sys.executable, "-c", DIES_BEFORE_ITS_ANSWER, str(home.state)])
    until(lambda: is_up(home, deadly.pid), "a scheduler that dies before its first answer")
    # Neither ends before the scheduler does, on a busy machine either.
    options = ("--workers", "1:2", "--set", "pause=0.2")
    waiting = home.begin("submit", *LONG_JOB, *options, "--tenant", "ads", "--wait", "--json")
    deadly.wait(DEADLINE)
    home.brim("up")
    jobs = [
        next(iter(Client(home.state).jobs())).job,
        home.submit(*options, tenant="web"),
    ]
    following = home.begin("logs", jobs[1], "-f")
    for job in jobs:
        home.wait_for_step(job, 5)
    assert following.stderr is not None
    assert following.stderr.readline(), "it follows the job"
    home.kill_scheduler()
    steps_before = {job: len(lines(home.run_dir(job) / "steps.jsonl")) for job in jobs}
    until(
        lambda: all(
            len(lines(home.run_dir(job) / "steps.jsonl")) > count + 5
            for job, count in steps_before.items()
        ),
        "steps without a scheduler",
    )
    home.brim("up")
    for job in jobs:
        (home.run_dir(job) / "hurry").touch()
        end = home.finished(job)
        story = home.brim("explain", job)
        assert (end["state"], end["exit"], end["launches"]) == ("done", "done", 1), story
        assert end["weights_sha256"] == calm
        assert end["steps_redone"] == 0
    output, err = waiting.communicate(timeout=DEADLINE)
    assert (waiting.returncode, json.loads(output)["weights_sha256"]) == (0, calm)
    # Of an absence of ten seconds it says more than the first word.
    absences = [line for line in err.splitlines() if line.endswith("; waiting for brim up")]
    firsts = [line for line in absences if "no answer for" not in line]
    assert len(firsts) == err.count("the scheduler answers again") == 2, err
    assert "the scheduler answers again" in following.communicate(timeout=DEADLINE)[1]
    assert following.returncode == 0
    assert sorted(view.job for view in Client(home.state).jobs()) == sorted(jobs)


def is_up(home: Home, pid: int) -> bool:
    contact = read_scheduler_contact(home.state)
    return contact is not None and contact.pid == pid


@pytest.mark.long
def test_killing_an_agent_ends_its_processes_only(home: Home, calm: str) -> None:
    job = home.submit("--workers", "2", "--checkpoint-every", "20")
    node = 0
    for step, victim in ((45, "agent"), (150, "node")):
        home.wait_for_step(job, step)
        contact = read_contact(home.run_dir(job))
        assert contact is not None
        agent = psutil.Process(contact.keeper)
        node = node or agent.ppid()
        assert agent.ppid() == node
        family = agent.children(recursive=True)
        workers = {e["pid"] for e in home.events(job, "worker") if e.get("pid")}
        assert len(workers & {process.pid for process in family}) == 2
        os.kill(node if victim == "node" else agent.pid, signal.SIGKILL)
        until(lambda family=family: not any(map(alive, family)), "the end of its workers")  # type: ignore[misc]
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 3, calm)
    assert [line["event"] for line in home.story(job)].count("suspended") == 2


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.mark.long
def test_servers_count_as_devices_like_workers(home: Home, tmp_path: Path) -> None:
    clicks = str(FILES / "large_embedding.py")
    options = ("--epochs", "4", "--global-batch-size", "128")
    plain_weights = train(tmp_path / "alone", clicks, *options, "--workers", "1")["weights_sha256"]
    pace = ("--set", "pause=0.01")
    words = (*options, *pace, "--workers", "1:4", "--ps", "2", "--tenant", "ads")
    first, second = (home.brim("submit", clicks, *words).strip() for _ in range(2))
    until(lambda: home.job(second).step > 5 and home.job(first).step > 5, "steps of both")
    rounds = {job: home.events(job, "round")[-1] for job in (first, second)}
    assert sum(round["world_size"] for round in rounds.values()) <= 4
    for job in (first, second):
        assert rounds[job]["shares"].count(0) == 2
        (home.run_dir(job) / "hurry").touch()
        assert home.finished(job)["weights_sha256"] == plain_weights


@pytest.mark.long
def test_user_codes_leftovers_end_with_agent_or_job(
    home: Home,
) -> None:
    """Its device counts as free."""
    notes = home.state.parent / "notes"
    notes.mkdir()
    leaving = str(FILES / "leaves_children.py")
    job = home.submit("--workers", "2", "--set", f"notes={notes}", *PACED, file=leaving)

    def children() -> dict[int, int]:
        """The processes started, by their parents."""
        return {
            int(note.name): int(note.read_text()) for note in notes.iterdir() if note.read_text()
        }

    home.wait_for_step(job, 5)
    contact = read_contact(home.run_dir(job))
    assert contact is not None
    first = children()
    assert len(first) >= 2
    assert not any(map(has_ended, first.values()))
    os.kill(contact.keeper, signal.SIGKILL)
    until(lambda: all(map(has_ended, first.values())), "the end of what the first agent left")
    until(lambda: len(children()) >= len(first) + 2, "what the next workers start")
    second = children()
    if groups_can_be_made():
        os.kill(psutil.Process(read_contact(home.run_dir(job)).keeper).ppid(), signal.SIGKILL)  # type: ignore[union-attr]
        until(lambda: all(map(has_ended, second.values())), "the end of what the node's jobs left")
        until(lambda: len(children()) >= len(second) + 2, "what the last workers start")
    home.brim("cancel", job)
    home.brim("status", job, "--wait", code=1)
    until(lambda: all(map(has_ended, children().values())), "the end of what the job left")


@pytest.mark.long
def test_down_suspends_and_up_continues(home: Home, calm: str) -> None:
    job = home.submit("--workers", "2", *PACED)
    home.wait_for_step(job, 10)
    home.brim("down")
    assert not leftovers(home.state)
    events = lines(home.run_dir(job) / "events.jsonl")
    stopped = events[-1]["summary"]
    assert stopped["exit"] == "suspended"
    assert [e["step"] for e in events if e["kind"] == "checkpoint"][-1] == stopped["steps"]
    home.brim("up")
    home.wait_for_step(job, stopped["steps"] + 5)
    home.brim("suspend", job)
    until(lambda: stands(home.job(job), "suspended", "hold"), "its suspension")
    home.brim("down", "--kill")
    home.brim("up")
    assert stands(home.job(job), "suspended", "hold")
    (home.run_dir(job) / "hurry").touch()
    home.brim("resume", job)
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 3, calm)


def stands(view: JobView, state: str, wish: str) -> bool:
    return (view.state, view.wish) == (state, wish)


def test_commands_have_deadlines_and_give_way(home: Home) -> None:
    """A command that knows nothing of brim: it is measured, promised, resized and started again."""
    counting = (sys.executable, str(FILES / "counting.py"))
    pattern = ("--progress", "step (?P<step>[0-9]+)/(?P<total>[0-9]+)")
    common = ("--grace", "10s", *pattern)
    refused = home.begin(
        "submit", *common, "--tenant", "ads", "--grace", "28s", "--", *counting, "9"
    )
    assert "got 28s, need at most 16s" in refused.communicate(timeout=DEADLINE)[1]
    job = home.brim(
        "submit",
        *common,
        "--tenant",
        "ads",
        "--workers",
        "1:4",
        "--deadline",
        "30m",
        "--",
        *counting,
        "400",  # so that it is there still when devices are taken back
    ).strip()
    until(lambda: home.job(job).promised, "a promise")
    assert (home.job(job).steps, home.job(job).workers) == (400, 4)
    gate = home.state.parent / "gate"
    script = f"until [ -e {gate} ]; do sleep 0.1; done; echo ready"
    owner = home.brim(
        "submit",
        *common,
        "--tenant",
        "web",
        "--workers",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ).strip()
    saved = home.run_dir(job) / "saved"
    until(lambda: len(lines(saved / "starts-0")) >= 2, "the start of two")
    gate.touch()
    (saved / "hurry").touch()
    assert home.finished(owner)["exit"] == "done"
    ended = home.finished(job)
    assert (ended["exit"], ended["steps"]) == ("done", 400)
    starts = lines(saved / "starts-0")
    assert [start["size"] for start in starts[:2]] == [4, 2]
    assert "forced" not in [line["event"] for line in home.story(job)]
    assert "ready" in home.brim("logs", owner)


# With a pause for each of its micro-batches a job really is faster on 4 workers, also on 2 busy
# cores.
FASTER_ON_MORE = ("--set", "pause=0.04")


@pytest.mark.long
def test_lent_capacity_comes_back_at_a_step_boundary(home: Home, calm: str) -> None:
    borrower = home.submit("--workers", "1:4", *FASTER_ON_MORE)
    until(lambda: world_size(home, borrower) == 4, "4 workers, 2 of them borrowed")
    home.wait_for_step(borrower, 5)
    owner = home.submit("--workers", "1:2", tenant="web")
    until(lambda: home.job(owner).workers > 0, "the owner's workers")
    reclaimed = [line for line in home.story(borrower) if line["reason"] == "reclaimed-by-owner"]
    assert reclaimed, home.story(borrower)
    assert "tenant ads held 4 devices and may use" in reclaimed[0]["detail"]
    assert "forced" not in [line["event"] for line in home.story(borrower)]
    for job in (borrower, owner):
        end = home.finished(job)
        assert (end["exit"], end["steps_redone"], end["weights_sha256"]) == ("done", 0, calm)


@pytest.mark.long
def test_lent_capacity_returns_by_force(home: Home, calm: str) -> None:
    home.file.write_text(CLUSTER.replace("20s", "5s"))
    home.brim("apply", str(home.file))
    borrower = home.submit("--workers", "1:4", "--heartbeat-timeout", "100s", *FASTER_ON_MORE)
    until(lambda: world_size(home, borrower) == 4, "4 workers, 2 of them borrowed")
    home.wait_for_step(borrower, 5)
    events = lines(home.run_dir(borrower) / "events.jsonl")
    last = world(home, borrower)[-1]
    stopped = next(
        e["pid"] for e in events if e["kind"] == "worker" and e["worker"] == last and e["pid"]
    )
    os.kill(stopped, signal.SIGSTOP)
    owner = home.submit("--workers", "2", tenant="web")
    for job in (owner, borrower):
        end = home.finished(job)
        assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    assert [line["event"] for line in home.story(borrower)].count("forced") == 1
    assert "forced" not in [line["event"] for line in home.story(owner)]


def world(home: Home, job: str) -> list[str]:
    rounds = [e for e in lines(home.run_dir(job) / "events.jsonl") if e["kind"] == "round"]
    return list(rounds[-1]["workers"]) if rounds else []


def world_size(home: Home, job: str) -> int:
    return len(world(home, job))


def test_a_pipeline_survives_its_scheduler(home: Home) -> None:
    """A preparation, an array of which one job fails at first, and a job behind them all."""
    place = home.state.parent / "parts"
    place.mkdir()
    common = ("submit", "--grace", "9s", "--tenant", "ads", "--env", f"PLACE={place}")
    part = (
        "import os, pathlib as p; i = os.environ['ARRAY_INDEX']; "
        "f = p.Path(os.environ['PLACE'], i); f.exists() or (f.touch(), exit(int(i == '2')))"
    )
    count = "import os; print(*sorted(os.listdir(os.environ['PLACE'])))"
    python = (sys.executable, "-c")
    gate = home.state.parent / "gate"
    wait = ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.1; done")
    first = home.brim(*common, "--name", "prepare", "--at", "10s", "--", *wait).strip()
    assert home.job(first).waits.startswith("it begins in ")
    behind = ("--after", f"{first}:ok")
    parts = home.brim(*common, *behind, "--array", "1-3%2", "--", *python, part).strip()
    last = home.brim(*common, "--after", f"{parts}:ok", "--", *python, count).strip()
    assert first.startswith("prepare-")
    assert home.job(last).state == "submitted"
    home.kill_scheduler()
    home.brim("up", "--cluster", str(home.file))
    gate.touch()
    assert home.finished(last)["exit"] == "done"
    assert "1 2 3" in home.brim("logs", last)
