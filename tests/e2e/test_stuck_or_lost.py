"""Processes that hang, end too early, or are lost: the job says so, goes on without them, and never
stands still.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim import client
from e2e.running import DIGITS, FILES, Run, check_ledger, joining, leftovers, started, train, until
from tiers import long_after

pytestmark = pytest.mark.e2e

STUCK = (
    "train",
    str(FILES / "stuck.py"),
    "--epochs",
    "12",
    "--global-batch-size",
    "128",
    "--workers",
    "2",
    "--no-audit",  # its calls of the loss count as well
)


def warnings_of(run: Run, *words: str) -> list[float]:
    """When a warning with all of these words was given."""
    warnings = run.events("warning")
    return [e["at"] for e in warnings if all(word in e["message"] for word in words)]


def warned_of(run: Run, *words: str) -> bool:
    return bool(warnings_of(run, *words))


def lost(run: Run) -> list[tuple[str, str]]:
    return [(e["worker"], e["reason"]) for e in run.events("worker") if e["state"] == "lost"]


def wait_until_stuck(run: Run, step: int) -> None:
    run.wait_for_step(step)
    seen = -1
    while seen != (seen := len(run.steps())):
        time.sleep(1.0)


def check_stacks(run: Run) -> None:
    """Where each worker is, is told at once; one that is stopped is not waited for."""
    stacks: dict[str, str] = {}

    def have_answered() -> bool:
        """On a busy machine the first time may be too short for one."""
        stacks.update(client.stacks(run.directory))
        assert set(stacks) >= {"w1 (rank 0)", "w2 (rank 1)"}, "and a spare"
        return bool(stacks["w1 (rank 0)"] and stacks["w2 (rank 1)"])

    until(have_answered, "answers of both", run)
    assert "stuck_here" in stacks["w2 (rank 1)"]
    assert "stuck_here" not in stacks["w1 (rank 0)"]
    (pid,) = [e["pid"] for e in run.events("worker") if e["worker"] == "w1" and e.get("pid")][-1:]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: not client.stacks(run.directory)["w1 (rank 0)"], "no answer", run)
    finally:
        os.kill(pid, signal.SIGCONT)


def gone_after(run: Run) -> float:
    """Seconds until nothing of the run is there any more."""
    start_time = time.monotonic()
    until(lambda: not leftovers(run.directory), "the end of all processes")
    return time.monotonic() - start_time


@pytest.mark.long
def test_torch_may_have_threads(tmp_path: Path) -> None:
    job = (DIGITS, "--threads", "2", "--epochs", "2")
    single = train(tmp_path / "alone", *job, "--workers", "1")
    pair_run = train(tmp_path / "both", *job, "--workers", "2", "--faults", "kill rank 0 at step 3")
    assert pair_run["weights_sha256"] == single["weights_sha256"]


def test_a_hang_is_shown_and_stoppable(tmp_path: Path) -> None:
    """Within 10 seconds it is named, with its stack; Ctrl-C then ends the run with a checkpoint of
    the others.
    """
    # A busy machine may be late once.
    assert any(seconds_to_show_a_hang(tmp_path / str(number)) < 10 for number in range(3))


def seconds_to_show_a_hang(directory: Path) -> float:
    # One that is stopped for the sake of its stack is not to be replaced meanwhile.
    options = ("--set", "how=deadlock", "--heartbeat-timeout", "100s")
    with started(directory, *STUCK, *options) as run:
        run.wait_for_step(20)
        words = "waiting for w2 (rank 1)", "in step 25", "stuck.py", "stuck_here"
        until(lambda: bool(warnings_of(run, *words)), "a word", run)
        seconds: float = warnings_of(run, *words)[0] - run.steps()[-1]["at"]
        check_stacks(run)
        run.process.send_signal(signal.SIGINT)
        summary = run.finish()
    assert (summary["exit"], summary["steps"]) == ("suspended", 24)
    assert lost(run) == [("w2", "in step 25 when the run was to end")]
    assert run.events("checkpoint")[-1]["step"] == 24
    return seconds


def test_a_pause_of_all_processes_loses_nobody(tmp_path: Path) -> None:
    """The agent goes on first, and sees workers that are stopped still."""
    options = ("--set", "pause=0.1", "--epochs", "6", "--heartbeat-timeout", "2s")
    with started(tmp_path / "run", "train", str(DIGITS), "--workers", "2", *options) as run:
        run.wait_for_step(2)
        agent = psutil.Process(run.pid("w1")).parent()
        assert agent is not None
        workers = [psutil.Process(run.pid(worker)) for worker in run.members()]
        for process in (agent, *workers):
            process.suspend()
        time.sleep(3.0)
        agent.resume()
        time.sleep(0.3)
        for process in workers:
            process.resume()
        run.hurry()
        assert run.finish()["exit"] == "done"
    assert lost(run) == []


@pytest.mark.long
def test_nothing_outlives_a_hanging_command(tmp_path: Path) -> None:
    with started(tmp_path / "run", *STUCK, "--set", "how=regex", "--set", "worker=w1") as run:
        wait_until_stuck(run, 20)
        run.process.kill()
        assert gone_after(run) < 20
    assert run.events("checkpoint")[-1]["step"] == 24


def test_the_second_hang_of_a_step_is_fatal(tmp_path: Path) -> None:
    options = (
        "--workers",
        "1",
        "--set",
        "worker=w1,w2,w3",
        "--hang-timeout",
        "8s",  # longer than a busy machine holds up a worker
        "--set",
        "call=30",
    )
    with started(tmp_path / "run", *STUCK, *options, "--set", "how=deadlock") as run:
        run.finish()
        assert run.process.returncode == 1
    seconds = re.findall(r"hangs: no progress for ([\d.]+)", run.err)
    assert seconds
    assert all(8.0 <= float(number) < 14.0 for number in seconds), "late at most on a busy machine"
    assert "in stuck_here" in run.err
    assert run.events("failed")[0]["who"] == "user"
    assert [worker for worker, _ in lost(run)] == ["w1"]


@pytest.mark.long
def test_a_hang_costs_no_worker_of_another_host(tmp_path: Path) -> None:
    """Waits for it over the network last as long as its agent's; people hear of it within 10 seconds."""
    hosts = ("--listen", "127.0.0.1:0", "--agents", "2", "--spares", "0")
    limits = ("--set", "patience=1", "--hang-timeout", "10s")
    with started(tmp_path / "run", *STUCK, *hosts, *limits) as run:
        agent = joining(tmp_path / "run")
        try:
            summary = run.finish()
        finally:
            agent.kill()
            agent.wait()
    assert run.process.returncode == 0, run.err
    assert (
        len(
            {e["agent"] for e in run.events("worker") if e["worker"] in ("w1", "w2") and e["agent"]}
        )
        == 2
    )
    ((worker, reason),) = lost(run)
    assert (worker, reason.partition(" for ")[0]) == ("w2", "no progress")
    warning = next(e for e in run.events("warning") if "waiting for w2 (rank 1)" in e["message"])
    assert "in step 25" in warning["message"]
    assert warning["at"] - run.steps()[23]["at"] < 10
    assert summary["exit"] == "done"
    check_ledger(tmp_path / "run")


@pytest.mark.long
def test_holding_the_interpreter_lock_is_no_loss(tmp_path: Path) -> None:
    options = ("--set", "how=lock", "--set", "seconds=1.5", "--heartbeat-timeout", "500ms")
    with started(tmp_path / "run", *STUCK, *options) as run:
        assert run.finish()["exit"] == "done"
    assert lost(run) == []
    assert "suspect" in {e["state"] for e in run.events("worker") if e["worker"] == "w2"}


@pytest.mark.long
def test_workers_outlive_their_template(tmp_path: Path) -> None:
    """Training goes on meanwhile, and another template forks the workers that replace a loss."""
    with started(
        tmp_path / "run", *STUCK, "--set", "call=0", "--set", "pause=0.1", "--spares", "0"
    ) as run:
        run.wait_for_step(4)
        agent = psutil.Process(run.pid(run.members()[0])).parent()
        assert agent is not None
        template = next(
            child for child in agent.children() if "brim.worker.template" in child.cmdline()
        )
        victim = run.pid("w2")
        template.kill()
        # Before that is noticed, a worker may be asked for of the template that is dying, and is
        # never started.
        until(
            lambda: warned_of(run, "the template process died; another one is started"),
            "the news",
            run,
        )
        os.kill(victim, signal.SIGKILL)
        until(lambda: run.members() == ["w1", "w3"], "a worker of another template", run)
        run.process.send_signal(signal.SIGINT)
        assert run.finish()["exit"] == "suspended"
    assert lost(run) == [("w2", "signal 9")]
    assert [step["step"] for step in run.steps()] == list(range(1, len(run.steps()) + 1))


@pytest.mark.parametrize("manner", long_after(1, ["exit", "leave"]))
def test_a_self_ending_worker_is_replaced_once(manner: str, tmp_path: Path) -> None:
    """Exit status 0 is no success before the job is done;
    the second time it is the user's to mend.
    """
    crash_options = () if manner == "exit" else ("--set", "worker=w2,w3")
    with started(tmp_path / "run", *STUCK, "--set", f"how={manner}", *crash_options) as run:
        summary = run.finish()
    words = "ended by itself with exit status 0 at step 24, before the job was done"
    assert lost(run)[0] == ("w2", words)
    if manner == "exit":
        assert (run.process.returncode, summary["exit"]) == (0, "done")
        check_ledger(tmp_path / "run")
    else:
        assert run.process.returncode == 1
        assert "w3 (rank 1) ended by itself with exit status 0 at step" in run.err
        assert "take exit() and os._exit() out of it" in run.err


def test_an_unsuitable_host_is_refused_without_harm(tmp_path: Path) -> None:
    """Errors of a guest end its stay alone."""
    own_folder, guest_folder = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (own_folder, guest_folder):
        folder.mkdir()
    (own_folder / "digits.py").write_text((FILES / "digits.py").read_text())
    text = "import os\nif 'NO_GPU' in os.environ:\n    raise RuntimeError('no GPU on this host')\n"
    (own_folder / "mine.py").write_text(text + (FILES / "stuck.py").read_text())
    job = (
        "train",
        "mine.py",
        "--set",
        "call=0",
        "--set",
        "pause=0.05",
        "--epochs",
        "99",
        "--workers",
        "1",
    )
    with started(own_folder / "run", *job, "--listen", "127.0.0.1:0") as run:
        run.wait_for_step(2)

        def join(**environment: Any) -> subprocess.CompletedProcess[str]:
            with joining(
                own_folder / "run",
                folder=guest_folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **environment,
            ) as agent:
                explanation = agent.communicate()
            return subprocess.CompletedProcess(agent.args, agent.returncode, *explanation)

        guest = join(NO_GPU="1")
        run.process.send_signal(signal.SIGINT)
        assert run.finish()["exit"] == "suspended"
    words = "RuntimeError: no GPU on this host"
    assert guest.returncode == 1, guest.stderr
    assert "the run continues without this host: " in guest.stderr
    assert words in guest.stderr
    assert "src/brim" not in guest.stderr
    assert warned_of(run, "cannot take part, and is left out", words)
    assert not run.events("failed")
