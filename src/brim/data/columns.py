"""Meanings of a file's columns for a model, as a user says them.

Frozen values, checked as they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

from brim.errors import SpecError, did_you_mean

Elementwise = Callable[
    ..., Any
]  # float64 arrays, one per column named -> an array of the same length
TRANSFORMS = ("standard", "log", None)
_MOST_BUCKETS = 1 << 48  # so that the ids of thousands of fields lie side by side in 63 bits
_LONGEST = 1 << 16  # items of a sequence, each of which takes a place in every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """See `numeric`."""

    name: str
    transform: str | None
    missing: float | Literal["mean"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical:
    """See `vocabulary` (where `buckets` is None) and `hashed`."""

    names: tuple[str, ...]
    by: Elementwise | None
    buckets: int | None
    min_count: int

    @property
    def name(self) -> str:
        return " x ".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSequence:
    """See `sequence`."""

    name: str
    length: int
    separator: str
    of: str | None
    min_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """See `target`."""

    names: tuple[str, ...]
    by: Elementwise | None
    equals: str | float | None
    above: float | None
    classes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """See `where`."""

    names: tuple[str, ...]
    by: Elementwise


Column = Numeric | Categorical | ItemSequence


def numeric(
    name: str,
    *,
    transform: Literal["standard", "log"] | None = "standard",
    missing: float | Literal["mean"] | None = None,
) -> Numeric:
    """A column of numbers, passed to the model as float32.

    Args:
        name: the column.
        transform: `standard` subtracts the mean and divides by the standard deviation, both of the
            training rows; `log` takes sign(x) * log(1 + |x|) first; None leaves the numbers alone.
        missing: what an empty cell counts as, before the transform: a number, or `mean` for the
            mean of the training rows. None allows no empty cell: such a row is quarantined.

    Raises:
        SpecError: an unknown transform.
    """
    if transform not in TRANSFORMS:
        names = [name for name in TRANSFORMS if name]
        raise _wrong(
            f"numeric({name!r}, transform=)",
            transform,
            "standard, log or None",
            str(transform),
            names,
        )
    if isinstance(missing, str) and missing != "mean":
        raise _wrong(
            f"numeric({name!r}, missing=)", missing, "a number, 'mean' or None", missing, ["mean"]
        )
    return Numeric(name=name, transform=transform, missing=missing)


def vocabulary(*names: str, min_count: int = 1, by: Elementwise | None = None) -> Categorical:
    """A categorical field with one id for each value seen in the training rows.

    Args:
        names: the column; several columns are crossed: each combination of their values is a value.
        min_count: how often a value must occur in the training rows to get an id of its own; rarer
            and unseen values share the field's id 0. An empty cell is a value like any other.
        by: a function from one float64 array per column (nan where a cell is empty) to an array of
            the same length, whose values are taken instead; it must treat each element on its own.

    Raises:
        SpecError: no column, or a count below 1.
    """
    if min_count < 1:
        raise SpecError(
            f"vocabulary({names[:1]}, min_count=)", got=str(min_count), need="a whole number from 1"
        )
    return Categorical(
        names=_checked_names("vocabulary", names), by=by, buckets=None, min_count=min_count
    )


def hashed(*names: str, buckets: int, by: Elementwise | None = None) -> Categorical:
    """A categorical field whose values are hashed into `buckets` ids.

    Nothing is fitted, and values may collide. With `brim.Embedding`, whose table does not grow with
    the buckets, 2**40 of them keep a million values apart.

    The hash is the same in every process and version. See `vocabulary` for `names` and `by`.

    Raises:
        SpecError: no column, no bucket, or more than 2**48 of them.
    """
    if not 1 <= buckets <= _MOST_BUCKETS:
        need = f"a whole number from 1 to {_MOST_BUCKETS:,}"
        raise SpecError(f"hashed({names[:1]}, buckets=)", got=str(buckets), need=need)
    return Categorical(names=_checked_names("hashed", names), by=by, buckets=buckets, min_count=1)


def sequence(
    name: str,
    *,
    length: int,
    of: str | None = None,
    separator: str = "|",
    min_count: int = 1,
) -> ItemSequence:
    """A column of lists: what a user clicked before, the tags of an article.

    A row takes `length` ids of a batch's `ids`: its last items, and behind them the field's id 0,
    which pads. Items without an id of their own (rare in the training rows, or unseen) are left
    out. `dataset.sequences` says where the ids lie, for models that pool them or weigh them.

    Args:
        name: the column. Each cell is a text of items, or in Parquet and Arrow a list of them; an
            empty cell is a list of none.
        length: items that the model sees at most, the last of each row: 65,536 or fewer.
        of: the `vocabulary` or `hashed` column whose ids the items have (the history of `movie`),
            so that the model knows both by the same rows of its table. Ids of a vocabulary are
            fitted to the values of both columns; an item whose hash is 0, which pads, is left out.
            None gives the items ids of their own.
        separator: between items, in a text.
        min_count: how often an item must occur in the training rows to get an id of its own; with
            `of`, that column's counts.

    Raises:
        SpecError: a length or a count out of range, no separator, or a count beside `of`.
    """
    _checked_names("sequence", (name,))
    label = f"sequence({name!r}"
    limits = {"length": (length, _LONGEST), "min_count": (min_count, math.inf)}
    for option, (number, limit) in limits.items():
        if not _is_whole(number, limit):
            need = "a whole number from 1" + (f" to {limit:,}" if limit < math.inf else "")
            raise SpecError(f"{label}, {option}=)", got=repr(number), need=need)
    if not isinstance(separator, str) or not separator:
        raise SpecError(
            f"{label}, separator=)", got=repr(separator), need="the text between two items"
        )
    if of is not None and min_count > 1:
        raise SpecError(
            f"{label}, min_count=)",
            got=f"{min_count}, beside of={of!r}",
            need="one of the two",
            hint=f"vocabulary({of!r}, min_count={min_count}) counts for both",
        )
    return ItemSequence(
        name=name, length=int(length), separator=separator, of=of, min_count=int(min_count)
    )


def _is_whole(number: object, limit: float) -> bool:
    return isinstance(number, Integral) and 1 <= int(number) <= limit


def target(
    *names: str,
    above: float | None = None,
    equals: str | float | None = None,
    by: Elementwise | None = None,
    classes: bool = False,
) -> Target:
    """The value that the model predicts: a column's number, or a condition on it, as float32 [B].

    Args:
        names: the column, or several with `by`.
        above: 1 where the number is above this, else 0.
        equals: 1 where the cell equals this text or number, else 0.
        by: a function from one float64 array per column to an array of the same length.
        classes: the target is a class number from 0, as int64 [B].

    Raises:
        SpecError: more than one of `above`, `equals` and `by`, or several columns without `by`.
    """
    _checked_names("target", names)
    if sum(option is not None for option in (above, equals, by)) > 1:
        raise SpecError(
            f"target({names[0]!r})", got="several of above, equals and by", need="at most one"
        )
    if len(names) > 1 and by is None:
        raise SpecError(
            f"target{names}",
            got=f"{len(names)} columns",
            need="one, or by=",
            hint="by=lambda a, b: a > b",
        )
    return Target(names=names, by=by, equals=equals, above=above, classes=classes)


def where(*names: str, by: Elementwise) -> Where:
    """Keep the rows for which `by`, called with one float64 array per column, is true.

    Empty cells are nan. Dropped rows are not examined further, and not quarantined.

    Raises:
        SpecError: no column.
    """
    return Where(names=_checked_names("where", names), by=by)


def _checked_names(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or not all(isinstance(name, str) for name in names):
        raise SpecError(
            f"{kind}()", got=f"{names}", need="one or more column names", hint=f"{kind}('color')"
        )
    return names


def _wrong(field: str, actual: object, need: str, text: str, names: list[str]) -> SpecError:
    return SpecError(field, got=repr(actual), need=need, hint=did_you_mean(text, names))
