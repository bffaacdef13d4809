"""The possible results of a training file, and the messages on others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from brim.domain.job import JobSpec, WorkerRange
from brim.errors import SpecError, UserCodeError
from brim.train.entry import training_file
from brim.train.entry.training_file import Prepared, load, prepare, train
from brim.worker import warm

FILE = """
import torch
from torch.nn import functional

def model(): return torch.nn.Linear(2, 1)
def dataset(split): return [(torch.zeros(2), torch.zeros(1))] * 16 if split == "train" else None
loss = functional.mse_loss
def optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.1)
"""


def spec(folder: Path, changed: str = "") -> JobSpec:
    file = folder / "training.py"
    file.write_text(FILE + changed)
    return JobSpec(file=str(file), parameters={}, workers=WorkerRange.parse("1"), device="cpu")


def test_a_model_that_is_made_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"model: got a Linear, need a function") as refusal:
        load(spec(tmp_path, "model = torch.nn.Linear(2, 1)\n").file)
    assert refusal.value.hint == "def model(): return …"


def test_a_file_is_prepared_once_for_all_workers(tmp_path: Path) -> None:
    prepared = warm.prepare_file(spec(tmp_path))
    assert isinstance(prepared, Prepared)
    assert prepared.test is None
    assert all(parameter.grad is None for parameter in prepared.model.parameters())
    assert not prepared.optimizer.state


def test_gpu_jobs_prepare_only_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "asked"
    program = f"""
def dataset(split):
    with open({str(marker)!r}, "a") as file: print(split, file=file)
    return [(torch.zeros(2), torch.zeros(1))] * 16 if split == "train" else None
def model():
    with open({str(marker)!r}, "a") as file: print("model", file=file)
    return torch.nn.Linear(2, 1)
"""
    job = spec(tmp_path, program)
    with monkeypatch.context() as patched:
        patched.setattr(warm, "device_of", lambda _: torch.device("cuda"))
        prepared = warm.prepare_file(job)
    assert isinstance(prepared, warm.FileAndData)
    assert marker.read_text().split() == ["train", "test"]
    assert isinstance(prepared.prepare(job), Prepared)
    assert marker.read_text().split() == ["train", "test", "model"]


@pytest.mark.filterwarnings("default::UserWarning")
def test_warnings_of_torch_are_kept_for_the_user(tmp_path: Path) -> None:
    broadcast = "def loss(output, target): return functional.mse_loss(output, target[:, 0])\n"
    prepared = warm.prepare_file(spec(tmp_path, broadcast))
    assert isinstance(prepared, Prepared)
    (note,) = prepared.notes
    assert note.startswith("training.py:")
    assert "will likely lead to incorrect results due to broadcasting" in note


def test_files_may_request_separate_loading(tmp_path: Path) -> None:
    assert warm.prepare_file(spec(tmp_path, "preload = False\n")) is None


@pytest.mark.parametrize(
    ("result_text", "scheduled", "interval"),
    [
        ("made", False, None),
        ("(made,)", False, None),
        ("(made, torch.optim.lr_scheduler.StepLR(made, 1))", True, None),
        ("(made, torch.optim.lr_scheduler.StepLR(made, 1), 'step')", True, "step"),
    ],
)
def test_an_optimizer_may_come_with_a_scheduler(
    tmp_path: Path, result_text: str, scheduled: bool, interval: str | None
) -> None:
    changed = (
        "def optimizer(model):\n    made = torch.optim.SGD(model.parameters(), lr=0.1)\n    "
        f"return {result_text}\n"
    )
    job = spec(tmp_path, changed)
    prepared = prepare(load(job.file), job)
    assert isinstance(prepared.optimizer, torch.optim.SGD)
    assert (prepared.scheduler is not None, prepared.scheduler_interval) == (scheduled, interval)


@pytest.mark.parametrize(
    ("changed", "field", "actual"),
    [
        ("def model(): return 7\n", "model()", "an int"),
        ("def model(): return torch.nn.Sequential()\n", "optimizer", ""),
        ("def optimizer(model): return 0.1\n", "optimizer(model)", "a float"),
        (
            "def optimizer(model): return torch.optim.SGD(model.parameters()), None, 'week'\n",
            "optimizer(model)",
            "week",
        ),
        ("def loss(o, t): return (o - t) ** 2\n", "loss(output, target)", "shape [64, 1]"),
        ("def loss(o, t): return 0.5\n", "loss(output, target)", "a float"),
        (
            "def optimizer(model): return torch.optim.LBFGS(model.parameters())\n",
            "optimizer(model)",
            "LBFGS",
        ),
        (
            "def optimizer(model):\n    made = torch.optim.SGD(model.parameters())\n"
            "    return made, torch.optim.lr_scheduler.ReduceLROnPlateau(made), 'speed'\n",
            "ReduceLROnPlateau",
            "'speed'",
        ),
        (
            "class Odd(torch.optim.SGD):\n    def step(self): raise KeyError('theirs')\n"
            "def optimizer(model): return Odd(model.parameters())\n",
            "theirs",
            "KeyError",
        ),
    ],
)
def test_mismatches_are_told_before_start(
    tmp_path: Path, changed: str, field: str, actual: str
) -> None:
    with pytest.raises((SpecError, UserCodeError)) as caught:
        warm.prepare_file(spec(tmp_path, changed))
    assert field in str(caught.value)
    assert actual.replace("64", "16") in str(caught.value)


ROWS = "def dataset(split): return [(torch.zeros(2), torch.zeros(1))] * {rows}\n"
METRICS = "import brim\ndef metrics(): return {'error': brim.metrics.mean_squared_error()}\n"
DICTS = """
class Two(torch.nn.Linear):
    def forward(self, inputs): return {'score': super().forward(inputs)}
def model(): return Two(2, 1)
def loss(output, target): return functional.mse_loss(output['score'], target)
"""
NORM = "def model(): return torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))\n"
OWN = """
class Own:
    def observe(self, output, target): return str(output['score'].sum()).encode()
    def result(self, states): return float(len(states))
def metrics(): return {'own': Own()}
"""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (ROWS.format(rows=16) + DICTS + METRICS, ["metrics(): got an output that is a "
                                                  "dict", "of your own"]),
        (ROWS.format(rows=16) + METRICS + "def model(): return torch.nn.Linear(2, 3)\n"
         "def loss(output, target): return output.mean()\n", ["metrics(): got an output of shape "
                                                              "[2, 3]"]),
        (ROWS.format(rows=16) + DICTS + OWN.replace("score", "scores"), ["KeyError: 'scores'", "in observe"]),
        (ROWS.format(rows=521) + NORM, ["--global-batch-size: got 512", "521 samples", "BatchNorm",
                                        "--global-batch-size 521"]),
        (ROWS.format(rows=521) + "def loss(o, t): return o.mean() * len(o.squeeze())\n",
         ["a micro-batch of 1 sample, as there is in the last step", "0-d tensor"]),
    ],
    ids=["dict", "shape", "own metric", "batch norm", "squeeze"],
)  # fmt: skip
def test_what_would_fail_only_later_is_tried_first(
    tmp_path: Path, changed: str, words: list[str]
) -> None:
    with pytest.raises((SpecError, UserCodeError)) as caught:
        warm.prepare_file(spec(tmp_path, changed))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "changed", [ROWS.format(rows=16) + DICTS + OWN, ROWS.format(rows=528) + NORM]
)
def test_any_outputs_and_micro_batches_work(tmp_path: Path, changed: str) -> None:
    assert warm.prepare_file(spec(tmp_path, changed)) is not None


OF_LOADERS = """
import brim
from torch.utils.data import DataLoader
POINTS = [(torch.full((2,), float(i)), torch.zeros(1)) for i in range(20)]
def dataset(split): return DataLoader(POINTS, batch_size=10, shuffle=split == "train")
def metrics(): return {"error": brim.metrics.mean_squared_error()}
"""


def test_a_file_may_give_dataloaders(tmp_path: Path) -> None:
    job_spec = spec(tmp_path, OF_LOADERS)
    prepared = warm.prepare_file(job_spec)
    assert isinstance(prepared, Prepared)
    job = train(prepared, job_spec, None)
    assert job.committed == 2
    points = torch.arange(20.0).reshape(20, 1).expand(20, 2)
    expected = job.model(points).square().mean().item()
    assert job.parts.state.metrics["error"] == pytest.approx(expected, rel=1e-5)


LARGE_EMBEDDING = """
class Rows(torch.nn.Embedding):
    by_rows = True
    def forward(self, ids): return super().forward(ids)
    def reset_parameters(self): torch.nn.init.normal_(self.weight, std=0.1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Rows(1000, 4)
        self.out = torch.nn.Linear(4, 1)
    def forward(self, ids):
        return {output}
def model(): return Net()
def dataset(split): return [(torch.tensor([1, 2]), torch.zeros(1))] * 16 if split == "train" else None
def optimizer(model): return torch.optim.Adagrad(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    "output", ["self.out(self.rows(ids).sum(1))", "self.rows(ids).sum((1, 2))[:, None]"]
)
def test_large_embedding_rows_are_not_copied(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_file, "_MIN_SHARED_BYTES", 1000 * 4 * 4)
    looked_up: set[int] = set()

    def forward(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        looked_up.add(self.weight.data_ptr())
        return torch.nn.functional.embedding(ids, self.weight)

    monkeypatch.setattr(torch.nn.Embedding, "forward", forward)
    prepared = warm.prepare_file(spec(tmp_path, LARGE_EMBEDDING.format(output=output)))
    assert isinstance(prepared, Prepared)
    weight = prepared.model.get_parameter("rows.weight")
    assert isinstance(weight, torch.Tensor)
    assert looked_up == {weight.data_ptr()}
    assert weight.requires_grad
    assert not prepared.optimizer.state[weight]["sum"].any()
    assert not prepared.optimizer.state[weight]["step"]
