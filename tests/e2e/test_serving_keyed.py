"""`brim serve` with a `brim.Embedding`: rows that come and go from version to version."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from brim.serving.bundle import changed, open_bundle
from brim.serving.rows import open_change
from brim_lab.driver import Driver
from e2e.running import lines, train, until
from e2e.test_serving import Server, serving
from e2e.test_using_a_model import use

pytestmark = pytest.mark.e2e

FILE = """
import torch
from functools import cache
from torch import nn
import brim
from brim import data

COLUMNS = [data.hashed("user", buckets=1 << 28), data.hashed("item", buckets=1 << 28), data.numeric("size")]


@cache
def dataset(split):
    return data.csv(brim.param("path", ""), columns=COLUMNS, target=data.target("sold")) if split == "train" else None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = brim.Embedding(8, limit=5000, init="normal", scale=0.3, admit_after=2, expire_after=6)
        self.out = nn.Linear(17, 1)

    def forward(self, inputs):
        rows = self.rows(inputs["ids"]).flatten(1)
        return self.out(torch.cat([rows, inputs["numbers"]], 1)).squeeze(1)


def model():
    return Model()


def predict(output):
    return {"sold": output.sigmoid()}


def loss(output, target):
    return nn.functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.1)
"""


def _write_rows(path: Path, count: int, *, seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        f"u{int(chance.random() ** 3 * 150)},i{int(chance.random() ** 2 * 80)},{row % 7},{row % 2}"
        for row in range(count)
    ]
    path.write_text("user,item,size,sold\n" + "\n".join(rows) + "\n")


def _brim(*words: str) -> None:
    Driver().call(*words)


def _predicted(folder: Path, checkpoint: str, rows: Path) -> npt.NDArray[np.float32]:
    """The output of `brim predict` with a checkpoint."""
    name = Path(checkpoint).name
    output = folder / f"{name}.parquet"
    use(
        folder / f"job-{name}", "predict", checkpoint, "--input", str(rows), "--output", str(output)
    )
    found: npt.NDArray[np.float32] = pq.read_table(output).column("sold").to_numpy()
    return found


def _answered(server: Server, rows: Path) -> npt.NDArray[np.float32]:
    with rows.open() as file:
        sent = [
            {name: cell for name, cell in row.items() if name != "sold"}
            for row in csv.DictReader(file)
        ]
    return np.array(server.ask(body={"rows": sent})[1]["predictions"]["sold"], np.float32)


def test_keyed_bundles_equal_brim_predict_exactly(tmp_path: Path) -> None:
    file, rows, asked_file, run = (
        tmp_path / name for name in ("file.py", "rows.csv", "asked.csv", "run")
    )
    file.write_text(FILE)
    _write_rows(rows, 400, seed=1)
    _write_rows(asked_file, 300, seed=2)  # with users whom nobody has seen
    train(
        run,
        str(file),
        *(
            "--set",
            f"path={rows}",
            "--workers",
            "2",
            "--epochs",
            "3",
            "--global-batch-size",
            "50",
            "--keep",
            "9",
        ),
    )
    checkpoints = [
        line["path"] for line in lines(run / "events.jsonl") if line["kind"] == "checkpoint"
    ]
    assert len(checkpoints) == 3
    expected = [_predicted(tmp_path, checkpoint, asked_file) for checkpoint in checkpoints]
    assert len({prediction.tobytes() for prediction in expected}) == 3
    made_folder, watched = tmp_path / "made", tmp_path / "watched"
    made_folder.mkdir()
    watched.mkdir(mode=0o755)
    _brim("export", checkpoints[0], "--output", str(made_folder / "1"), "--format", "bundle")
    for number in (2, 3):
        base = str(made_folder / str(number - 1))
        output = ("--output", str(made_folder / str(number)))
        _brim("export", checkpoints[number - 1], *output, "--format", "delta", "--since", base)
    _brim("export", checkpoints[2], "--output", str(tmp_path / "whole"), "--format", "bundle")
    shutil.move(made_folder / "1", watched / "1")
    with serving(watched, tmp_path / "log") as server:
        assert np.array_equal(_answered(server, asked_file), expected[0])
        for number in (2, 3):
            version = server.version
            shutil.copytree(made_folder / str(number), watched / f".{number}")
            (watched / f".{number}").rename(watched / str(number))
            until(lambda version=version: server.version != version, "the delta")  # type: ignore[misc]
            assert np.array_equal(_answered(server, asked_file), expected[number - 1])
        assert "not served" not in server.said()
    _check_that_expired_rows_are_gone(watched, made_folder, tmp_path / "whole")


def _check_that_expired_rows_are_gone(watched: Path, made_folder: Path, whole: Path) -> None:
    model = open_bundle(watched / "1")
    assert model.manifest.program, "it is a traced program, without code"
    keys_before = set(model.sides.now["model.rows.weight"].keys.tolist())
    removed_keys = set(open_change(made_folder / "2" / "rows-0.safetensors").removed.tolist())
    assert removed_keys, "rows expire between two versions"
    assert removed_keys <= keys_before
    model = changed(model, made_folder / "2")
    assert not removed_keys & set(model.sides.now["model.rows.weight"].keys.tolist())
    model = changed(model, made_folder / "3")
    keys_after, bundled = (
        model.sides.now["model.rows.weight"],
        open_bundle(whole).sides.now["model.rows.weight"],
    )
    assert keys_after.keys.tolist() == bundled.keys.tolist()
    assert keys_after.values.numpy().tobytes() == bundled.values.numpy().tobytes()
