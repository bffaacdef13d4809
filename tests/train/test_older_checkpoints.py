"""A checkpoint of an older brim is gone on from as if nothing had changed.

Those in `checkpoints/` were written by real jobs of those versions: the one below, with a
checkpoint at the end of each of its two epochs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.membership import Loner
from brim.train.state.checkpoint import state_of
from brim.wire.messages import CheckpointDrafted, Publish, WorkerMessage

CHECKPOINTS = Path(__file__).parent / "checkpoints"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(ids)).squeeze(1)
        return found


def a_job(place: Path) -> Job:
    net = Net()
    job = Job(
        net, torch.optim.Adagrad(net.parameters(), lr=0.1), spec=spec_of_a_loner(0), context=None
    )

    class Permitting(Loner):
        def tell(self, message: WorkerMessage) -> None:
            if isinstance(message, CheckpointDrafted):
                job.parts.checkpoints.permit(Publish(step=message.step, writers=[]))

    job.parts.members = Permitting()
    job.parts.checkpoints.keep_in(str(place), writer="w2")
    return job


def train(job: Job) -> int:
    """The steps that it made."""
    ids = torch.arange(80).reshape(40, 2) % 20
    loss_before = None
    for batch in job.batches(
        TensorDataset(ids, (ids[:, 0] % 2).float()), global_batch_size=16, epochs=2
    ):
        loss_before = job.committed if loss_before is None else loss_before
        job.step((job.model(batch.inputs) - batch.target).square().mean())
    return 0 if loss_before is None else job.committed - loss_before


@pytest.mark.parametrize("format", [2])
def test_it_ends_as_that_brim_did(format: int, tmp_path: Path) -> None:
    old = CHECKPOINTS / f"format-{format}"
    shutil.copytree(old / "step-00000003", tmp_path / "step-00000003")
    job = a_job(tmp_path)
    assert train(job) == 3
    expected = state_of(Store(Directory(old)).load(6))
    check_weights(job, expected["model"])
    assert [table.name for table in Store(Directory(tmp_path)).load(6).tables] == ["table.weight"]
    manifest = json.loads((tmp_path / "step-00000006" / "manifest.json").read_bytes())
    assert manifest["format"] > format
    resumed = a_job(tmp_path)
    assert train(resumed) == 0
    check_weights(resumed, dict(job.model.named_parameters()), exactly=True)
    sums = [state["sum"] for state in expected["optimizer"]["state"].values()]
    (optimizer,) = resumed.parts.optimization.optimizers
    found = optimizer.state_dict()["state"].values()
    for state, expected_sum in zip(found, sums, strict=True):
        torch.testing.assert_close(state["sum"], expected_sum, rtol=1e-6, atol=1e-7)


def check_weights(job: Job, expected: Mapping[str, Tensor], *, exactly: bool = False) -> None:
    """Compare the weights of a job; `exactly` where both were computed on one kind of processor,
    on which the last bits depend.
    """
    weights = dict(job.model.named_parameters())
    for name, tensor_expected in expected.items():
        tolerance = 0.0 if exactly else 1e-6
        torch.testing.assert_close(weights[name], tensor_expected, rtol=tolerance, atol=tolerance)
