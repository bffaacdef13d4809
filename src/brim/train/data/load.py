"""From a user's call to a dataset: find the files, read, screen, fit to the training rows, encode."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Never

import numpy as np
import numpy.typing as npt

from brim.errors import SpecError, did_you_mean
from brim.train.data.columns import Categorical, Column, Numeric, Target, Where
from brim.train.data.datasets import ByGroup, Columnar, InMemory, PackedGroup, Quarantine
from brim.train.data.encoding import Encoder, Fitter
from brim.train.data.files import File, Paths, resolve
from brim.train.data.quarantine import write
from brim.train.data.screening import Plan, check_share, screen
from brim.train.data.splits import Split
from brim.train.data.tables import BadRow, Rows
from brim.train.data.text import read_text
from brim.train.data.typed import Group, arrow_groups, parquet_groups

__all__ = ["RUN_DIRECTORY", "arrow", "csv", "parquet"]

RUN_DIRECTORY = "BRIM_RUN_DIR"
SplitName = Literal["train", "test"]
Mask = npt.NDArray[np.bool_]


def csv(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target,
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    null: Sequence[str] = ("", "NA", "NaN", "nan", "null", "NULL"),
    **unknown: Never,
) -> Columnar:
    """Rows of delimited text files, held in memory.

    Args:
        path: a path, a URL that fsspec knows, a glob, or a list; .gz, .zip, .bz2 and .xz are unpacked.
        columns: what the model sees: `numeric`, `vocabulary` and `hashed` columns, in order.
        target: what it predicts.
        split: which rows: `train`, `test`, or None for all of them.
        test: which rows are the test split: `last`, `rows` or `sample`. Statistics and vocabularies are
            fitted to the other rows, whichever split is asked for.
        keep: drops rows; see `where`.
        names: the columns' names where the files have no header line.
        delimiter: between fields; None means a tab for .tsv files and a comma for others.
        null: texts that mean an empty cell.

    Returns:
        A map-style dataset; see `Columnar`. Bad rows (the wrong number of fields, no number where one is
        needed, an empty cell where none is allowed) are left out, counted in `quarantined` and, within a run
        of brim, written to its directory.

    Raises:
        SpecError: a file or column that is not there or not as described, an unknown option, no rows.
    """
    _known(csv, unknown)
    plan = _plan(columns, target, keep, test)
    files = resolve(path)

    def read() -> list[Rows]:
        parts: list[Rows] = []
        for file in files:
            between = delimiter or ("\t" if ".tsv" in file.path.rpartition("/")[2] else ",")
            start = parts[-1].start + parts[-1].size if parts else 0
            parts.append(
                read_text(file, wanted=plan.names, names=names, delimiter=between, null=null, start=start)
            )
        return parts

    options = (None if names is None else tuple(names), delimiter, tuple(null))
    return _in_memory(read, plan, split, (*(file.identity for file in files), options))


def parquet(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target,
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    in_memory: bool = True,
    **unknown: Never,
) -> Columnar:
    """Rows of Parquet files (or of Arrow IPC files, where the suffix is .arrow, .feather or .ipc).

    Args:
        path: a path, a URL that fsspec knows, a glob, or a list of them.
        columns: what the model sees: `numeric`, `vocabulary` and `hashed` columns, in order.
        target: what it predicts.
        split: which rows: `train`, `test`, or None for all of them.
        test: which rows are the test split; see `csv`.
        keep: drops rows; see `where`.
        in_memory: False reads row groups as they are needed, after one pass that fits the columns. The
            dataset's `block_size` is then that of a row group, and an epoch's order a shuffle by blocks.

    Returns:
        A map-style dataset; see `Columnar` and, on bad rows, `csv`.

    Raises:
        SpecError: a file or column that is not there or not as described, an unknown option, no rows.
    """
    _known(parquet, unknown)
    files = resolve(path)
    suffixes = (".arrow", ".feather", ".ipc")
    kind = arrow_groups if all(file.path.endswith(suffixes) for file in files) else parquet_groups
    return _grouped(kind, files, _plan(columns, target, keep, test), split, in_memory)


def arrow(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target,
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    in_memory: bool = True,
    **unknown: Never,
) -> Columnar:
    """Rows of Arrow IPC (Feather) files, whatever their suffix; see `parquet`.

    Raises:
        SpecError: see `parquet`.
    """
    _known(arrow, unknown)
    return _grouped(arrow_groups, resolve(path), _plan(columns, target, keep, test), split, in_memory)


def _grouped(
    kind: Callable[..., list[Group]], files: list[File], plan: Plan, split: SplitName | None, in_memory: bool
) -> Columnar:
    groups = kind(files, wanted=plan.names, numbers=set(plan.number_names))
    if in_memory:
        key = tuple(file.identity for file in files)
        return _in_memory(lambda: [group.read() for group in groups], plan, split, key)
    masks, encoder, quarantine = _survey([group.read for group in groups], [g.size for g in groups], plan)
    _check_split(split, plan)
    packed = []
    for group, pair in zip(groups, masks, strict=True):
        mask = pair.of(split)
        packed.append(PackedGroup(group, np.packbits(mask), int(mask.sum())))
    if not any(group.count for group in packed):
        raise _nothing_left(split)
    return ByGroup(encoder, quarantine, packed)


@dataclass(frozen=True, slots=True)
class _Masks:
    """Of one part: its rows that are samples, and those that belong to the test split."""

    kept: Mask
    test: Mask

    def of(self, split: SplitName | None) -> Mask:
        if split is None:
            return self.kept
        return self.kept & (self.test if split == "test" else ~self.test)


class _Splits:
    """The encoded splits of one call. A file asks for its train split and then for its test split; while one
    of them is alive the other is not read again."""

    def __init__(self) -> None:
        self.by_name: dict[str | None, InMemory] = {}


_alive: weakref.WeakValueDictionary[Any, _Splits] = weakref.WeakValueDictionary()


def _in_memory(
    read: Callable[[], list[Rows]], plan: Plan, split: SplitName | None, identity: tuple[object, ...]
) -> Columnar:
    _check_split(split, plan)
    key = (identity, plan, split is None, os.environ.get(RUN_DIRECTORY, ""))
    splits = _alive.get(key)
    if splits is None:
        splits = _load(read(), plan, ("train", "test") if split else (None,))
        _alive[key] = splits
    dataset = splits.by_name[split]
    if not len(dataset):
        raise _nothing_left(split)
    return dataset


def _load(parts: list[Rows], plan: Plan, wanted: Sequence[SplitName | None]) -> _Splits:
    readers = [lambda part=part: part for part in parts]
    masks, encoder, quarantine = _survey(readers, [part.size for part in parts], plan)
    splits = _Splits()
    for split in wanted:
        blocks = [encoder.encode(part, pair.of(split)) for part, pair in zip(parts, masks, strict=True)]
        dataset = InMemory(encoder, quarantine, blocks, keeps=splits)
        splits.by_name[split] = dataset
    return splits


def _survey(
    readers: Sequence[Callable[[], Rows]], sizes: Sequence[int], plan: Plan
) -> tuple[list[_Masks], Encoder, Quarantine]:
    """One pass over all parts: which rows are samples of which split; columns fitted to the train rows."""
    total, bad, masks = sum(sizes), list[tuple[str, BadRow]](), list[_Masks]()
    refused = 0
    fitter = Fitter(plan.columns, plan.target)
    for read in readers:
        part = read()
        kept, bad_rows = screen(part, plan)
        test = plan.test.test_rows(part, total) if plan.test else np.zeros(part.size, bool)
        masks.append(_Masks(kept, test))
        fitter.observe(part, kept & ~test)
        bad += [(part.file, row) for row in (*part.refused, *bad_rows)]
        refused += len(part.refused)
    check_share(bad, total + refused)
    path = write(os.environ.get(RUN_DIRECTORY, ""), bad)
    return masks, fitter.finish(), Quarantine(len(bad), path)


def _plan(columns: Sequence[Column], target: Target, keep: Where | None, test: Split | None) -> Plan:
    wrong: list[object] = [column for column in columns if not isinstance(column, Numeric | Categorical)]
    if wrong or not columns:
        raise SpecError(
            "columns=",
            got=repr(wrong[0]) if wrong else "no column",
            need="numeric, vocabulary or hashed columns",
            hint=f"vocabulary({wrong[0]!r})" if wrong and isinstance(wrong[0], str) else "",
        )
    if not isinstance(target, Target):
        raise SpecError("target=", got=repr(target), need="a target", hint=f"target=target({target!r})")
    return Plan(tuple(columns), target, keep, test)


def _check_split(split: str | None, plan: Plan) -> None:
    if split not in ("train", "test", None):
        raise SpecError(
            "split=",
            got=repr(split),
            need="train, test or None",
            hint=did_you_mean(str(split), ["train", "test"]),
        )
    if split == "test" and plan.test is None:
        raise SpecError(
            "split=", got="'test', without test=", need="which rows those are", hint="test=last(0.1)"
        )


def _nothing_left(split: str | None) -> SpecError:
    rows = f"the {split} split" if split else "the files"
    return SpecError(
        rows, got="no rows", need="at least one", hint="look at keep=, test= and quarantined rows"
    )


def _known(function: Callable[..., Any], unknown: dict[str, Any]) -> None:
    for name in unknown:
        known = [known for known in function.__annotations__ if known not in ("unknown", "return")]
        raise SpecError(
            f"{function.__name__}({name}=)",
            got="an unknown option",
            need="a known one",
            hint=did_you_mean(name, known),
        )
