"""An heir stores its state without permission, and the next life goes on from it where that
is on record.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from brim.domain.job import JobSpec, WorkerRange
from brim.domain.table_parts import Lineage
from brim.embeddings.table_file import RowTable
from brim.storage.checkpoints import Store
from brim.storage.file_stores import open_place
from brim.storage.heir import SUCCESSION
from brim.train.checkpoints import Checkpoints
from brim.train.state.job_state import TrainingState
from brim.wire.messages import CheckpointDrafted, WorkerMessage

SPEC = JobSpec(parameters={}, workers=WorkerRange(minimum=1, maximum=1))


class Counted:
    """A state that is as many steps old as its weights say."""

    def __init__(self, committed: int = 0) -> None:
        self.metrics: dict[str, float] = {}
        self.measured = self.unsound_since = None
        self.lineage = Lineage()
        self.tables: list[RowTable] = []
        self.keyed: set[str] = set()
        self.weights = nn.Parameter(torch.zeros(1000))
        self.asked: list[str] = []
        self.go_on(committed)

    @property
    def committed(self) -> int:
        return int(self.weights[0])

    def go_on(self, committed: int) -> None:
        self.weights.data.fill_(committed)

    def get(self) -> dict[str, Any]:
        return {"model": {"w": self.weights}, "optimizer": {"state": {}}}

    def start(self) -> None:
        pass

    def clear_tables(self) -> None:
        pass

    def be_alone(self, patience: float) -> None:
        self.asked.append("alone")

    def take_back(self) -> None:
        self.asked.append("take back")

    def keep_tables(self) -> None:
        pass

    def put(self, tree: dict[str, Any]) -> None:
        assert tree["model"]["w"].unique().numel() == 1, "a mixture of two states"
        self.weights.data.copy_(tree["model"]["w"])


def checkpoints_of(
    worker: str, state: Counted, place: Path, messages: list[WorkerMessage]
) -> Checkpoints:
    worker_checkpoints = Checkpoints(
        cast(TrainingState, state), SPEC, context=None, tell=messages.append, listen=time.sleep
    )
    worker_checkpoints.keep_in(str(place), writer=worker)
    return worker_checkpoints


@pytest.mark.parametrize(
    ("recorded", "start", "step"),
    [(6, "a", 6), (7, "a", 6), (5, "a", 0), (None, "a", 0), (6, "b", 0)],
)
def test_an_heirs_recorded_state_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: int | None, start: str, step: int
) -> None:
    """Another checkpoint of it is under way, and waits for a permission that will not come."""
    monkeypatch.setenv(SUCCESSION, "a")
    messages: list[WorkerMessage] = []
    state = Counted(5)
    heir = checkpoints_of("w1", state, tmp_path, messages)
    heir.begin(ends_epoch=False)
    heir.await_copy()
    state.go_on(6)
    heir.leave()
    assert state.asked == ["alone", "take back"]
    assert messages[0] == CheckpointDrafted(step=5)
    store = Store(open_place(str(tmp_path)))
    assert store.steps() == []
    monkeypatch.setenv(SUCCESSION, start)
    state = Counted()
    restored_from, problems = checkpoints_of("w3", state, tmp_path, messages).restore(recorded)
    assert (state.committed, bool(restored_from), problems) == (step, bool(step), [])
    assert store.drafts() == []
