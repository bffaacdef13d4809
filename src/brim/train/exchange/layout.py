"""The layout of one contribution to a step: places of its tensors in a row of shared memory.

A contribution is what one block of micro-batches adds to a step: the gradients, what the buffers of
the network changed by, and which parameters were used at all. It is laid out in sections of one
dtype and one way to combine (`add` for floating point, `max` for whole numbers), so that any slice
of a row can be folded without knowing what it means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from brim.embeddings.rows import GradientRows, joined
from brim.errors import SpecError
from brim.tensors.raw import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a row, `[start, stop)` in bytes, both multiples of ALIGNMENT."""

    dtype: torch.dtype
    start: int
    stop: int

    def slice(self, index: int, count: int) -> tuple[int, int]:
        """The bytes `[start, stop)` of slice `index` of `count`."""
        lines = (self.stop - self.start) // ALIGNMENT
        low, high = lines * index // count, lines * (index + 1) // count
        return self.start + low * ALIGNMENT, self.start + high * ALIGNMENT


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Part of a row that may go out before the rest of it is there.

    Attributes:
        sections: of the row's sections.
        tensors: that lie in it, wholly or in part.
    """

    sections: tuple[Section, ...]
    tensors: tuple[int, ...]

    def slices(self, row: Tensor, index: int, count: int) -> list[Tensor]:
        """Slice `index` of `count` of its content, as tensors of one dimension."""
        bounds = [(section.dtype, *section.slice(index, count)) for section in self.sections]
        return [row[start:stop].view(dtype) for dtype, start, stop in bounds]


class _RowsPlace(NamedTuple):
    """The place of an embedding's rows in a row of memory, in bytes.

    There is room for all of them.

    In front are, for each slice of the rows that is there, its first place and how many it has.
    """

    slices: int
    ids: int
    values: int
    most: int  # rows
    shape: torch.Size  # of its weight
    dtype: torch.dtype


_MOST_SLICES = 4096  # workers of one host that may share the work of a fold
_INT64_BYTES = 8


class Layout:
    """The places of a list of tensors in a row.

    Args:
        like: tensors whose shapes and dtypes the contributions have.
        by_rows: weights of which a contribution has some rows: see `brim.embeddings.rows`.
        partitions: that the ids of each of these weights are in, if they are keys; else 0.
        gradients: how many of the first tensors are gradients, of which each is there by itself,
            the last one first as a rule.

    >>> layout = Layout([torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(5)])
    >>> layout.row_bytes, [section.dtype for section in layout.sections]
    (192, [torch.float32, torch.int64])
    """

    def __init__(
        self,
        like: Sequence[Tensor],
        by_rows: Sequence[Tensor] = (),
        partitions: Sequence[int] = (),
        *,
        gradients: int = 0,
    ) -> None:
        self._gradients = gradients
        self.partitions = list(partitions) or [0] * len(by_rows)
        self.device = like[0].device
        self.shapes = [tensor.shape for tensor in like]
        self.dtypes = [tensor.dtype for tensor in like]
        self.offsets = [0] * len(like)
        self.sections: list[Section] = []
        offset = 0
        for dtype in dict.fromkeys(self.dtypes):
            start = offset
            for index, tensor in enumerate(like):
                if tensor.dtype == dtype:
                    self.offsets[index] = offset
                    offset += _aligned(tensor.nbytes)
            self.sections.append(Section(dtype, start, offset))
        self._places: list[_RowsPlace] = []
        for weight in by_rows:
            ids = offset + 2 * _MOST_SLICES * _INT64_BYTES
            values = ids + _aligned(len(weight) * _INT64_BYTES)
            self._places.append(
                _RowsPlace(offset, ids, values, len(weight), weight.shape, weight.dtype)
            )
            offset = values + _aligned(weight.nbytes)
        self.row_bytes = offset

    @property
    def is_on_host(self) -> bool:
        """Return whether the tensors are in the host's memory, and not in that of a device."""
        return self.device.type == "cpu"

    def new_row(self) -> Tensor:
        """Return a row of zeros where the tensors are: uint8, [row_bytes]."""
        return torch.zeros(self.row_bytes, dtype=torch.uint8, device=self.device)

    @property
    def fingerprint(self) -> str:
        """The same for all workers of a job, or they do not train the same network."""
        tensors = [
            (str(dtype), tuple(shape))
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]
        by_rows = [(str(place.dtype), tuple(place.shape)) for place in self._places]
        parts = [by_rows, self.partitions] if any(self.partitions) else [by_rows]
        text = repr([tensors, *parts] if by_rows else tensors)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def views(self, row: Tensor) -> list[Tensor]:
        """The tensors that lie in a row (uint8, [row_bytes])."""
        result = []
        for shape, dtype, offset in zip(self.shapes, self.dtypes, self.offsets, strict=True):
            size = shape.numel() * dtype.itemsize
            result.append(row[offset : offset + size].view(dtype).view(shape))
        return result

    def slices(self, row: Tensor, index: int, count: int) -> list[Tensor]:
        """Slice `index` of `count` of every section of a row, as tensors of one dimension."""
        bounds = [(section.dtype, *section.slice(index, count)) for section in self.sections]
        return [row[start:stop].view(dtype) for dtype, start, stop in bounds]

    def pieces(self, size: int) -> list[RowPiece]:
        """Return the pieces of about so many bytes that a row is cut into, in their order.

        The last gradients come first, as a backward pass has them; the last piece is all that is
        no gradient. A large gradient is in several pieces; what is small as a whole is one.

        >>> layout = Layout([torch.zeros(16), torch.zeros(48), torch.zeros(1)], gradients=2)
        >>> [(each.sections[0].start, each.sections[0].stop) for each in layout.pieces(128)]
        [(128, 256), (0, 128), (256, 320)]
        """
        if all(section.stop <= size for section in self.sections):
            return [RowPiece(tuple(self.sections), tuple(range(len(self.dtypes))))]
        pieces: list[RowPiece] = []
        open_: dict[torch.dtype, tuple[Section, tuple[int, ...]]] = {}
        for index in reversed(range(self._gradients)):
            dtype, low = self.dtypes[index], self.offsets[index]
            high = low + _aligned(self.shapes[index].numel() * dtype.itemsize)
            section, tensors = open_.pop(dtype, (Section(dtype, high, high), ()))
            section, tensors = Section(dtype, low, section.stop), (*tensors, index)
            while section.stop - section.start >= size:
                cut = max(section.start, section.stop - _aligned(size))
                pieces.append(RowPiece((Section(dtype, cut, section.stop),), tensors))
                section, tensors = Section(dtype, section.start, cut), (index,)
            if section.stop > section.start:
                open_[dtype] = section, tensors
        pieces += [RowPiece((section,), tensors) for section, tensors in open_.values()]
        return [*pieces, self._rest()]

    def _rest(self) -> RowPiece:
        """The piece of all that is no gradient."""
        rest = range(self._gradients, len(self.dtypes))
        sections = []
        for section in self.sections:
            starts = [self.offsets[i] for i in rest if self.dtypes[i] == section.dtype]
            if starts:
                sections.append(Section(section.dtype, min(starts), section.stop))
        return RowPiece(tuple(sections), tuple(rest))

    # Rows of embeddings ---------------------------------------------------------------------------

    def put_rows(
        self,
        row: Tensor,
        tables: Sequence[GradientRows],
        *,
        slice: int = 0,
        offsets: Sequence[int] = (),
    ) -> None:
        """Write one slice of the rows of each embedding.

        Args:
            row: uint8, [row_bytes].
            slice: its number.
            offsets: of each embedding, an id that none of the slice is below, and none of the slices
                before it reaches.
        """
        for index, (place, rows) in enumerate(zip(self._places, tables, strict=True)):
            first, count = offsets[index] if offsets else 0, len(rows.ids)
            if first + count > place.most:
                raise SpecError(
                    "the ids of a step",
                    got=f"{first + count:,} distinct ones",
                    need=f"no more than {place.most:,} for one embedding",
                    hint="lower --global-batch-size",
                )
            ids, values = self._all_rows(row, place)
            ids[first : first + count].copy_(rows.ids)
            values[first : first + count].copy_(rows.values)
            self._slices(row, place)[slice] = torch.tensor([first, count])

    def rows(self, row: Tensor, *, slices: int = 1) -> list[GradientRows]:
        """Return the rows of each embedding that lie in a row of memory.

        They are views of it where there is one slice.
        """
        found = []
        for place in self._places:
            ids, values = self._all_rows(row, place)
            bounds = self._slices(row, place)[:slices].tolist()
            found.append(
                joined(
                    [
                        GradientRows(ids[first : first + n], values[first : first + n])
                        for first, n in bounds
                    ]
                )
            )
        return found

    def _all_rows(self, row: Tensor, place: _RowsPlace) -> tuple[Tensor, Tensor]:
        ids = row[place.ids : place.ids + place.most * _INT64_BYTES].view(torch.int64)
        size = place.shape.numel() * place.dtype.itemsize
        return ids, row[place.values : place.values + size].view(place.dtype).view(place.shape)

    def _slices(self, row: Tensor, place: _RowsPlace) -> Tensor:
        return (
            row[place.slices : place.slices + 2 * _MOST_SLICES * _INT64_BYTES]
            .view(torch.int64)
            .view(-1, 2)
        )

    @property
    def counts(self) -> list[int]:
        """Return how many rows each embedding has, or at most has in a step."""
        return [place.most for place in self._places]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
