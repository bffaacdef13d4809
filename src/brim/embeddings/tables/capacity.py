"""The memory of a table that is full, and the check that this host has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from brim.domain.quantities import format_bytes
from brim.embeddings.tables.key_roster import Rules
from brim.errors import SpecError
from brim.host.control_groups import files_about_us
from brim.host.procfs import read_proc

_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


@dataclass(frozen=True, slots=True)
class Size:
    """The memory that a table takes when it is full.

    Args:
        dim: columns of a row.
        states: that an optimizer keeps of each, of the same size.
        rules: who has a row.
        dtype: of both.
    """

    dim: int
    states: int
    rules: Rules
    dtype: torch.dtype = torch.float32

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with the optimizer's state of it."""
        return self.dim * (1 + self.states) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all rows, and of their index.

        The rows that one step writes are logged beside, once more.
        """
        return self.row_bytes * self.rules.shape.all_places + self.rules.bytes


def available_bytes() -> int | None:
    """Return the memory that this process could get now; None where the system does not say."""
    try:
        fields = dict(line.split(":", 1) for line in read_proc("/proc/meminfo").splitlines())
        found = [int(fields["MemAvailable"].split()[0]) << 10]
    except (OSError, KeyError, ValueError):
        return None
    for limit, usage in _LIMITS:
        for maximum, used in zip(files_about_us(limit), files_about_us(usage), strict=False):
            try:
                found.append(int(maximum.read_text()) - int(used.read_text()))
            except (OSError, ValueError):  # "max": there is none
                continue
    return max(0, min(found))


def check_whole(name: str, size_bytes: int, available: int | None) -> None:
    """Check that an ordinary embedding fits into memory once more.

    While a job begins, a worker has its own, too.

    Args:
        name: of its parameter.
        size_bytes: of all rows, with what the optimizer keeps of them.
        available: bytes; None where nobody knows.

    Raises:
        SpecError: it does not.
    """
    if available is not None and size_bytes > available:
        raise SpecError(
            f"embedding weight {name!r}",
            got=f"{format_bytes(size_bytes)} in memory that workers share, beside the worker's own",
            need=f"no more than the {format_bytes(available)} of memory that this host has left",
            hint="brim.Embedding(dim, limit=ROWS) has no rows to begin with",
        )


def check_room(sizes: Sequence[tuple[str, Size]], available: int | None) -> None:
    """Check that embeddings fit into memory when they are full.

    Args:
        sizes: with the name of each.
        available: bytes; None where nobody knows.

    Raises:
        SpecError: they do not.
    """
    total = sum(size.bytes for _, size in sizes)
    if available is None or total <= available or not sizes:
        return
    name, size = max(sizes, key=lambda item: item[1].bytes)
    limit, available_left = size.rules.limit, available - total + size.bytes
    raise SpecError(
        f"limit={limit} of embedding {name!r}",
        got=f"tables of {format_bytes(total)} when they are full, {size.bytes / limit:.0f} bytes "
        "for each of its rows",
        need=f"no more than the {format_bytes(available)} of memory that this host has left",
        hint=f"limit={max(0, int(0.9 * limit * available_left / size.bytes))} would fit"
        if available_left > 0
        else "take fewer rows",
    )
