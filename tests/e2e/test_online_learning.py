"""From a new line of a log to another prediction: training that follows a directory, versions, and
a server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brim_lab.driver import Driver
from e2e.running import DEADLINE, Run, check_ledger, lines, started, until
from e2e.test_serving import Server, serving
from tiers import long_after

pytestmark = pytest.mark.e2e

ROWS = 200
FILE = """
import torch
from torch import nn
from functools import cache
from brim import data, models, param

COLUMNS = [
    data.vocabulary("color"),
    data.sequence("before", of="color", length=2),
    data.hashed("word", buckets=9000),
]


@cache
def history():
    return data.csv(param("folder", "") + "/history.csv", columns=COLUMNS, target=data.target("sold"))


def dataset(split):
    parts = param("folder", "") + "/parts/*.csv"
    return data.follow(history(), parts, rows=200, patience=param("patience", 600.0)) if split == "train" else None


def model():
    sizes = history().vocabulary_size, history().fields
    return models.DIN(*sizes, sequences=history().sequences, dim=8, hidden=(16,))


loss = nn.functional.binary_cross_entropy_with_logits


def predict(output):
    return {"sold": output.sigmoid()}


def optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "file.py").write_text(FILE)
    (tmp_path / "history.csv").write_text(
        "color,before,word,sold\n" + "red,,a,0\nblue,red|blue,b,1\n" * 50
    )
    return tmp_path


def add(folder: Path, name: str, red: int, rows: int = ROWS, bad: int = 0) -> None:
    """Have a part appear, whole, in which red things were sold or not."""
    part = folder / "parts" / f".{name}"
    part.write_text(
        "color,before,word,sold\n"
        + "".join(
            f"{'red' if row % 2 else 'blue'},blue|red,w{row},{red if row % 2 else 1 - red}\n"
            for row in range(rows)
        )
        + "red,red,x,far\n" * bad
    )
    part.rename(folder / "parts" / name)


def train(folder: Path, run: str, *options: str) -> contextlib.AbstractContextManager[Run]:
    words = ("--set", f"folder={folder}", "--epochs", "1000", "--global-batch-size", "50", *options)
    return started(folder / run, "train", str(folder / "file.py"), *words)


@contextlib.contextmanager
def exporting(folder: Path, run: str) -> Iterator[subprocess.Popen[str]]:
    words = [
        "export",
        str(folder / run),
        "--output",
        str(folder / "versions"),
        "--format",
        "bundle",
        "--follow",
    ]
    process = Driver().start(*words, stdout=None)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def chance_of_red(server: Server) -> float:
    answer = server.ask(body={"rows": [{"color": "red", "before": ["blue", "red"], "word": "w1"}]})[
        1
    ]
    chance: float = answer["predictions"]["sold"][0]
    return chance


def test_a_new_log_part_changes_predictions_soon(folder: Path) -> None:
    add(folder, "01.csv", red=0)
    with train(folder, "run", "--workers", "2") as run, exporting_after(run, folder) as exporter:
        until(lambda: any((folder / "versions").glob("*/manifest.json")), "the first bundle", run)
        with serving(folder / "versions", folder / "log") as server:
            chance_before = chance_of_red(server)
            assert chance_before < 0.5
            seconds = []
            for number in range(2, 7):
                version = server.version
                add(folder, f"{number:02}.csv", red=1)
                start = time.monotonic()
                until(lambda version=version: server.version != version, "another version", run)  # type: ignore[misc]
                seconds.append(time.monotonic() - start)
            assert chance_of_red(server) > 0.5
            assert "brim_versions_refused_total 0" in server.ask("/metrics")[1]["text"]
            assert max(seconds) < 45.0
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(DEADLINE) == 0


@contextlib.contextmanager
def exporting_after(run: Run, folder: Path) -> Iterator[subprocess.Popen[str]]:
    until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
    with exporting(folder, run.directory.name) as process:
        yield process


def test_weights_ignore_deaths_and_arrival_of_parts(folder: Path) -> None:
    """Parts of any size, with bad rows: an epoch is the next 200 good rows."""
    sizes = [150, 400, 50, 200, 1]
    for number, rows in enumerate(sizes[:2]):
        add(folder, f"{number}.csv", red=number % 2, rows=rows, bad=3)
    digests = set()
    for name, workers, late in (("calm", "1", False), ("rough", "2", True)):
        faults = ("--faults", "kill rank 0 at step 3; kill rank 1 at step 9") if late else ()
        if late:
            for number in (2, 3, 4):
                (folder / "parts" / f"{number}.csv").unlink()
        with train(folder, name, "--workers", workers, "--epochs", "4", *faults) as run:
            if late:
                until(lambda run=run: bool(run.events("checkpoint")), "the first epoch", run)  # type: ignore[misc]
            for number in (2, 3, 4):
                add(folder, f"{number}.csv", red=number % 2, rows=sizes[number], bad=3)
            summary = run.finish()
            assert run.process.returncode == 0, run.err
        digests.add(summary["weights_sha256"])
        check_ledger(folder / name)
        assert summary["steps"] == 16
    assert len(digests) == 1


def _suspend(run: Run) -> None:
    Driver().call("suspend", str(run.directory))


@pytest.mark.parametrize(
    ("workers", "end"),
    long_after(
        2,
        [
            ("1", lambda run: os.kill(run.pid(run.members()[0]), signal.SIGTERM)),
            ("2", _suspend),
            ("1", _suspend),
            ("2", lambda run: run.process.send_signal(signal.SIGINT)),
        ],
    ),
    ids=["SIGTERM to the only worker", "suspend 2", "suspend 1", "Ctrl-C"],
)
def test_a_run_waiting_for_parts_can_end(
    folder: Path, workers: str, end: Callable[[Run], None]
) -> None:
    add(folder, "1.csv", red=0)
    with train(folder, "run", "--workers", workers, "--epochs", "2") as run:
        run.wait_for_step(4)
        start_time = time.monotonic()
        end(run)
        summary = run.finish()
    assert summary["exit"] == "suspended", run.err
    assert time.monotonic() - start_time < 50, "not after the 60 s that it would wait for a part"
    assert max(event["step"] for event in run.events("checkpoint")) == 4
    add(folder, "2.csv", red=1)
    Driver().call("resume", str(folder / "run"))
    check_ledger(folder / "run")


@pytest.mark.long
def test_a_run_waiting_for_parts_can_resize(folder: Path) -> None:
    add(folder, "1.csv", red=0)
    with train(folder, "run", "--workers", "1", "--epochs", "2") as run:
        run.wait_for_step(4)
        Driver().call("resize", str(run.directory), "2")
        until(lambda: len(run.members()) == 2, "the second worker", run)
        os.kill(run.pid(run.members()[0]), signal.SIGTERM)
        until(lambda: len(run.members()) == 1, "the first worker's end", run)
        add(folder, "2.csv", red=1)
        assert run.finish()["exit"] == "done", run.err
    check_ledger(folder / "run")


@pytest.mark.long
def test_a_missing_part_is_reported_and_resumable(folder: Path) -> None:
    add(folder, "1.csv", red=0)
    with train(folder, "run", "--workers", "1", "--epochs", "2", "--set", "patience=0.5") as run:
        run.finish()
    assert run.process.returncode != 0
    assert "no new part after 1.csv in 0.5 s" in run.err
    assert "brim resume" in run.err
    add(folder, "2.csv", red=1)
    Driver().call("resume", str(folder / "run"))
    assert [step["step"] for step in lines(folder / "run" / "steps.jsonl")] == list(range(1, 9))
