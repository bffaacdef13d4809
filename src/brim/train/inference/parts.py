"""Results of an inference job, step by step.

They are files that are whole or absent, under `parts/` of the run.

A step's file is written before the step is committed, and holds the results of its chunks in their
order. So the files from the first on, as far as there is no gap, are all the state that such a job
has: if a worker dies, what was committed is not computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from brim.decoding import UNDECODABLE
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.storage.files import write_whole
from brim.wire.messages import Publish


class _StepFile(msgspec.Struct, frozen=True, array_like=True):
    samples: int
    sha256: str
    chunks: list[bytes]


class Parts:
    """The progress of an inference job, on which its members agree.

    Args:
        directory: of the files.
        samples: of the whole job; another number means other data.
    """

    def __init__(self, directory: Path, *, samples: int) -> None:
        self._directory, self._samples = directory, samples
        self.committed = 0  # steps

    @property
    def state(self) -> Parts:
        """The state of the job: the content of its files."""
        return self

    def get(self) -> Any:
        """The state as a tree."""
        return {"committed": self.committed}

    def put(self, tree: Any) -> None:
        """Take the state that `get` gave elsewhere."""
        self.committed = tree["committed"]

    def frozen(self) -> dict[str, Tensor]:
        """Return nothing: its tree has no tensors."""
        return {}

    def restore(self, recorded: int | None = None) -> tuple[str, list[str]]:
        """Count the files that are there.

        Return their directory, if there are any, and the problem of one.

        Raises:
            SpecError: they are of other data.
        """
        self.committed, problems = 0, []
        while self._file(self.committed).exists():
            try:
                self._read(self.committed)
            except EnvironmentFault as damaged:
                problems.append(str(damaged))
                break
            self.committed += 1
        return str(self._directory) if self.committed else "", problems

    def catch_up(self, recorded: int) -> None:
        """Do nothing: the state of this worker is its own."""

    def now(self, *, ahead: bool = False) -> None:
        """Do nothing: every committed step is written."""

    def leave(self) -> None:
        """Do nothing, as `now`."""

    def permit(self, answer: Publish) -> None:
        """Do nothing: no permission is needed.

        All workers that write a step's file write the same.
        """

    def keep(self, step: int, chunks: list[bytes]) -> None:
        """Write the results of a step that is about to be committed.

        Raises:
            EnvironmentFault: the disk did not take it.
        """
        content = msgspec.msgpack.encode(_StepFile(self._samples, _checksum(chunks), chunks))
        try:
            self._directory.mkdir(exist_ok=True)
            write_whole(self._file(step), content)
        except OSError as error:
            raise EnvironmentFault(f"cannot write {self._file(step)}: {error.strerror}") from error

    def chunks(self) -> Iterator[bytes]:
        """All results in order.

        Raises:
            EnvironmentFault: a file is missing or damaged.
        """
        for step in range(self.committed):
            yield from self._read(step)

    def _file(self, step: int) -> Path:
        return self._directory / f"step-{step + 1:08d}"

    def _read(self, step: int) -> list[bytes]:
        path = self._file(step)
        try:
            content = msgspec.msgpack.decode(path.read_bytes(), type=_StepFile)
        except (OSError, *UNDECODABLE) as error:
            raise EnvironmentFault(f"{path} cannot be read: {error}") from error
        if content.sha256 != _checksum(content.chunks):
            raise EnvironmentFault(f"{path} is damaged: it does not have its own checksum")
        if content.samples != self._samples:
            raise SpecError(
                "the data",
                got=counted(self._samples, "row"),
                need=f"the {content.samples:,} that this job began with",
                hint="start a new job for other data",
            )
        return content.chunks


def _checksum(chunks: list[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(f"{len(chunk)}\n".encode())
        digest.update(chunk)
    return digest.hexdigest()
