"""The way from a user's call to a dataset.

Find files, read, screen, fit to the training rows, encode.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Never

import numpy as np

from brim.data import fitted
from brim.data.columns import Categorical, Column, ItemSequence, Numeric, Target, Where
from brim.data.datasets import ByGroup, Columnar, InMemory, PackedGroup, Unread
from brim.data.encoding import Encoder, table_place
from brim.data.files import Paths
from brim.data.screening import Plan
from brim.data.sources import NULL, Source, shown_paths
from brim.data.splits import Sample, Split
from brim.data.survey import RUN_DIRECTORY, Survey, survey
from brim.data.typed import arrow_groups, parquet_groups
from brim.errors import SpecError, did_you_mean

SplitName = Literal["train", "test"]


def csv(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    negatives: Sample | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    null: Sequence[str] = NULL,
    **unknown: Never,
) -> Columnar:
    """Read delimited text files into memory.

    Args:
        path: a path, a URL that fsspec knows, a glob, or a list; .gz, .zip, .bz2 and .xz are
            unpacked.
        columns: of the model: `numeric`, `vocabulary`, `hashed` and `sequence` columns, in
            order.
        target: of its predictions; of several, a list of them.
        split: which rows: `train`, `test`, or None for all of them.
        test: which rows are the test split: `last`, `rows` or `sample`. Statistics and vocabularies
            are fitted to the other rows, whichever split is asked for.
        keep: drops rows; see `where`.
        negatives: which of the training rows whose target is 0 are trained on, such as
            `sample(0.1)`; None takes all. `brim.models.Calibrated` corrects predictions by it.
        names: the columns' names where the files have no header line.
        delimiter: between fields; None means a tab for .tsv files and a comma for others.
        null: texts that mean an empty cell.

    Returns:
        A map-style dataset; see `Columnar`. Bad rows (wrong number of fields, not a number, empty
        cell where none is allowed) are left out, counted in `quarantined` and, within a run of
        brim, written to its directory.

    Raises:
        SpecError: a file or column is missing or not as described, an option is unknown, or there
            are no rows.
    """
    _check_keywords(csv, unknown)
    source = Source(
        path=path,
        names=None if names is None else tuple(names),
        delimiter=delimiter,
        null=tuple(null),
    )
    return _dataset(source, _plan(columns, target, keep, test, negatives), split)


def parquet(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    negatives: Sample | None = None,
    in_memory: bool = True,
    **unknown: Never,
) -> Columnar:
    """Read Parquet files (or Arrow IPC files, if the suffix is .arrow, .feather or .ipc).

    Args:
        path: a path, a URL that fsspec knows, a glob, or a list of them.
        columns: what the model sees: `numeric`, `vocabulary`, `hashed` and `sequence` columns, in
            order.
        target: what it predicts; of several, a list of them.
        split: which rows: `train`, `test`, or None for all of them.
        test: which rows are the test split; see `csv`.
        keep: drops rows; see `where`.
        negatives: see `csv`.
        in_memory: False reads row groups as needed, after one pass that fits the columns. The
            dataset's `block_size` is then the size of a row group, and epochs are shuffled by
            blocks. If neighbouring rows are alike (sorted by time, say), smaller row groups shuffle
            better.

    Returns:
        A map-style dataset; see `Columnar` and, on bad rows, `csv`.

    Raises:
        SpecError: a file or column is missing or not as described, an option is unknown, or there
            are no rows.
    """
    _check_keywords(parquet, unknown)
    suffixes = (".arrow", ".feather", ".ipc")
    kind = (
        arrow_groups
        if all(name.endswith(suffixes) for name in shown_paths(path))
        else parquet_groups
    )
    source = Source(path=path, typed=kind, in_memory=in_memory)
    return _dataset(source, _plan(columns, target, keep, test, negatives), split)


def arrow(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    negatives: Sample | None = None,
    in_memory: bool = True,
    **unknown: Never,
) -> Columnar:
    """Read Arrow IPC (Feather) files, with any suffix; see `parquet`.

    Raises:
        SpecError: see `parquet`.
    """
    _check_keywords(arrow, unknown)
    source = Source(path=path, typed=arrow_groups, in_memory=in_memory)
    return _dataset(source, _plan(columns, target, keep, test, negatives), split)


def libsvm(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    negatives: Sample | None = None,
    **unknown: Never,
) -> Columnar:
    """Read files of libsvm's format, `label qid:N index:value … # comment`, into memory.

    Columns are `label`, `qid`, and each index as the file writes it, from 0 or from 1:
    `numeric("7")` is the value of feature 7, which is 0 in a line without it. `features` is the list
    of all indices of a line, for `sequence`: where features are ids, their value is 1, or 1/√n in
    a line of n features.

    Args:
        path: a path, a URL that fsspec knows, a glob, or a list; .gz, .zip, .bz2 and .xz are
            unpacked.
        columns: of the model, in order.
        target: of its predictions, such as `target("label", above=0)` of labels -1 and +1.
        split: which rows; see `csv`.
        test: which rows are the test split; see `csv`.
        keep: drops rows; see `where`.
        negatives: see `csv`.

    Returns:
        A map-style dataset; see `Columnar`. A line that is not of the format is a bad row, as is one
        whose features are no ids but should be; see `csv`.

    Raises:
        SpecError: a file is missing, most of its lines are bad, a feature occurs in none, or there
            are no rows.
    """
    _check_keywords(libsvm, unknown)
    source = Source(path=path, sparse="libsvm")
    return _dataset(source, _plan(columns, target, keep, test, negatives), split)


def libffm(
    path: Paths,
    *,
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    split: SplitName | None = None,
    test: Split | None = None,
    keep: Where | None = None,
    negatives: Sample | None = None,
    **unknown: Never,
) -> Columnar:
    """Read files of libffm's format, `label field:index:value …`, into memory.

    Columns are `label`, and each field by its number: `vocabulary("3")` and `hashed("3", buckets=)`
    take the index of the line's feature of field 3 (a missing field is an empty cell),
    `sequence("3", length=)` those of several, `numeric("3")` the value.

    Args:
        path: see `libsvm`.
        columns: of the model, in order.
        target: of its predictions; `target("label")` where labels are 0 and 1.
        split: which rows; see `csv`.
        test: which rows are the test split; see `csv`.
        keep: drops rows; see `where`.
        negatives: see `csv`.

    Returns:
        A map-style dataset; see `Columnar`. A line that is not of the format is a bad row, as is one
        with two features of a field that should be one id, or with an id whose value is neither 1
        nor 1/√n in a line of n features; see `csv`.

    Raises:
        SpecError: see `libsvm`.
    """
    _check_keywords(libffm, unknown)
    source = Source(path=path, sparse="libffm")
    return _dataset(source, _plan(columns, target, keep, test, negatives), split)


def _dataset(source: Source, plan: Plan, split: SplitName | None) -> Columnar:
    _check_split(split, plan)
    encoder = fitted.find(source.path_label, plan.columns, plan.targets)
    if encoder is not None:
        return Unread(_Opener(source, plan, encoder), lambda: _read(source, plan, split, encoder))
    dataset = _fit(source, plan, split)
    fitted.remember(os.environ.get(RUN_DIRECTORY, ""), source.path_label, dataset.encoder)
    return dataset


def _fit(source: Source, plan: Plan, split: SplitName | None) -> Columnar:
    """Fit the columns to the training rows.

    The other split uses the first one's encoding.
    """
    key = (source.identity, plan, split is None, os.environ.get(RUN_DIRECTORY, ""))
    if not source.in_memory:
        found = _surveys.get(key)
        if found is None:
            found = _surveys[key] = _survey_groups(source, plan, None)
        return _by_group(source, plan, split, found)
    splits = _encoded.get(key)
    if splits is None:
        splits = _encoded[key] = _encode(
            source, plan, ("train", "test") if split else (None,), None
        )
    return _split_of(splits.by_name[split], split)


def _read(source: Source, plan: Plan, split: SplitName | None, encoder: Encoder) -> Columnar:
    """Rows as columns that were fitted elsewhere see them."""
    if source.in_memory:
        return _split_of(_encode(source, plan, (split,), encoder).by_name[split], split)
    return _by_group(source, plan, split, _survey_groups(source, plan, encoder))


@dataclass(frozen=True)
class _Opener:
    """Reads other files as a dataset's columns see them."""

    source: Source
    plan: Plan
    encoder: Encoder

    @property
    def negatives(self) -> float:
        return self.plan.negatives.share if self.plan.negatives else 1.0

    def over(self, path: Paths, *, train: bool) -> Columnar:
        negatives = self.plan.negatives if train else None
        plan = replace(self.plan, test=None, negatives=negatives)
        return _read(self.source.with_files(path), plan, None, self.encoder)

    def inputs_of(self, path: Paths) -> Columnar:
        inputs_plan = Plan(self.plan.columns, (), None, None)
        return _read(
            self.source.with_files(path), inputs_plan, None, replace(self.encoder, targets=())
        )


def _survey_groups(source: Source, plan: Plan, encoder: Encoder | None) -> Survey:
    groups = source.groups(plan.names, plan.hints_of_text, plan.list_names)
    return survey(
        (group.read() for group in groups), sum(group.size for group in groups), plan, encoder
    )


def _by_group(source: Source, plan: Plan, split: SplitName | None, found: Survey) -> Columnar:
    packed = []
    for group, part in zip(
        source.groups(plan.names, plan.hints_of_text, plan.list_names), found.parts, strict=True
    ):
        mask = part.mask_of(split)
        packed.append(PackedGroup(group, np.packbits(mask), int(mask.sum())))
    if not any(group.count for group in packed):
        raise _nothing_left(split)
    return ByGroup(_Opener(source, plan, found.encoder), found, packed)


def _encode(
    source: Source, plan: Plan, split_names: Sequence[SplitName | None], encoder: Encoder | None
) -> _Splits:
    rows = list(source.read(plan.names, plan.hints_of_text, plan.list_names))
    found = survey(rows, sum(part.size for part in rows), plan, encoder)
    opener, splits = _Opener(source, plan, found.encoder), _Splits()
    for split in split_names:
        blocks = [
            found.encoder.encode(row, part.mask_of(split))
            for row, part in zip(rows, found.parts, strict=True)
        ]
        splits.by_name[split] = InMemory(opener, found, blocks, keeps=splits)
    return splits


def _split_of(dataset: InMemory, split: str | None) -> InMemory:
    if not len(dataset):
        raise _nothing_left(split)
    return dataset


class _Splits:
    """The encoded splits of one call."""

    def __init__(self) -> None:
        self.by_name: dict[str | None, InMemory] = {}


# A training file asks for its train split and then for its test split, from the same columns: while
# one of them is alive the other is not read again.
_encoded: weakref.WeakValueDictionary[Any, _Splits] = weakref.WeakValueDictionary()
_surveys: weakref.WeakValueDictionary[Any, Survey] = weakref.WeakValueDictionary()


def _plan(
    columns: Sequence[Column],
    target: Target | Sequence[Target],
    keep: Where | None,
    test: Split | None,
    negatives: Sample | None,
) -> Plan:
    wrong: list[object] = [
        column for column in columns if not isinstance(column, Numeric | Categorical | ItemSequence)
    ]
    if wrong or not columns:
        raise SpecError(
            "columns=",
            got=repr(wrong[0]) if wrong else "no column",
            need="numeric, vocabulary, hashed or sequence columns",
            hint=f"vocabulary({wrong[0]!r})" if wrong and isinstance(wrong[0], str) else "",
        )
    for place, column in enumerate(columns):
        if table_place(columns, place) < 0:
            assert isinstance(column, ItemSequence)
            raise SpecError(
                f"sequence({column.name!r}, of=)",
                got=repr(column.of),
                need="the name of a vocabulary or hashed column of this list, alone and without by=",
                hint=f"vocabulary({column.of!r})",
            )
    targets = tuple(target) if isinstance(target, list | tuple) else (target,)
    for part in targets:
        if not isinstance(part, Target):
            raise SpecError(
                "target=", got=repr(part), need="a target", hint=f"target=target({part!r})"
            )
    if not targets or (len(targets) > 1 and any(part.classes for part in targets)):
        raise SpecError(
            "target=",
            got="several, one of classes" if targets else "an empty list",
            need="one of classes, or any number of others",
        )
    if negatives is not None:
        if not isinstance(negatives, Sample):
            raise SpecError(
                "negatives=",
                got=repr(negatives),
                need="the share of them to train on",
                hint="negatives=sample(0.1)",
            )
        if len(targets) > 1 or targets[0].classes:
            raise SpecError(
                "negatives=",
                got="several targets" if len(targets) > 1 else "a target of classes",
                need="one target of 0 and 1, by which predictions are corrected",
            )
    return Plan(tuple(columns), targets, keep, test, negatives)


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
            "split=",
            got="'test', without test=",
            need="the rows that are the test split",
            hint="test=last(0.1)",
        )


def _nothing_left(split: str | None) -> SpecError:
    rows = f"the {split} split" if split else "the files"
    return SpecError(
        rows, got="no rows", need="at least one", hint="look at keep=, test= and quarantined rows"
    )


def _check_keywords(function: Callable[..., Any], unknown: dict[str, Any]) -> None:
    for name in unknown:
        names = [name for name in function.__annotations__ if name not in ("unknown", "return")]
        raise SpecError(
            f"{function.__name__}({name}=)",
            got="an unknown option",
            need="a known one",
            hint=did_you_mean(name, names),
        )
