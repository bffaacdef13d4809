"""Real processes killed with real signals: some go on, others end cleanly, and nothing is left
over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from brim_lab.chaos.promises import run_directory_is_whole
from e2e.running import (
    DEADLINE,
    FILES,
    JOB,
    PACED,
    Run,
    check_ledger,
    has_ended,
    joining,
    started,
    undisturbed,
    until,
)
from tiers import long_after

pytestmark = pytest.mark.e2e

COMMAND = ("train", *JOB)


def _process(run: Run, module: str) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(run.process.pid).children()
        if any(module in word for word in child.cmdline())
    )


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with started(tmp_path / "run", *COMMAND, *PACED, "--workers", "3") as run:
        run.wait_for_step(5)
        victim = run.members()[1]
        os.kill(run.pid(victim), signal.SIGKILL)
        until(lambda: len(run.events("round")) > 1, "a new round", run)
        run.hurry()
        summary = run.finish()
    assert summary["exit"] == "done"
    ((worker, reason),) = [
        (e["worker"], e["reason"]) for e in run.events("worker") if e["state"] == "lost"
    ]
    # The reason may go on: the kernel may have ended a process of another test for want of memory.
    assert (worker, reason.partition(",")[0]) == (victim, "signal 9")
    assert summary["steps_redone"] <= 1
    check_ledger(tmp_path / "run")


def test_a_worker_that_is_stopped_is_fenced(tmp_path: Path) -> None:
    """It is noticed by its silence and killed before anyone goes on: it never wakes to do harm."""
    job = (*COMMAND, *PACED, "--workers", "3", "--heartbeat-timeout", "12s")
    with started(tmp_path / "run", *job) as run:
        run.wait_for_step(20)
        victim = run.pid(run.members()[0])
        os.kill(victim, signal.SIGSTOP)
        until(lambda: len(run.events("round")) > 1, "a round without the stopped worker", run)
        assert has_ended(victim)
        run.hurry()
        assert run.finish()["exit"] == "done"
    of_victim = [event for event in run.events("worker") if event["pid"] == victim]
    assert "active" in [event["state"] for event in of_victim]
    assert [event["state"] for event in of_victim][-2:] == ["suspect", "lost"]
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_loops_setting_rates_survive_deaths_within_steps(tmp_path: Path) -> None:
    """Its body has run in some workers by then, and not in those that read samples still."""

    def digest(name: str, *options: str) -> str:
        script = ("--", sys.executable, str(FILES / "rates_by_hand.py"))
        with started(tmp_path / name, "run", "--micro-batches", "3", *options, *script) as run:
            summary = run.finish()
        assert summary["exit"] == "done", run.err
        return str(summary["weights_sha256"])

    kills = "kill rank 1 at step 3; kill rank 1 at step 6"
    assert digest("disturbed", "--workers", "3", "--faults", kills) == digest(
        "calm", "--workers", "1"
    )


@pytest.mark.long
def test_the_only_worker_may_die(tmp_path: Path) -> None:
    """No process has its state then: the job goes on from the last checkpoint, and the ledger still
    counts once.
    """
    calm = undisturbed(*JOB)
    with started(tmp_path / "run", *COMMAND, "--workers", "1", "--checkpoint-every", "20") as run:
        run.wait_for_step(30)
        os.kill(run.pid(run.members()[0]), signal.SIGKILL)
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert run.events("restored")
    assert 1 <= summary["steps_redone"] <= 40
    check_ledger(tmp_path / "run")


def test_a_damaged_checkpoint_falls_back_to_the_previous(tmp_path: Path) -> None:
    job = (*COMMAND, *PACED, "--checkpoint-every", "5", "--workers", "2")
    calm = undisturbed(*JOB)
    with started(tmp_path / "run", *job) as run:
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        run.dismiss_all()
        assert run.finish()["exit"] == "suspended"
    damaged = max((tmp_path / "run" / "checkpoints").glob("step-*/*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    run.hurry()
    with started(tmp_path / "run", *job, "--resume") as resumed:
        summary = resumed.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert any(str(damaged) in event["message"] for event in resumed.events("warning"))
    check_ledger(tmp_path / "run")


@pytest.mark.parametrize("workers", long_after(1, ["3", "1"]))
def test_a_run_continues_without_its_agent(tmp_path: Path, workers: str) -> None:
    """Far from any checkpoint: one worker leaves the state, and the dead agent the messages
    unheard by its master.
    """
    job = (*COMMAND, "--workers", workers, "--checkpoint-every", "10000")
    calm = undisturbed(*JOB)
    with started(tmp_path / "run", *job, *PACED) as run:
        run.wait_for_step(7)
        _process(run, "brim.agent").kill()
        until(lambda: bool(run.events("restored")), "a restore", run)
        _process(run, "brim.agent").kill()  # it may be before the new life's first step
        until(lambda: len(run.events("restored")) > 1, "another restore", run)
        run.hurry()
        summary = run.finish()  # fails where a process is left over
        assert run.process.returncode == 0, run.err
        assert (
            f"the agent of {socket.gethostname()} was killed; a new one has replaced it" in run.err
        )
        assert "Traceback" not in run.err
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert all(event["step"] >= 7 for event in run.events("restored"))
    assert summary["steps_redone"] <= 2
    assert [event["epoch"] for event in run.events("epoch")] == list(range(1, 13))
    check_ledger(tmp_path / "run")
    assert run_directory_is_whole(tmp_path / "run") == []


@pytest.mark.long
def test_agent_and_master_may_die_together(
    tmp_path: Path,
) -> None:
    job = (*COMMAND, "--workers", "2", "--checkpoint-every", "10000")
    with started(tmp_path / "run", *job, *PACED) as run:
        run.wait_for_step(7)
        agent = _process(run, "brim.agent")

        def masters() -> set[int]:
            found = set()
            for child in agent.children():
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
                    if child.status() != psutil.STATUS_ZOMBIE and "brim.master" in child.cmdline():
                        found.add(child.pid)
            return found

        (first,) = masters()
        os.kill(first, signal.SIGKILL)
        until(lambda: bool(masters() - {first}), "another master", run)
        agent.kill()  # the command does not know yet of that master, which must not go on by itself
        until(lambda: bool(run.events("restored")), "a restore", run)
        run.hurry()
        summary = run.finish()
    assert summary["exit"] == "done"
    assert run.events("restored")[0]["step"] >= 7
    assert summary["steps_redone"] <= 1
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_a_stopped_worker_costs_steps_since_its_checkpoint(
    tmp_path: Path,
) -> None:
    """It is ended before anyone else begins: it never wakes to do harm."""
    job = (*COMMAND, "--workers", "2", "--checkpoint-every", "5", "--heartbeat-timeout", "1m")
    with started(tmp_path / "run", *job, *PACED) as run:
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        stopped = psutil.Process(run.pid(run.members()[0]))
        stopped.suspend()
        _process(run, "brim.agent").kill()
        until(lambda: bool(run.events("restored")), "a restore", run)
        assert has_ended(stopped.pid)
        run.hurry()
        assert run.finish()["exit"] == "done"
    assert run.events("restored")[0]["step"] % 5 == 0
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_the_first_hosts_agent_may_die(tmp_path: Path) -> None:
    """They have the state, so nothing is done again; the new agent keeps another master, and they
    find it.
    """
    calm = undisturbed(*JOB)
    slow = (*PACED, "--set", f"hurry={tmp_path / 'run' / 'hurry'}")  # on the other host as well
    hosts = ("--workers", "2", "--listen", "127.0.0.1:0", "--agents", "2", "--spares", "0")
    with (
        started(tmp_path / "run", *COMMAND, *slow, *hosts) as run,
        joining(tmp_path / "run") as guest,
    ):
        run.wait_for_step(8)
        assert run.members() == ["w1", "w2"]
        _process(run, "brim.agent").kill()
        until(lambda: run.members() == ["w3", "w2"], "a worker of the new agent", run)
        run.hurry()
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    assert run.process.returncode == 0, run.err
    assert "a new one has replaced it" in run.err
    assert [e["worker"] for e in run.events("worker") if e["state"] == "lost"] == ["w1"]
    assert not run.events("restored")
    assert summary["steps_redone"] <= 1
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_repeatedly_killed_agents_fail_the_run(tmp_path: Path) -> None:
    with started(tmp_path / "run", *COMMAND, "--workers", "1") as run:
        killed: set[int] = set()

        def kill() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess, StopIteration):
                agent = _process(run, "brim.agent")
                if agent.pid not in killed:
                    killed.add(agent.pid)
                    agent.kill()
            return run.process.poll() is not None

        until(kill, "the end of the run")
        run.finish()
        assert run.process.returncode == 1
        assert (
            "the agent of this run is gone" in run.err
            or "the last agent of this run is gone" in run.err
        )
    assert len(killed) == 4


def test_nothing_outlives_the_command(tmp_path: Path) -> None:
    with started(tmp_path / "run", *COMMAND, *PACED, "--workers", "2") as run:
        run.wait_for_step(5)
        family = psutil.Process(run.process.pid).children(recursive=True)
        run.process.kill()
        run.process.wait()
        until(lambda: all(has_ended(p.pid) for p in family), "the end of all processes")
    assert run.events("run_ended")[0]["summary"]["exit"] == "suspended"


def test_user_errors_end_the_job_with_traceback(tmp_path: Path) -> None:
    with started(tmp_path / "run", "train", str(FILES / "raises.py"), "--workers", "2") as run:
        run.finish()
        assert run.process.returncode == 1
        trace = run.err[run.err.index("Traceback") :]
        assert "raises.py" in trace
        assert "ZeroDivisionError: the user's own mistake" in trace
        assert "src/brim" not in trace.partition("ZeroDivisionError")[0]
    assert not any("restart" in e.get("message", "") for e in run.events("warning"))


@pytest.mark.long
def test_an_always_dying_worker_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "dies.py"
    file.write_text(
        "import os\nfrom torch.nn import functional\n"
        "from digits import dataset, metrics, model, optimizer  # noqa\n"
        "calls = []\n"
        "def loss(output, target):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 2:  # the template's own try passes\n"
        "        os._exit(3)\n"
        "    return functional.cross_entropy(output, target)\n"
    )
    (tmp_path / "digits.py").write_text((FILES / "digits.py").read_text())
    with started(tmp_path / "run", "train", str(file), "--workers", "2") as run:
        run.finish()
        assert run.process.returncode == 1
        assert "in a row died young on" in run.err
        assert "exit status 3" in run.err
