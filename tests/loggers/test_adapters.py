"""TensorBoard, MLflow and W&B agree with the records, after processes that tell them were killed
with kill -9.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.domain.step_records import lasting
from brim.telemetry.history import read_history
from recorded_run import RecordedRun, spec

pytestmark = pytest.mark.e2e

Found = list[tuple[int, str, float]]


@contextlib.contextmanager
def telling(run_dir: Path, logger: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that tells a logger of a run; its standard input ends with the block."""
    command = [
        sys.executable,
        "-m",
        "brim.loggers",
        str(run_dir),
        logger,
        "--parent",
        str(os.getpid()),
    ]
    with (run_dir / "logger.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=run_dir,
            env={**os.environ, **environment},
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=300)


def written(place: Path) -> int:
    """When the file that says how far a logger is was last written."""
    return place.stat().st_mtime_ns if place.exists() else 0


def live_through_kills(
    run: RecordedRun, logger: str, *, kills: int, seed: int, **environment: str
) -> None:
    """A run of which a logger is told while it is made, by processes that are killed soon after
    they said something.
    """
    rng = random.Random(seed)
    place = run.run_dir / "loggers" / f"{logger}.json"
    run.begin()
    for _ in range(kills):
        run.train(rng.randint(5, 25))
        if rng.random() < 0.5:
            run.restore(rng.randint(max(0, run.step - 15), run.step))
        looks = {written(place)}
        with telling(run.run_dir, logger, **environment) as process:
            # It is written as the process begins, and as it begins to tell; between the two the
            # logger is loaded.
            entries_wanted = 1 + rng.choice([1, 2, 2, 2])
            deadline = time.monotonic() + 300
            while len(looks) < entries_wanted:
                assert process.poll() is None, (run.run_dir / "logger.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.001)
                looks.add(written(place))
            time.sleep(rng.choice([0.0, 0.002, 0.01, 0.05]))  # a part of its work, or all of it
            process.send_signal(signal.SIGKILL)
    run.train_to_end()
    run.end()
    with telling(run.run_dir, logger, **environment) as process:
        pass
    assert process.returncode == 0, (run.run_dir / "logger.log").read_text()


def assert_same(found: Found, run_dir: Path) -> None:
    history = read_history(run_dir)
    twice = {key: count for key, count in Counter((s, n) for s, n, _ in found).items() if count > 1}
    assert not twice
    loss = {step: value for step, name, value in found if name == "train/loss"}
    want = {step.step: step.loss for step in lasting(history.steps, history.restores)}
    assert set(loss) == set(want)
    auc = {step: value for step, name, value in found if name == "test/auc"}
    assert set(auc) == {event.step for event in history.epochs.values()}
    # An undone step's first value may stay where a logger takes nothing back: the fake's losses
    # differ, brim's do not.
    undone = {step.step for step in history.steps} - {
        step.step for step in history.steps if sum(s.step == step.step for s in history.steps) == 1
    }
    for step, value in want.items():
        assert step in undone or loss[step] == pytest.approx(value, rel=1e-6)


def in_tensorboard(run_dir: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [
        (event.step, tag, event.value)
        for tag in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(tag)
    ]


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    run = RecordedRun(tmp_path / "run", spec(epochs=3), samples=40_000)
    live_through_kills(run, "tensorboard", kills=8, seed=1)
    found = in_tensorboard(run.run_dir)
    assert_same(found, run.run_dir)
    history = read_history(run.run_dir)
    want = {step.step: step.loss for step in lasting(history.steps, history.restores)}
    # TensorBoard takes back what a restore undid: only what counts is shown.
    assert {s: v for s, n, v in found if n == "train/loss"} == pytest.approx(want, rel=1e-6)
    assert (
        len(list((run.run_dir / "tensorboard").iterdir())) > 4
    )  # most of those that were killed had begun to write


def in_mlflow(uri: str) -> Callable[[Path], Found]:
    def read(run_dir: Path) -> Found:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("brim")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
        assert run.data.params["epochs"] == "2"
        return [
            (metric.step, name, metric.value)
            for name in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, name)
        ]

    return read


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of its own packages, of one another
def test_mlflow_has_each_step_once_in_one_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    # Making its database takes MLflow longer than all else here, and a logger has a low priority.
    mlflow.MlflowClient(tracking_uri=uri).search_experiments()
    run = RecordedRun(tmp_path / "run", spec(epochs=2), samples=20_000)
    live_through_kills(run, "mlflow", kills=3, seed=2, MLFLOW_TRACKING_URI=uri)
    assert_same(in_mlflow(uri)(run.run_dir), run.run_dir)


def in_wandb(run_dir: Path) -> Found:
    """The rows of the newest file that W&B left offline, from its framing (that of LevelDB's log).

    The writer of a logger that was killed lives on for a moment, and may make its own file again.
    """
    import json

    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")  # made, untyped
    file = max((run_dir / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.parent.name)
    content = file.read_bytes()
    offset, whole, found = 7, b"", []
    while offset + 7 <= len(content):
        if 32768 - offset % 32768 < 7:
            offset += 32768 - offset % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        if kind == 0:
            break
        whole += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            record = records.Record.FromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                step = row.get("_step", record.history.step.num)
                found += [
                    (int(step), name, value)
                    for name, value in row.items()
                    if not name.startswith("_")
                ]
    return found


def test_wandb_has_each_step_once_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    run = RecordedRun(tmp_path / "run", spec(epochs=2), samples=20_000)
    live_through_kills(run, "wandb", kills=2, seed=3, WANDB_MODE="offline", WANDB_SILENT="true")
    assert_same(in_wandb(run.run_dir), run.run_dir)
