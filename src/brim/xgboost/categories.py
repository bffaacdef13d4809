"""Columns of categories: texts by their place among all of the column, or numbers that are codes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import SpecError
from brim.xgboost.arithmetic import Floats

MOST_CATEGORIES = 1 << 16  # of a column: each has a bin, in each node of a tree

# By the place of the column; none where its values are codes.
Vocabularies = Mapping[int, tuple[str, ...]]


def texts_in(subject: str, values: Sequence[Any] | NDArray[Any]) -> tuple[str, ...]:
    """Return the different texts of a column, in the order of their codes; none where it has numbers.

    Args:
        values: texts, or numbers; None or NaN where one is missing.

    Raises:
        SpecError: texts and numbers in one column, or too many.

    >>> texts_in("carrier", ["UA", None, "AA", "UA"])
    ('AA', 'UA')
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return ()
    found = {value for value in values if isinstance(value, str)}
    if found and any(not isinstance(value, str) and not is_missing(value) for value in values):
        raise SpecError(subject, got="texts and numbers", need="texts alone, or codes alone")
    check_count(subject, len(found))
    return tuple(sorted(found))


def check_count(subject: str, count: int) -> None:
    """Refuse a column of too many categories.

    Raises:
        SpecError: it has more than a tree can tell apart at a bearable cost.
    """
    if count > MOST_CATEGORIES:
        raise SpecError(
            subject,
            got=f"{count:,} categories",
            need=f"at most {MOST_CATEGORIES:,}",
            hint="put the rare ones together",
        )


def codes_of(values: Sequence[Any] | NDArray[Any], texts: Sequence[str]) -> Floats:
    """Return the code of each text; NaN where it is missing, or none of these.

    >>> codes_of(["UA", None, "DL"], ("AA", "UA")).tolist()
    [1.0, nan, nan]
    """
    codes = {text: float(code) for code, text in enumerate(texts)}
    return np.fromiter((codes.get(value, math.nan) for value in values), np.float32, len(values))


def recoded(codes: Floats, texts: Sequence[str], others: Sequence[str]) -> Floats:
    """Return the codes of the same texts in another vocabulary; NaN for those that it lacks.

    >>> recoded(np.float32([0, 1, np.nan]), ("AA", "UA"), ("UA", "WN")).tolist()
    [nan, 0.0, nan]
    """
    table = np.append(codes_of(texts, others), np.float32(np.nan))
    places = np.where(np.isnan(codes), len(texts), codes).astype(np.intp)
    result: Floats = table[places]
    return result


def is_missing(value: Any) -> bool:
    """Return whether a value of a column stands for none."""
    # pandas has a missing value of its own, which is not equal to anything, nor unequal.
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ == "NAType"
