"""One process trains Wide & Deep on Criteo and keeps its state in one of several ways; prints the
cost.

    python -m benchmarks.checkpoints.alone --path dac_sample.tsv --way brim --every 50 --steps 400

The loop is the same for all ways, one thread, one process: so the figures are those of the way
alone. `restore` times how a fresh process gets the state back.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_in_parts
from torch.distributed.checkpoint.state_dict_saver import async_save

from brim.data import fetch
from brim.domain.batch import Schedule
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.order import EpochOrder
from brim.embeddings.embedding import Embeddings
from brim.train.checkpoints import Checkpoints
from brim.train.params import ENVIRONMENT_VARIABLE
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization
from brim.wire.messages import CheckpointDrafted, Publish, WorkerMessage

BATCH = 512
SPEC = JobSpec(parameters={}, workers=WorkerRange(minimum=1, maximum=1))


def training_file() -> Any:
    from benchmarks.quality.plain import load

    return load("01-first-job/criteo.py")


class Loop:
    """The training loop that all ways share."""

    def __init__(self) -> None:
        self._job = training_file()
        torch.manual_seed(0)
        self.model = self._job.model()
        self.optimizer = self._job.optimizer(self.model)
        self.update: Callable[[], object] = self.optimizer.step
        self._dataset = self._job.dataset("train")
        size = len(self._dataset)
        self.schedule = Schedule(samples=size, global_batch_size=BATCH, epochs=1)
        self._order = EpochOrder(
            seed=0, epoch=0, size=size, block_size=getattr(self._dataset, "block_size", 1)
        )

    def step(self, number: int) -> None:
        start = number % (self.schedule.samples // BATCH) * BATCH
        inputs, target = fetch(self._dataset, self._order.samples(start, start + BATCH))
        self.optimizer.zero_grad()
        self._job.loss(self.model(inputs), target).backward()
        self.update()

    def tree(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def keeper(
    way: str, loop: Loop, directory: Path
) -> tuple[Callable[[int], None], Callable[[], None]]:
    """The function to call when a checkpoint is due, and the one that waits for its end."""
    if way == "torch.save":

        def save(step: int) -> None:
            fresh = directory / "checkpoint.new"
            with fresh.open("wb") as file:
                torch.save(loop.tree(), file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(directory / "checkpoint.pt")

        return save, lambda: None
    if way == "async_save":
        under_way: list[Any] = []

        def save_async(step: int) -> None:
            for future in under_way:
                future.result()  # one at a time, as with brim
            under_way[:] = [
                async_save(loop.tree(), checkpoint_id=directory / str(step), no_dist=True)
            ]

        def await_all() -> None:
            for future in under_way:
                future.result()

        return save_async, await_all
    checkpoints = brims(loop, directory)

    def keep(step: int) -> None:
        checkpoints.state.committed = step
        checkpoints._begin(patience=60.0)
        checkpoints.await_copy()  # the loop knows nothing of brim, and changes the state at once

    return (keep if way == "brim" else lambda step: None), checkpoints.drain


def brims(loop: Loop, directory: Path) -> Checkpoints:
    """A worker's checkpoints without a job around it; the answer of the master comes at once."""

    def tell(message: WorkerMessage) -> None:
        if isinstance(message, CheckpointDrafted):
            checkpoints.permit(Publish(step=message.step, writers=[]))

    optimization = Optimization(loop.model, [loop.optimizer])
    loop.update = optimization.step  # it refuses steps by hand
    state = TrainingState(
        loop.model, optimization, Embeddings(loop.model, [loop.optimizer], SPEC), spec=SPEC
    )
    state.schedule = loop.schedule
    checkpoints = Checkpoints(state, SPEC, context=None, tell=tell, listen=time.sleep)
    checkpoints.keep_in(str(directory), writer="w1")
    return checkpoints


def restored(way: str, loop: Loop, directory: Path) -> float:
    """Seconds from the file to a model and an optimizer that go on."""
    if way == "brim":
        checkpoints = brims(loop, directory)
        started = time.perf_counter()
        assert checkpoints.restore()[0]
        return time.perf_counter() - started
    started = time.perf_counter()
    if way == "torch.save":
        tree = torch.load(directory / "checkpoint.pt", weights_only=True)
    else:
        tree = loop.tree()
        load_in_parts(
            tree,
            checkpoint_id=max(directory.iterdir(), key=lambda path: int(path.name)),
            no_dist=True,
        )
    loop.model.load_state_dict(tree["model"])
    loop.optimizer.load_state_dict(tree["optimizer"])
    return time.perf_counter() - started


def measure(way: str, *, interval: int, steps: int, directory: Path) -> dict[str, Any]:
    loop = Loop()
    keep, settle = keeper(way, loop, directory)
    for number in range(20):
        loop.step(number)
    keep(0)  # first times: memory, imports, threads
    settle()
    pauses, started, cpu = [], time.perf_counter(), time.process_time()
    for number in range(1, steps + 1):
        loop.step(number)
        if number % interval == 0:
            due = time.perf_counter()
            keep(number)
            pauses.append(time.perf_counter() - due)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    settle()
    restores = [] if way == "none" else [restored(way, loop, directory) for _ in range(5)]
    return {
        "way": way,
        "step": seconds / steps,
        "cpu": cpu / steps,
        "pauses": pauses,
        "restores": restores,
        "bytes": sum(tensor.nbytes for tensor in _tensors(loop.tree())),
    }


def _tensors(tree: Any) -> list[torch.Tensor]:
    match tree:
        case torch.Tensor():
            return [tree]
        case dict():
            return [tensor for subtree in tree.values() for tensor in _tensors(subtree)]
        case list() | tuple():
            return [tensor for subtree in tree for tensor in _tensors(subtree)]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", required=True)
    parser.add_argument(
        "--way", required=True, choices=["none", "brim", "torch.save", "async_save"]
    )
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    os.environ[ENVIRONMENT_VARIABLE] = json.dumps({"path": arguments.path})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch tells that it is one process: it is meant to be
    with tempfile.TemporaryDirectory(prefix="brim-checkpoints-") as scratch:
        result = measure(
            arguments.way, interval=arguments.every, steps=arguments.steps, directory=Path(scratch)
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
