"""The datasets that a training loop takes batches from.

Held in memory, or read by row group as it goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from brim.data.batches import Indices
from brim.data.encoding import EncodedRows, Encoder
from brim.data.files import Paths
from brim.data.sources import Source
from brim.data.survey import Survey
from brim.data.typed import RowGroup

_CACHED_BLOCKS = 3
Sample = tuple[dict[str, Tensor], Tensor]


class Opener(Protocol):
    """Reads other files as the columns of a dataset see them."""

    @property
    def source(self) -> Source: ...

    @property
    def encoder(self) -> Encoder: ...

    @property
    def negatives(self) -> float: ...

    def over(self, path: Paths, *, train: bool) -> Columnar: ...

    def inputs_of(self, path: Paths) -> Columnar: ...


class Columnar(Dataset[Sample]):
    """The rows of a table as inputs and a target, by index or by batch.

    A batch's inputs are a dict with `ids` int64 [B, F] (the fields' ids do not overlap) and
    `numbers` float32 [B, N]. A key is missing if there are no columns of that kind. The target is
    [B], or [B, T] of a list of targets.

    Attributes:
        vocabulary_size: ids over all fields.
        fields: ids of a row (F): one for each categorical column, `length` for each sequence.
        sequences: where the ids of sequences lie among them.
        numbers: numeric columns (N).
        negatives: share of the negatives that were kept to train on; 1 without `negatives=`.
        source: the files it reads.
        block_size: samples that are cheap to read together; 1 where any order is.
    """

    block_size = 1

    def __init__(self, opener: Opener, survey: Survey | None, keeps: object = None) -> None:
        self._keeps = keeps  # lives as long as this dataset does
        self._opener, self._survey = opener, survey
        self.encoder = opener.encoder
        self.vocabulary_size = self.encoder.vocabulary_size
        self.fields = self.encoder.fields
        self.sequences = self.encoder.sequences
        self.numbers = self.encoder.numbers
        self.negatives = opener.negatives
        self.source = opener.source

    @property
    def survey(self) -> Survey:
        """The results of reading all rows once."""
        assert self._survey is not None
        return self._survey

    @property
    def quarantined(self) -> int:
        """Number of bad rows that were left out, over all splits."""
        return self.survey.quarantine.count

    @property
    def quarantine_path(self) -> Path | None:
        """The file with the bad rows, or the folder if there are several.

        None if there are no bad rows.
        """
        return self.survey.quarantine.path

    def over(self, path: Paths, *, train: bool = False) -> Columnar:
        """Return all samples of other files, encoded as this dataset is.

        Means and vocabularies are those of this dataset.

        Args:
            path: as for `brim.data.csv`; the suffix decides the file format.
            train: whether they are to train on, so that `negatives=` leaves some out.

        Raises:
            SpecError: a file or column is missing or not as described, or there are no rows.
        """
        return self._opener.over(path, train=train)

    def inputs_of(self, path: Paths) -> Columnar:
        """Like `over`, for prediction: without a target, and ignoring `keep=`."""
        return self._opener.inputs_of(path)

    def example(self, count: int) -> dict[str, Tensor]:
        """Return placeholder inputs for inspecting a model.

        Their names, shapes and types are right.
        """
        inputs = {}
        if self.fields:
            inputs["ids"] = torch.zeros(count, self.fields, dtype=torch.int64)
        if self.numbers:
            inputs["numbers"] = torch.zeros(count, self.numbers)
        return inputs

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        inputs, target = self.take(np.array([index % len(self)]))
        return {name: part[0] for name, part in inputs.items()}, target[0]

    def take(self, indices: Indices) -> Sample:
        """Return the collated batch of these samples, in this order.

        `indices` are int64 [B], each in [0, len).
        """
        raise NotImplementedError

    def _batch(self, block: EncodedRows, rows: Tensor) -> Sample:
        inputs = {}
        if self.fields:
            inputs["ids"] = block.ids.index_select(0, rows).long()
        if self.numbers:
            inputs["numbers"] = block.numbers.index_select(0, rows)
        return inputs, block.target.index_select(0, rows)


def columnar_in(dataset: Any) -> Columnar | None:
    """The table behind a dataset, or behind its samples; None where there is none."""
    found = dataset if isinstance(dataset, Columnar) else getattr(dataset, "columnar", None)
    return found if isinstance(found, Columnar) else None


class InMemory(Columnar):
    """All rows encoded, in three tensors; a forked worker shares them."""

    def __init__(
        self, opener: Opener, survey: Survey, blocks: Sequence[EncodedRows], *, keeps: object = None
    ) -> None:
        super().__init__(opener, survey, keeps)
        self._block = blocks[0] if len(blocks) == 1 else _joined(blocks)

    def __len__(self) -> int:
        return len(self._block.target)

    def take(self, indices: Indices) -> Sample:
        return self._batch(self._block, torch.from_numpy(indices))


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """A row group and which of its rows are samples, one bit per row."""

    group: RowGroup
    kept: npt.NDArray[np.uint8]
    count: int

    def encode(self, encoder: Encoder) -> EncodedRows:
        mask = np.unpackbits(self.kept, count=self.group.size).astype(bool)
        return encoder.encode(self.group.read(), mask)


class ByGroup(Columnar):
    """Row groups read when a sample of theirs is asked for; the last few stay in memory.

    Take samples in the order of `EpochOrder(..., block_size=dataset.block_size)`: any other reads
    each group many times. A block may lie across two or more groups where their sizes differ; the
    cache is so large that no group is read twice for a block, or for the one after it.
    """

    def __init__(self, opener: Opener, survey: Survey, groups: Sequence[PackedGroup]) -> None:
        super().__init__(opener, survey)
        self._groups = [group for group in groups if group.count]
        self._ends = np.cumsum([group.count for group in self._groups])
        self.block_size = max(group.count for group in self._groups)
        self._cache: OrderedDict[int, EncodedRows] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, indices: Indices) -> Sample:
        group_numbers = np.searchsorted(self._ends, indices, side="right")
        needed = np.unique(group_numbers).tolist()
        parts = []
        for number in needed:
            first = int(self._ends[number]) - self._groups[number].count
            rows = torch.from_numpy(indices[group_numbers == number] - first)
            parts.append(self._batch(self._load(number), rows))
        if len(parts) == 1:
            return parts[0]
        # Parts come group by group; put the samples back in the order asked for.
        back = torch.from_numpy(np.argsort(np.argsort(group_numbers, kind="stable"), kind="stable"))
        inputs = {name: torch.cat([part[0][name] for part in parts])[back] for name in parts[0][0]}
        return inputs, torch.cat([part[1] for part in parts])[back]

    def _load(self, number: int) -> EncodedRows:
        if number not in self._cache:
            self._cache[number] = self._groups[number].encode(self.encoder)
            cached_rows = sum(self._groups[number_cached].count for number_cached in self._cache)
            while cached_rows > _CACHED_BLOCKS * self.block_size and len(self._cache) > 1:
                oldest, _ = self._cache.popitem(last=False)
                cached_rows -= self._groups[oldest].count
        self._cache.move_to_end(number)
        return self._cache[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": OrderedDict()}


class Unread(Columnar):
    """A dataset whose columns are known already: no row is read before one is asked for."""

    def __init__(self, opener: Opener, read: Callable[[], Columnar]) -> None:
        super().__init__(opener, None)
        self._read = read

    @cached_property
    def _rows(self) -> Columnar:
        return self._read()

    @property
    def survey(self) -> Survey:
        return self._rows.survey

    @property
    def block_size(self) -> int:  # type: ignore[override]
        return self._rows.block_size

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: Indices) -> Sample:
        return self._rows.take(indices)


def _joined(blocks: Sequence[EncodedRows]) -> EncodedRows:
    return EncodedRows(
        ids=torch.cat([block.ids for block in blocks]),
        numbers=torch.cat([block.numbers for block in blocks]),
        target=torch.cat([block.target for block in blocks]),
    )
