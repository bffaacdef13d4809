"""Real signals to workers that meet on a board, and to their agent, at steps of milliseconds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from e2e.running import DIGITS, Run, check_ledger, started, undisturbed, until
from tiers import long_after

pytestmark = pytest.mark.e2e

# 1080 steps of some milliseconds, with one micro-batch for each of the two.
BATCHES = ("--global-batch-size", "32", "--micro-batches", "2")
JOB = (DIGITS, "--epochs", "24", *BATCHES, "--checkpoint-every", "10000")
FAST = ("--heartbeat-timeout", "3s")
CASES = [
    ("rank 0", signal.SIGKILL),
    ("agent", signal.SIGKILL),
    ("follower", signal.SIGSTOP),
    ("follower", signal.SIGKILL),
    ("rank 0", signal.SIGSTOP),
    ("agent", signal.SIGSTOP),
]


def _pid(run: Run, role: str) -> int:
    if role == "agent":
        children = psutil.Process(run.process.pid).children()
        agents = (c for c in children if any("brim.agent" in word for word in c.cmdline()))
        return int(next(agents).pid)
    return run.pid(run.members()[0 if role == "rank 0" else -1])


@pytest.mark.parametrize(("role", "number"), long_after(3, CASES))
def test_signals_at_a_board_change_no_digest(
    tmp_path: Path, role: str, number: signal.Signals
) -> None:
    calm = undisturbed(*JOB)
    options = (*FAST, "--set", "pause=0.005", "--workers", "2")
    with started(tmp_path / "run", "train", *JOB, *options) as run:
        for step in (60, 160):  # of 1080, which a busy test must not come behind
            run.wait_for_step(step)
            rounds = len(run.events("round"))
            victim = _pid(run, role)
            os.kill(victim, number)
            if number == signal.SIGSTOP and role == "agent":
                stopped = psutil.Process(victim)
                until(lambda p=stopped: p.status() == psutil.STATUS_STOPPED, "a stop", run)  # type: ignore[misc]
                os.kill(victim, signal.SIGCONT)
                continue
            until(lambda rounds=rounds: len(run.events("round")) > rounds, "a new round", run)  # type: ignore[misc]
        run.hurry()
        summary = run.finish()
    assert summary["exit"] == "done", run.err
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert summary["steps_redone"] <= 4
    check_ledger(tmp_path / "run")
