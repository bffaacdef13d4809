"""The copy that a checkpoint is written from: taken beside the next step, of the state as it was
before it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from brim.domain.checkpointing import Interval
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import Directory
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.state.checkpoint import Image, StateCopy, state_of
from brim.wire.messages import CheckpointDrafted, Publish

PATIENCE = 30.0


class Gate:
    """Holds back the copying of tensors until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open, self._copy = threading.Event(), np.copyto
        monkeypatch.setattr(np, "copyto", self._held)

    def open(self) -> None:
        self._open.set()

    def _held(self, place: Any, part: Any) -> None:
        assert self._open.wait(PATIENCE)
        self._copy(place, part)


def read(tree: Any, data: bytes | bytearray) -> Any:
    return state_of(Checkpoint(step=1, tree=tree, versions={}, data=data))


def test_images_hold_all_tensors_and_are_reused() -> None:
    def state(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return {
            "flag": torch.tensor([True, False, True]),
            "half": torch.rand(3).bfloat16(),
            "complex": torch.randn(2, dtype=torch.complex64).conj(),
            "turned": torch.randn(3, 2).t(),
            "step": torch.tensor(seed),
            "none": torch.zeros(0, 4),
            "double": torch.randn(2, 2, dtype=torch.float64),
        }

    image = Image()
    for seed in (1, 2):
        want = state(seed)
        found = read(image.take(want), image.data)
        assert all(torch.equal(found[name], part) for name, part in want.items())


def test_what_may_change_meanwhile_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, image = Gate(monkeypatch), Image()
    weight, buffer = torch.ones(4), torch.ones(4)
    tree, data = image.begin({"weight": weight, "buffer": buffer}, steady=[weight])
    buffer.zero_()
    assert not data.done()
    gate.open()
    found = read(tree, data.result(PATIENCE))
    assert torch.equal(found["buffer"], torch.ones(4))
    assert torch.equal(found["weight"], torch.ones(4))


def test_steps_overlap_the_copy_but_updates_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    spec = replace(spec_of_a_loner(), checkpoint_every=Interval(steps=1), keep=3, micro_batches=2)
    spec = replace(spec, audit=False)  # each batch comes once
    job = Job(network, torch.optim.Adam(network.parameters()), spec=spec, context=None)

    def tell(message: object) -> None:
        if isinstance(message, CheckpointDrafted):
            job.parts.checkpoints.permit(Publish(step=message.step, writers=[]))

    monkeypatch.setattr(job.parts.members, "tell", tell)
    job.parts.checkpoints.keep_in(str(tmp_path), writer="w1")
    gate, waited = Gate(monkeypatch), []
    wait = StateCopy.wait

    def open_and_wait(copy: StateCopy) -> None:
        waited.append((job.committed, len(batches)))
        gate.open()
        wait(copy)

    monkeypatch.setattr(StateCopy, "wait", open_and_wait)
    data = TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
    states_after: list[dict[str, Tensor]] = []
    batches: list[int] = []
    for batch in job.batches(data, global_batch_size=8, epochs=1):
        batches.append(job.committed)
        if job.step(nn.functional.mse_loss(network(batch.inputs), batch.target)) is not None:
            states_after.append({name: part.clone() for name, part in network.state_dict().items()})
    gate.open()  # where nobody waited: what is copied now is not what was to be kept
    job.parts.checkpoints.drain()
    assert waited[0] == (1, 4)  # not before both passes of the second step
    store = Store(Directory(tmp_path))
    assert 1 in store.steps()
    stored_model = state_of(store.load(1))["model"]
    assert all(torch.equal(stored_model[name], states_after[0][name]) for name in stored_model)
