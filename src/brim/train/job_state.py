"""The state of a job on one worker: taken for a newcomer or a checkpoint, and put in place of another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from brim.errors import SpecError
from brim.train.checkpoint import latest_checkpoint, read_checkpoint, step_of, write_checkpoint
from brim.wire.messages import CheckpointMade

if TYPE_CHECKING:
    from brim.train.job import Job

__all__ = ["JobState"]


class JobState:
    """What must be the same on every member, in and out of a job."""

    def __init__(self, job: Job, directory: Path | None) -> None:
        self._job, self._directory = job, directory

    @property
    def is_kept(self) -> bool:
        """Whether there is anywhere to write checkpoints: a process by itself leaves that to its script."""
        return self._directory is not None

    def is_written(self) -> bool:
        """Whether the newest checkpoint is of the last committed step."""
        newest = latest_checkpoint(self._directory) if self._directory else None
        return newest is not None and step_of(newest) == self._job.committed

    def get(self) -> Any:
        job = self._job
        tensors = {**dict(job.model.named_parameters()), **dict(job.model.named_buffers())}
        return {
            "model": tensors,
            "optimizer": job.optimizer.state_dict(),
            "scheduler": None if job.scheduler is None else job.scheduler.state_dict(),
            "committed": job.committed,
            "evaluated": job.evaluated,
            "metrics": job.metrics,
            "micro_batches": job.spec.micro_batches,
            "seed": job.spec.seed,
        }

    def put(self, tree: Any) -> int:
        if tree is None:
            return self._job.committed
        job = self._job
        for key in ("micro_batches", "seed"):
            if tree[key] != getattr(job.spec, key):
                raise SpecError(
                    f"--{key.replace('_', '-')}", got=str(getattr(job.spec, key)), need=str(tree[key])
                )
        tensors = {**dict(job.model.named_parameters()), **dict(job.model.named_buffers())}
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(tree["model"][name])
        job.optimizer.load_state_dict(tree["optimizer"])
        if job.scheduler is not None:
            job.scheduler.load_state_dict(tree["scheduler"])
        job.committed, job.evaluated, job.metrics = tree["committed"], tree["evaluated"], tree["metrics"]
        job.contributions.begin()
        return job.committed

    def restore(self) -> tuple[int, str]:
        newest = latest_checkpoint(self._directory) if self._directory else None
        if newest is None:
            return self._job.committed, ""
        return self.put(read_checkpoint(newest)), str(newest)

    def write(self) -> CheckpointMade:
        assert self._directory is not None, "only a job under an agent writes checkpoints"
        started = time.perf_counter()
        written = write_checkpoint(self._directory, self._job.committed, self.get())
        seconds = time.perf_counter() - started
        return CheckpointMade(
            step=self._job.committed, path=written.path, size_bytes=written.size_bytes, seconds=seconds
        )
