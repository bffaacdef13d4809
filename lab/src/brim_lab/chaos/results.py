"""The data of a trial and its result, for a run by itself and for a whole cluster."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that every trial runs.

    Args:
        file: the training file, as its user names it.
        options: of `brim train`, the same in every trial; trials run in directories of their own.
    """

    file: str
    options: tuple[str, ...] = ()

    @property
    def is_captured(self) -> bool:
        """Return whether steps of the job are to be replayed."""
        return "--capture" in self.options


@dataclass(frozen=True, slots=True)
class Calm:
    """The end of the job where nothing is done to it.

    Args:
        kept_bytes: in its directory.
    """

    digest: str
    steps: int
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault as it was performed.

    `pause` is the longest time without a commit from it to the next fault.

    Args:
        text: the clause that names it.
        pause: seconds; None where nothing was left to commit.
    """

    kind: enum.StrEnum
    text: str
    pause: float | None


class Trials(Protocol):
    """A trial of any kind."""

    @property
    def seed(self) -> int:
        """The seed that the trial was drawn from."""
        ...

    @property
    def setting(self) -> dict[str, str | int]:
        """The size of the trial: a number or a range under each name."""
        ...

    @property
    def schedule(self) -> str:
        """The faults of the trial, as clauses."""
        ...

    def command(self, job: Job) -> str:
        """The command that repeats the trial."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a trial.

    Args:
        broken: the promises that did not hold, in words.
        seconds: wall time.
        lives: how often the job, or the scheduler, was started.
        still_eager: why no step was replayed, where steps were to be; else empty.
        requests, tries: to services, and how often these were sent in all.
    """

    trial: Trials
    broken: tuple[str, ...]
    seconds: float
    lives: int
    strikes: tuple[Strike, ...]
    still_eager: str = ""
    requests: int = 0
    tries: int = 0


def why_nothing_replayed(results: Sequence[Result]) -> str:
    """Return why no trial with captured steps replayed any; empty where one did, or none has them.

    >>> trial = dict(trial=None, broken=(), seconds=1.0, lives=1, strikes=())
    >>> eager = Result(**trial, still_eager="a parameter has hooks")
    >>> why_nothing_replayed([eager, eager]), why_nothing_replayed([eager, Result(**trial)])
    ('a parameter has hooks', '')
    """
    reasons = [result.still_eager for result in results]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


def longest_pause(commits: list[float], start: float, end: float) -> float | None:
    """Return the longest time without a commit that begins in `[start, end)`.

    None where no commit follows `start`.

    >>> longest_pause([1.0, 2.0, 5.0, 5.5], 1.5, 3.0)
    3.0
    """
    begins = [start, *(commit for commit in commits if start < commit < end)]
    follows = [commit for commit in commits if commit > start][: len(begins)]
    gaps = [successor - start for start, successor in zip(begins, follows, strict=False)]
    return max(gaps, default=None)
