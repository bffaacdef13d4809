"""A run in containers as Kubernetes restricts them: see `restricted.py`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.driver import Driver
from e2e.restricted import ACCOUNT, can_restrict, first_process, restricted
from e2e.running import DEADLINE, DIGITS, Run, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not can_restrict(), reason="needs root, unshare, mount and setpriv"),
]
PORT = 7391


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all accounts can reach."""
    with tempfile.TemporaryDirectory(prefix="brim-pods-", dir="/var/tmp") as temporary:
        Path(temporary).chmod(0o755)
        yield Path(temporary)


@contextlib.contextmanager
def container(volume: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    driver = Driver(BRIM_TOKEN="t").with_prefix(restricted(volume))
    with driver.start(*words, "--heartbeat-file", f"{volume}/heart") as process:
        try:
            yield process
        finally:
            driver.end()


def says(volume: Path) -> str:
    path = volume / "heart"
    return path.read_text().strip() if path.exists() else ""


def test_a_run_needs_no_home_or_capabilities(folder: Path) -> None:
    first, two = folder / "one", folder / "two"
    job = (DIGITS, "--epochs", "2", "--global-batch-size", "128", "--workers", "2")
    options = ("--auto-resume", "--rejoin-timeout", "none", "--run-dir", f"{first}/run")
    with contextlib.ExitStack() as stack:
        address_options = ("--listen", f"127.0.0.1:{PORT}")
        master = stack.enter_context(container(first, "master", *job, *options, *address_options))
        until(lambda: says(first) == "ready", "a master", Run(master, first / "run"))
        agent = stack.enter_context(container(two, "agent", f"127.0.0.1:{PORT}", "--workers", "2"))
        explanations = [process.communicate(timeout=DEADLINE)[1] for process in (agent, master)]
    assert (master.returncode, agent.returncode) == (0, 0), explanations
    assert not any("Traceback" in explanation for explanation in explanations), explanations
    run = Run(master, first / "run")
    assert run.events("run_ended")[-1]["summary"]["exit"] == "done"
    assert run.events("round")[-1]["world_size"] == 2
    assert (first / "run" / "events.jsonl").stat().st_uid == ACCOUNT


@pytest.mark.parametrize("verb", ["master", "agent"])
def test_a_containers_first_process_obeys_signals(folder: Path, verb: str) -> None:
    """Also before it has begun: the kernel has it ignore signals that it does not handle."""
    volume = folder / "volume"
    begin = ("--auto-resume", "--run-dir", f"{volume}/run", "--listen", f"127.0.0.1:{PORT}")
    words = (DIGITS, *begin) if verb == "master" else (f"127.0.0.1:{PORT}",)
    with container(volume, verb, *words, "--patience", "1h") as process:
        until(lambda: says(volume) == "waiting", "a start")
        os.kill(first_process(process.pid), signal.SIGTERM)
        explanation = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 0, explanation
    assert "Traceback" not in explanation


def test_missing_temporary_space_is_explained(folder: Path) -> None:
    driver = Driver(BRIM_TOKEN="t").with_prefix(restricted(folder / "volume", temporary=False))
    done = driver.call("agent", f"127.0.0.1:{PORT}", codes=(1,))
    assert "an agent needs a directory for temporary files" in done.stderr
    assert "TMPDIR names one" in done.stderr
    assert "Traceback" not in done.stderr
