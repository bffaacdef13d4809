"""Faults of a logger do not disturb training; after faults of training, a logger has everything
once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.domain.step_records import lasting
from brim.telemetry.history import read_history
from brim_lab.driver import Driver
from e2e.running import DIGITS, FILES, started, train, until

pytestmark = pytest.mark.e2e
LOGGERS = str(FILES / "loggers.py")
QUICK = ("--epochs", "6", "--global-batch-size", "64")
ENDLESS = ("--epochs", "9999", "--global-batch-size", "64")  # it ends when it is told to


def logged_values(directory: Path) -> dict[int, float]:
    """The losses that `Lines` has, none of them twice."""
    lines = [json.loads(line) for line in (directory / "lines.jsonl").read_text().splitlines()]
    steps = [step for step, values in lines if "train/loss" in values]
    assert not [step for step, count in Counter(steps).items() if count > 1]
    return {step: values["train/loss"] for step, values in lines if "train/loss" in values}


def recorded(directory: Path) -> dict[int, float | None]:
    history = read_history(directory)
    return {step.step: step.loss for step in lasting(history.steps, history.restores)}


def processes(directory: Path, module: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if module in command and str(directory) in " ".join(command):
            found.append(process)
    return found


@pytest.mark.long
def test_each_step_is_logged_once_through_kills(
    tmp_path: Path,
) -> None:
    rng = random.Random(4)
    directory = tmp_path / "run"
    slow = ("--set", "pause=0.004", "--checkpoint-every", "20", "--spares", "0")
    with started(
        directory,
        "train",
        DIGITS,
        "--workers",
        "1",
        *slow,
        *ENDLESS,
        "--logger",
        f"{LOGGERS}:Lines",
    ) as run:
        for step in (12, 33, 57, 78, 101):
            run.wait_for_step(step)
            until(lambda: bool(processes(directory, "brim.loggers")), "a logger's process", run)
            victims = rng.sample(("brim.loggers", "brim.master", "worker"), 2)
            for victim in victims:
                kill(directory, victim)
        until(lambda: bool(processes(directory, "brim.loggers")), "a logger's process", run)
        run.wait_for_step(run.steps()[-1]["step"] + 10)
        run.process.send_signal(signal.SIGTERM)
        run.finish()
    assert run.process.returncode == 0, run.err
    history = read_history(directory)
    assert len(history.steps) > len(recorded(directory)), (
        "no step was undone: the test shows nothing"
    )
    if "has not got all of this run" in run.err:  # a busy machine: nobody waits long for a logger
        assert brim("track", str(directory), cwd=tmp_path).returncode == 0
    assert logged_values(directory) == recorded(directory)
    assert (directory / "lines.end").read_text() == "suspended"


def kill(directory: Path, victim: str) -> None:
    if victim == "worker":
        history = read_history(directory)
        pids = [life.pid for life in history.workers.values() if life.state == "active"]
    else:
        pids = [process.pid for process in processes(directory, victim)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.long
def test_a_broken_logger_does_not_affect_training(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", DIGITS, "--workers", "2", *QUICK)
    with started(
        tmp_path / "bad", "train", DIGITS, "--workers", "2", *QUICK,
        "--logger", f"{LOGGERS}:Hangs", "--logger", f"{LOGGERS}:Raises", "--logger", f"{LOGGERS}:Lines",
    ) as run:  # fmt: skip
        summary = run.finish()
    assert run.process.returncode == 0, run.err
    assert summary["weights_sha256"] == plain["weights_sha256"]
    assert "Hangs has not got all of this run: it did not finish within 10 s" in run.err
    assert "no room for step 1" in run.err
    assert "brim track" in run.err
    assert (
        brim(
            "track", str(tmp_path / "bad"), "--logger", f"{LOGGERS}:Lines", cwd=tmp_path
        ).returncode
        == 0
    )
    assert logged_values(tmp_path / "bad") == recorded(tmp_path / "bad")


def brim(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return Driver(cwd).call(*words, codes=())


@pytest.mark.long
def test_ended_runs_are_sent_and_resumed_ones_continue(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    stop = ("--faults", "term rank 0 at step 20")
    with started(directory, "train", DIGITS, "--workers", "1", *stop, *QUICK) as run:
        assert run.finish()["exit"] == "suspended"
    done = brim("track", str(directory), "--logger", f"{LOGGERS}:Lines", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = logged_values(directory)
    assert first == recorded(directory)
    assert (directory / "lines.end").read_text() == "suspended"
    # The run knows its loggers: nobody has to name them again.
    resumed = brim("resume", str(directory), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert brim("track", str(directory), cwd=tmp_path).returncode == 0
    assert logged_values(directory) == recorded(directory)
    assert len(logged_values(directory)) > len(first)
    assert (directory / "lines.end").read_text() == "done"


@pytest.mark.parametrize(
    ("logger", "words"),
    [
        ("tensorbord", "did you mean 'tensorboard'?"),
        ("nowhere.py:Lines", "nowhere.py, which is no file"),
        (LOGGERS, "FILE.py:NAME"),
        (f"{LOGGERS}:Linse", "did you mean 'Lines'?"),
        (f"{LOGGERS}:not_a_logger", "of type int"),
    ],
)
def test_an_invalid_logger_is_refused_before_start(tmp_path: Path, logger: str, words: str) -> None:
    done = brim(
        "train", DIGITS, "--run-dir", str(tmp_path / "run"), "--logger", logger, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith("--logger: got ")
    assert words in done.stderr
    assert "hint:" in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_a_function_gives_must_be_a_logger(tmp_path: Path) -> None:
    summary: dict[str, Any] = train(tmp_path / "run", DIGITS, "--workers", "1", "--epochs", "1")
    assert summary["exit"] == "done"
    done = brim("track", str(tmp_path / "run"), "--logger", f"{LOGGERS}:incomplete", cwd=tmp_path)
    assert done.returncode == 2
    assert "a object without begin, rewind, log, flush, end" in done.stderr
