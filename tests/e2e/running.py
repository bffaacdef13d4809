"""Runs of the real command, in real processes, for the end-to-end tests."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from brim.host.death_notice import signal_that_ended
from brim.wire.listening import take_port
from brim_lab.chaos.hosts import Host
from brim_lab.driver import Driver, Output

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).parent / "files"
DIGITS = str(FILES / "digits.py")
FLIGHTS = str(ROOT / "examples" / "01-first-job" / "flights.py")
DEADLINE = 400.0  # seconds: nothing is judged by it, and a busy machine is slow
# Each micro-batch takes processor time, and most tests have no more than four workers.
BATCHES = ("--global-batch-size", "128", "--micro-batches", "4")
JOB = (DIGITS, "--epochs", "12", *BATCHES)
LONG_JOB = (DIGITS, "--epochs", "20", *BATCHES)
# of DIGITS, until `Run.hurry`: longer than anything that is waited for
PACED = ("--set", "pause=0.1")


@dataclass
class Run:
    """A `brim train` or `brim run` under way."""

    process: subprocess.Popen[str]
    directory: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in lines(self.directory / "events.jsonl") if event["kind"] == kind]

    def steps(self) -> list[dict[str, Any]]:
        return lines(self.directory / "steps.jsonl")

    def pid(self, worker: str) -> int:
        found: int = next(
            e["pid"] for e in self.events("worker") if e["worker"] == worker and e["pid"]
        )
        return found

    def pid_on(self, hosts: Sequence[Host], worker: str) -> int:
        """The same as seen from outside these hosts, of which the first is that of agent a1, and
        the second that of all others; 0 where it is gone.
        """
        agent = next(
            str(e["agent"]) for e in self.events("worker") if e["worker"] == worker and e["agent"]
        )
        return hosts[int(agent != "a1")].outer_pid(self.pid(worker))

    def members(self) -> list[str]:
        return list(self.events("round")[-1]["workers"])

    def wait_for_step(self, step: int) -> None:
        until(lambda: bool(self.steps()) and self.steps()[-1]["step"] >= step, f"step {step}", self)

    def dismiss_all(self) -> None:
        """Ask the workers to leave, each once the one before has left: the last ends the run."""
        while len(members := self.members()) > 1:
            os.kill(self.pid(members[0]), signal.SIGTERM)
            size = len(members)
            until(lambda: len(self.members()) < size, "a round without it", self)  # noqa: B023
        os.kill(self.pid(members[0]), signal.SIGTERM)

    def hurry(self) -> None:
        """End the pauses of `--set pause=`: until then the run is slow, so that it cannot end too
        early.
        """
        (self.directory / "hurry").touch()

    def finish(self) -> dict[str, Any]:
        """The summary, after everything has ended; fails where a process is left over."""
        output, err = self.process.communicate(timeout=DEADLINE)
        self.err = err
        assert not leftovers(self.directory), f"processes left over: {leftovers(self.directory)}"
        summary: dict[str, Any] = json.loads(output) if output else {}
        return summary


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def until(condition: Callable[[], bool], subject: str, run: Run | None = None) -> None:
    """Wait for something that must happen; look often, give up after DEADLINE."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if run is not None and run.process.poll() is not None:
            if condition():  # it did, before the end
                return
            raise AssertionError(f"the run ended before {subject}:\n{run.process.communicate()[1]}")
        if time.monotonic() > end:
            raise AssertionError(f"{subject} did not happen in {DEADLINE:.0f} s")
        time.sleep(0.01)


def joining(
    run_dir: Path,
    *options: str,
    address: str = "",
    prefix: tuple[str, ...] = (),
    folder: Path | None = None,
    stdout: Output = None,
    stderr: Output = None,
    **variables: str,
) -> subprocess.Popen[str]:
    """An agent that joins a run as another host once its master is there.

    Args:
        options: of `brim agent`.
        address: of the master, where it is not called at its own.
        prefix: of the command, such as one that enters a host.
        folder: that it is typed in.
        variables: of its environment.
    """
    contact = run_dir / "master.json"
    until(contact.exists, "the master's address")
    contact_fields = json.loads(contact.read_text())
    driver = Driver(folder, BRIM_TOKEN=contact_fields["token"], **variables).with_prefix(prefix)
    command = ("agent", address or contact_fields["address"], *options)
    return driver.start(*command, stdout=stdout, stderr=stderr)


def free_port() -> int:
    """A free port of this host, below those that the kernel gives to anybody meanwhile."""
    while True:
        with (
            contextlib.suppress(OSError),
            take_port("127.0.0.1", 20_000 + secrets.randbelow(9_000)) as listener,
        ):
            return int(listener.getsockname()[1])


def has_ended(pid: int) -> bool:
    """Whether a process executes no line of its program any more; the kernel may not have cleared
    it away.
    """
    try:
        zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return zombie or signal_that_ended(pid) is not None
    except psutil.NoSuchProcess:
        return True


def leftovers(directory: Path) -> list[str]:
    """Processes of a run that are still there."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if str(directory) in " ".join(command) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(command))
    return found


@contextlib.contextmanager
def started(directory: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[Run]:
    """Start the command with `--run-dir directory --json`;
    in any case, nothing of it stays.
    """
    verb, *rest = arguments
    driver = Driver(directory.parent).with_prefix(prefix)
    with driver.start(verb, "--run-dir", str(directory), "--json", *rest) as process:
        try:
            yield Run(process, directory)
        finally:
            driver.end()


def train(directory: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """A whole `brim train`; its summary."""
    with started(directory, "train", *arguments, prefix=prefix) as run:
        summary = run.finish()
        assert run.process.returncode == 0, run.err
        # Its streams end before its server does: people read these logs.
        assert "Traceback" not in (directory / "logs" / "master.log").read_text()
        return summary


def undisturbed(*arguments: str) -> dict[str, Any]:
    """The summary of a `brim train` by one worker to which nothing happens.

    All tests that compare theirs with it share one run, those of other processes too: tests/conftest.py.
    """
    kept = (
        Path(os.environ["BRIM_TEST_CALM"])
        / hashlib.sha256("\0".join(arguments).encode()).hexdigest()
    )
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory() as folder:
                summary = train(Path(folder) / "run", *arguments, "--workers", "1")
            kept.write_text(json.dumps(summary))
        found: dict[str, Any] = json.loads(kept.read_text())
        return found


def ledger(directory: Path) -> dict[str, Any]:
    """The ledger of a run; one that is not exact is for the caller to show."""
    done = Driver().call("ledger", str(directory), "--json", codes=(0, 1))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check_ledger(directory: Path) -> None:
    """Check that each step of a run counted each of its samples once; else show the others."""
    account = ledger(directory)
    assert account["exact"], json.dumps(account, indent=1)
