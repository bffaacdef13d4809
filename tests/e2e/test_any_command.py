"""Commands that know nothing of brim: one process a worker, started again at each change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim import client
from brim_lab.chaos.hosts import can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import FILES, ROOT, Run, has_ended, joining, lines, started, until

pytestmark = pytest.mark.e2e

EXAMPLE = ROOT / "examples" / "06-any-command"
COUNTING = (sys.executable, str(FILES / "counting.py"))
PATTERN = "step (?P<step>[0-9]+)/(?P<total>[0-9]+) loss (?P<loss>[0-9.]+)"


def starts(run: Run, rank: int = 0) -> list[dict[str, Any]]:
    return lines(run.directory / "saved" / f"starts-{rank}")


def processes(run: Run, rank: int) -> list[psutil.Process]:
    """The processes of the command with this rank."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            ours = variables.get("BRIM_CHECKPOINTS") == str(run.directory / "saved")
            if ours and variables.get("RANK") == str(rank):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for_progress(run: Run, step: int) -> None:
    """Wait for a report of the present round: one before it may have come further."""

    def is_made() -> bool:
        rounds = run.events("round")
        return any(
            e["step"] >= step and e["round"] == rounds[-1]["round"] for e in run.events("progress")
        )

    until(is_made, f"step {step}", run)


def test_resizes_a_death_and_a_pause(tmp_path: Path) -> None:
    command = ("--", *COUNTING, "240", "1.5")
    options = ("--restart", "--workers", "1:4", "--progress", PATTERN)
    with started(tmp_path / "run", "run", *options, *command) as run:
        wait_for_progress(run, 5)
        client.resize(run.directory, 2)
        until(lambda: len(starts(run)) == 2, "the start of two", run)
        wait_for_progress(run, starts(run)[1]["step"] + 12)
        until(lambda: bool(processes(run, 1)), "the process of rank 1", run)
        (process,) = processes(run, 1)
        process.kill()
        until(lambda: len(starts(run)) == 3, "the start behind the death", run)
        wait_for_progress(run, starts(run)[2]["step"] + 3)
        client.suspend(run.directory)
        summary = run.finish()
    first, second, third = starts(run)
    assert [start["size"] for start in (first, second, third)] == [4, 2, 2]
    assert [start["accumulate"] for start in (first, second)] == [1, 2]
    assert second["step"] >= 5  # SIGTERM came first, and all that was made is saved
    assert third["step"] >= 10  # a killed process saves nothing: from the checkpoint before
    steps: dict[int, list[int]] = {}  # reported in each round
    for report in run.events("progress"):
        steps.setdefault(report["round"], []).extend(filter(None, [report["step"]]))
    for start, reported in zip((first, second, third), filter(None, steps.values()), strict=True):
        assert reported[0] > start["step"]  # none is of the start before
    assert len(run.events("worker")) > 4
    log = (run.directory / "logs" / f"{run.events('round')[0]['workers'][0]}.log").read_text()
    assert len(re.findall(r"^\[start [2-9] of the command\]$", log, re.MULTILINE)) == 2, log
    assert "of the command]" not in run.err
    assert (summary["exit"], summary["metrics"].keys()) == ("suspended", {"loss"})
    saved = int((run.directory / "saved" / "state").read_text())
    (run.directory / "saved" / "hurry").touch()
    with started(tmp_path / "run", "run", *options, "--resume", *command) as resumed:
        ended = resumed.finish()
    assert starts(run)[3] == {"size": 4, "step": saved, "accumulate": 1}
    assert (ended["exit"], ended["steps"], resumed.process.returncode) == ("done", 240, 0)


@pytest.mark.long
def test_failing_command_is_given_up(tmp_path: Path) -> None:
    script = "import os, sys; print('no such table', file=sys.stderr); sys.exit(3)"
    command = ("--workers", "2", "--", sys.executable, "-c", script)
    with started(tmp_path / "run", "run", "--restart", *command) as run:
        summary = run.finish()
    assert (summary["exit"], run.process.returncode) == ("failed", 1)
    assert "6 starts in a row failed on" in run.err
    assert "exit status 3" in run.err
    assert "no such table" in (run.directory / "logs" / "w1.log").read_text()


def test_grace_ends_what_does_not_end(tmp_path: Path) -> None:
    """A command that ignores SIGTERM, and has left a process of its own, is gone with its worker."""
    script = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen(['sleep', '1000']); open(sys.argv[1], 'w').close(); time.sleep(1000)"
    )
    ready = tmp_path / "ready"
    command = ("--grace", "500ms", "--", sys.executable, "-c", script, str(ready))
    with started(tmp_path / "run", "run", "--restart", *command) as run:
        until(ready.exists, "the command", run)
        begun = processes(run, 0)
        assert len(begun) == 2
        run.process.send_signal(signal.SIGINT)
        assert run.finish()["exit"] == "suspended"
    assert all(has_ended(process.pid) for process in begun)


def test_agent_takes_the_command_with_it(tmp_path: Path) -> None:
    with started(tmp_path / "run", "run", "--restart", "--", *COUNTING, "1000") as run:
        until(lambda: len(starts(run)) == 1, "the start", run)
        (process,) = processes(run, 0)
        agent = psutil.Process(run.pid(run.members()[0])).parent()
        assert agent is not None
        agent.kill()
        until(lambda: len(starts(run)) == 2, "another start", run)
        assert has_ended(process.pid)


def test_finished_commands_of_hasty_ranks_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that ends at once waits for the others: the job is done when all are.

    All of a host see the GPUs that its workers have taken, as scripts choose by local rank.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "test-4,test-7,test-9")
    script = (
        "import os, time; time.sleep(int(os.environ['RANK']));"
        "print('rank', os.environ['RANK'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    with started(
        tmp_path / "run", "run", "--restart", "--workers", "2", "--", sys.executable, "-c", script
    ) as run:
        assert run.finish()["exit"] == "done"
    printed = [path.read_text() for path in (run.directory / "logs").glob("w*.log")]
    assert sorted(filter(None, printed)) == [f"rank {rank} test-4,test-7\n" for rank in (0, 1)]
    done = Driver().call("status", str(run.directory), "--json")
    assert json.loads(done.stdout)["state"] == "done"
    assert not [name for name in os.listdir(run.directory / "saved") if not name.startswith(".")]


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
def test_hosts_need_a_common_disk(tmp_path: Path) -> None:
    """Unless the command keeps its files on each host: tests/e2e/test_boosting.py."""
    with hosts_in(tmp_path, 2) as hosts:
        directory, address = hosts[0].folder / "run", f"{hosts[0].address}:7077"
        words = ("--workers", "2", "--listen", address, "--agents", "2", "--", *COUNTING, "10")
        with started(directory, "run", "--restart", *words, prefix=hosts[0].prefix) as run:
            agent = joining(directory, address=address, prefix=hosts[1].prefix)
            try:
                run.finish()
            finally:
                agent.kill()
                agent.wait()
    assert run.process.returncode != 0
    assert "which the hosts of this run do not share" in run.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "progress"),
    [
        ("trainer.py", ()),
        ("digits_accelerate.py", ("--progress", PATTERN)),
        ("digits_lightning.py", ("--progress", PATTERN)),
        ("digits_fsdp.py", ("--progress", PATTERN)),
    ],
)
def test_scripts_read_each_sample_once_an_epoch(
    script: str, progress: tuple[str, ...], tmp_path: Path
) -> None:
    """transformers' Trainer, a loop of accelerate, Lightning, FSDP: they give way, are killed, and grow."""
    command = ("--", sys.executable, str(EXAMPLE / script), "10", "0.05")
    options = ("--restart", "--workers", "1:2", "--grace", "60s", *progress)
    with started(tmp_path / "run", "run", *options, *command) as run:
        wait_for_progress(run, 60)
        client.resize(run.directory, 1)
        until(lambda: run.events("round")[-1]["world_size"] == 1, "one worker", run)
        begun = run.events("progress")[-1]["step"]
        wait_for_progress(run, begun + 60)
        (process,) = processes(run, 0)
        process.kill()
        until(lambda: any(e["state"] == "lost" for e in run.events("worker")), "a death", run)
        client.resize(run.directory, 2)
        summary = run.finish()
    assert (summary["exit"], run.process.returncode) == ("done", 0), run.err
    count = [sys.executable, str(EXAMPLE / "samples.py"), str(run.directory / "saved")]
    found = json.loads(subprocess.run(count, check=True, capture_output=True, timeout=60).stdout)
    assert found["samples_per_step"] == [32]
    assert (found["steps"], found["reads"]) == (10 * 1792 // 32, {"10": 1792})
