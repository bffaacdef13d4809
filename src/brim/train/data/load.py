"""From a user's call to a dataset: find the files, read, screen, fit to the training rows, encode."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
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
            dataset's `block_size` is then that of a row group, and an epoch's order a shuffle by blocks: where
            neighbouring rows are alike (sorted by time, say), smaller row groups shuffle better.

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
    _check_split(split, plan)
    groups = kind(files, wanted=plan.names, numbers=set(plan.number_names))
    identity = tuple(file.identity for file in files)
    if in_memory:
        return _in_memory(lambda: [group.read() for group in groups], plan, split, identity)
    key = (identity, plan, os.environ.get(RUN_DIRECTORY, ""))
    survey = _surveys.get(key)
    if survey is None:
        survey = _survey((group.read() for group in groups), sum(group.size for group in groups), plan)
        _surveys[key] = survey
    packed = []
    for group, rows in zip(groups, survey.parts, strict=True):
        mask = rows.of(split)
        packed.append(PackedGroup(group, np.packbits(mask), int(mask.sum())))
    if not any(group.count for group in packed):
        raise _nothing_left(split)
    return ByGroup(survey.encoder, survey.quarantine, packed, keeps=survey)


def _in_memory(
    read: Callable[[], list[Rows]], plan: Plan, split: SplitName | None, identity: tuple[object, ...]
) -> Columnar:
    _check_split(split, plan)
    key = (identity, plan, split is None, os.environ.get(RUN_DIRECTORY, ""))
    splits = _encoded.get(key)
    if splits is None:
        splits = _encode(read(), plan, ("train", "test") if split else (None,))
        _encoded[key] = splits
    dataset = splits.by_name[split]
    if not len(dataset):
        raise _nothing_left(split)
    return dataset


def _encode(parts: list[Rows], plan: Plan, wanted: Sequence[SplitName | None]) -> _Splits:
    survey = _survey(parts, sum(part.size for part in parts), plan)
    splits = _Splits()
    for split in wanted:
        blocks = [
            survey.encoder.encode(part, rows.of(split))
            for part, rows in zip(parts, survey.parts, strict=True)
        ]
        splits.by_name[split] = InMemory(survey.encoder, survey.quarantine, blocks, keeps=splits)
    return splits


@dataclass(frozen=True, slots=True)
class _Part:
    """Which rows of a part are samples, and which belong to the test split; one bit per row."""

    size: int
    kept: npt.NDArray[np.uint8]
    test: npt.NDArray[np.uint8]

    def of(self, split: SplitName | None) -> Mask:
        kept: Mask = np.unpackbits(self.kept, count=self.size).astype(bool)
        if split is None:
            return kept
        test: Mask = np.unpackbits(self.test, count=self.size).astype(bool)
        return kept & (test if split == "test" else ~test)


@dataclass(frozen=True, eq=False)
class _Survey:
    """What one pass over all rows finds: who is a sample, of which split, and what the columns hold."""

    parts: list[_Part]
    encoder: Encoder
    quarantine: Quarantine


class _Splits:
    """The encoded splits of one call."""

    def __init__(self) -> None:
        self.by_name: dict[str | None, InMemory] = {}


# A training file asks for its train split and then for its test split, from the same columns: while one of them
# is alive the other is not read again.
_encoded: weakref.WeakValueDictionary[Any, _Splits] = weakref.WeakValueDictionary()
_surveys: weakref.WeakValueDictionary[Any, _Survey] = weakref.WeakValueDictionary()


def _survey(rows: Iterable[Rows], total: int, plan: Plan) -> _Survey:
    refused = 0
    bad: list[tuple[str, BadRow]] = []
    parts: list[_Part] = []
    fitter = Fitter(plan.columns, plan.target)
    for part in rows:
        kept, bad_rows = screen(part, plan)
        test = plan.test.test_rows(part, total) if plan.test else np.zeros(part.size, bool)
        parts.append(_Part(part.size, np.packbits(kept), np.packbits(test)))
        fitter.observe(part, kept & ~test)
        bad += [(part.file, row) for row in (*part.refused, *bad_rows)]
        refused += len(part.refused)
    check_share(bad, total + refused)
    path = write(os.environ.get(RUN_DIRECTORY, ""), bad)
    return _Survey(parts, fitter.finish(), Quarantine(len(bad), path))


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
