"""Meanings of a file's columns for a model, as a user says them.

Frozen values, checked as they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from brim.errors import SpecError, did_you_mean

Elementwise = Callable[
    ..., Any
]  # float64 arrays, one per column named -> an array of the same length
TRANSFORMS = ("standard", "log", None)


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


Column = Numeric | Categorical


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

    Nothing is fitted, and values may collide.

    The hash is the same in every process and version. See `vocabulary` for `names` and `by`.

    Raises:
        SpecError: no column, or no bucket.
    """
    if buckets < 1:
        raise SpecError(
            f"hashed({names[:1]}, buckets=)", got=str(buckets), need="a whole number from 1"
        )
    return Categorical(names=_checked_names("hashed", names), by=by, buckets=buckets, min_count=1)


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
