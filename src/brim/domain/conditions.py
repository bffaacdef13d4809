"""The conditions under which a job begins: behind others, not before a time, its turn in an array. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from brim.errors import SpecError

MOST_OF_ARRAY = 1000  # jobs
MOST_PREDECESSORS = 100  # jobs, and arrays: each decision looks at them
MOST_RETRIES = 100
ARRAY_INDEX = "ARRAY_INDEX"  # the variable that tells a job which one of its array it is
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A job, or an array of jobs, that has to end first.

    Args:
        job: its id; the scheduler notes that of its array where it belongs to one.
        success: it has to be done: if it ends otherwise, the job behind it is cancelled.
    """

    job: str
    success: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions that hold before a job gets its first workers.

    Args:
        predecessors: jobs that have ended by then.
        earliest: the first possible moment, in seconds since 1970; 0: any.
        array: the id of the first job of its array; empty: it belongs to none.
        index: its own in the array.
        limit: jobs of the array that may have processes at a time; 0: any number.
    """

    predecessors: tuple[Predecessor, ...] = ()
    earliest: float = 0.0
    array: str = ""
    index: int = 0
    limit: int = 0


NO_CONDITIONS = Conditions()


def parse_predecessor(text: str) -> Predecessor:
    """Read `JOB` or `JOB:ok`.

    Raises:
        SpecError: neither.

    >>> parse_predecessor("prepare-3:ok")
    Predecessor(job='prepare-3', success=True)
    """
    job, colon, word = text.rpartition(":")
    if not colon:
        job, word = text, "ok"
    if not job or word != "ok":
        raise SpecError(
            "--after",
            got=repr(text),
            need="JOB, to begin when it has ended, or JOB:ok, to begin only if it is done",
            hint="--after prepare-3:ok",
        )
    return Predecessor(job=job, success=bool(colon))


def parse_array(text: str) -> tuple[tuple[int, ...], int]:
    """Read `1-100`, `1,5,9` or `1-100%4`.

    Returns:
        The index of each job, and how many of them may run at a time; 0: any number.

    Raises:
        SpecError: none of these; an index twice; more jobs than an array may have.

    >>> parse_array("1-3,7%2")
    ((1, 2, 3, 7), 2)
    """
    indices, percent, limit = text.partition("%")
    parts = [_PART.fullmatch(part.strip()) for part in indices.split(",")]
    good = bool(not percent or re.fullmatch(r"[1-9]\d{0,8}", limit, re.ASCII))
    found: list[int] = []
    for part in parts:
        if part is None or not good:
            raise _wrong_array(text, "indices, and behind % how many jobs run at a time")
        first, last = int(part[1]), int(part[2] or part[1])
        if not first <= last < first + MOST_OF_ARRAY or len(found) > MOST_OF_ARRAY:
            raise _wrong_array(text, f"1 to {MOST_OF_ARRAY:,} indices, the lower one first")
        found += range(first, last + 1)
    check_array(found, text)
    return tuple(found), int(limit or 0)


def check_array(indices: list[int] | tuple[int, ...], text: str = "") -> None:
    """Raises SpecError where these cannot be the indices of an array."""
    if len(set(indices)) < len(indices):
        raise _wrong_array(text or str(indices[:10]), "each index once")
    if len(indices) > MOST_OF_ARRAY or min(indices, default=0) < 0:
        raise _wrong_array(text or f"{len(indices):,} indices", f"1 to {MOST_OF_ARRAY:,} indices")


def _wrong_array(actual: str, need: str) -> SpecError:
    return SpecError("--array", got=repr(actual), need=need, hint="--array 1-100%4")
