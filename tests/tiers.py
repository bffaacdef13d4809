"""Which tests `make test` leaves to `make test-long`.

A test is `long` where it takes ten seconds or more and a shorter way, or another case, of its
subject is tested always: more worker counts, more fault schedules, more models of one kind, or a
case with processes that is always tested within one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
_PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
NEEDS_HAPROXY = pytest.mark.skipif(
    shutil.which("haproxy", path=_PLACES) is None, reason="apt-get install haproxy"
)
LONG = pytest.mark.long


def long_after(count: int, cases: Sequence[T]) -> list[object]:
    """Return the cases of a test, of which all but the first few are long.

    Args:
        cases: values of one parameter, or tuples with those of several.
    """
    return [
        case
        if place < count
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=LONG)
        for place, case in enumerate(cases)
    ]
