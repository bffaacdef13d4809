"""Files that weights lie in: mapped by libraries of safetensors, and in memory once a host.

A mapping is private, so that no process changes a file by its weights. But a program that writes to
the file changes weights here, but for pages that this process has written to.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file that is mapped, as it was when it was looked at.

    Args:
        facts: its device, number, size and time of change.
    """

    path: str
    facts: tuple[int, int, int, int]

    @property
    def has_changed(self) -> bool:
        """Return whether it was written to; one that another took the place of was not."""
        with contextlib.suppress(OSError):
            facts = _facts_of(self.path)
            return facts[:2] == self.facts[:2] and facts != self.facts
        return False


def files_behind(tensors: Mapping[str, Tensor]) -> dict[str, MappedFile]:
    """Return the file that the memory of each tensor is mapped from, where that is one, by name."""
    areas = _mapped_areas()
    starts = [start for start, _, _ in areas]
    found: dict[str, MappedFile] = {}
    for name, tensor in tensors.items():
        address = tensor.data_ptr() if tensor.is_cpu else 0
        place = bisect_right(starts, address) - 1
        if place >= 0 and address < areas[place][1]:
            found[name] = areas[place][2]
    return found


def _mapped_areas() -> list[tuple[int, int, MappedFile]]:
    """Return the first address of each part of a file in memory, that behind it, and the file."""
    areas: list[tuple[int, int, MappedFile]] = []
    files: dict[tuple[str, str], MappedFile | None] = {}
    with contextlib.suppress(OSError), _MAPS.open(errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            addresses, _, _, device, number, *path = line.rstrip("\n").split(maxsplit=5)
            if number == "0" or not path:
                continue
            key = (path[0], f"{device} {number}")
            if key not in files:
                files[key] = _file_at(path[0], int(number))
            if (file := files[key]) is not None:
                start, end = (int(address, 16) for address in addresses.split("-"))
                areas.append((start, end, file))
    return areas


def _file_at(path: str, number: int) -> MappedFile | None:
    """Return the file, unless another one is at its path, or none."""
    with contextlib.suppress(OSError):
        facts = _facts_of(path)
        if facts[1] == number:
            return MappedFile(path=path, facts=facts)
    return None


def _facts_of(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
