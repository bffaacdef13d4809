"""The state of a job on one worker: taken for a newcomer or a checkpoint, and put in place of another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.storage.checkpoints import newest_sound, stored
from brim.train.checkpoint import state_of, write_checkpoint
from brim.wire.messages import CheckpointMade

__all__ = ["JobState"]


class JobState:
    """What must be the same on every member of a job.

    Args:
        model: the network, with its buffers.
        optimizer: over its parameters.
        scheduler: of the learning rate, or None.
        spec: of the job; what decides the bits must not change between its lives.
        directory: of its checkpoints, or None for a process by itself, which leaves them to its script.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any,
        spec: JobSpec,
        directory: Path | None,
    ) -> None:
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._spec, self._directory = spec, directory
        self.committed = 0  # steps
        self.evaluated = 0  # epochs
        self.metrics: dict[str, float] = {}

    @property
    def is_kept(self) -> bool:
        """Whether there is anywhere to write checkpoints."""
        return self._directory is not None

    def is_written(self) -> bool:
        """Whether there is a checkpoint of the last committed step."""
        newest = stored(self._directory)[-1:] if self._directory else []
        return [path.name for path in newest] == [f"step-{self.committed:08d}"]

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def get(self) -> Any:
        """The state as a tree; its tensors are the network's own, not copies."""
        return {
            "model": self._tensors(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "committed": self.committed,
            "evaluated": self.evaluated,
            "metrics": self.metrics,
            "micro_batches": self._spec.micro_batches,
            "seed": self._spec.seed,
        }

    def put(self, tree: Any) -> None:
        """Take the state that `get` gave elsewhere.

        Raises:
            SpecError: it is of a job that would give other bits.
        """
        for key in ("micro_batches", "seed"):
            if tree[key] != getattr(self._spec, key):
                field = f"--{key.replace('_', '-')}"
                raise SpecError(field, got=str(getattr(self._spec, key)), need=str(tree[key]))
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tree["model"][name])
        self._optimizer.load_state_dict(tree["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(tree["scheduler"])
        self.committed, self.evaluated, self.metrics = tree["committed"], tree["evaluated"], tree["metrics"]

    def restore(self) -> tuple[str, list[str]]:
        """Take the newest sound checkpoint, or stay as at the start where there never was one.

        Returns:
            The path of the checkpoint, or nothing; and what is wrong with newer ones.

        Raises:
            SpecError: there are checkpoints, and all are damaged.
        """
        if self._directory is None:
            return "", []
        found, problems = newest_sound(self._directory)
        if found is None and problems:
            raise SpecError(
                str(self._directory),
                got="only damaged checkpoints: " + "; ".join(problems),
                need="one that is whole",
                hint="mend the files, or start again in another --run-dir",
            )
        if found is None:
            return "", []
        path, checkpoint = found
        self.put(state_of(checkpoint))
        return str(path), problems

    def write(self) -> CheckpointMade:
        """Write a checkpoint and say which."""
        assert self._directory is not None, "only a job under an agent writes checkpoints"
        started = time.perf_counter()
        path, size = write_checkpoint(self._directory, self.committed, self.get())
        seconds = time.perf_counter() - started
        return CheckpointMade(step=self.committed, path=str(path), size_bytes=size, seconds=seconds)
