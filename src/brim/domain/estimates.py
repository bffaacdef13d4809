"""Estimates of a job's end, and their errors. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

_SAVED_EVERY = 15.0  # seconds between two estimates of a job that are put on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A prediction about a job, made at some time; seconds since 1970.

    Args:
        at: when it was expected.
        finish: when the job would end.
        step: that the job had done by then.
    """

    at: float
    finish: float
    step: int

    def error(self, ended: float) -> float:
        """Return the estimate's error as a part of the time that was left.

        Negative where the job ended earlier.

        >>> Estimate(at=100.0, finish=118.0, step=0).error(120.0)
        0.1
        """
        return (ended - self.finish) / (ended - self.at) if ended > self.at else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The expectations of one job's end.

    Args:
        last: the newest.
        first, half: the first, and that once half of its steps were done.
        saved: when the newest was last put on disk.
    """

    last: Estimate | None = None
    first: Estimate | None = None
    half: Estimate | None = None
    saved: float = 0.0

    def updated(self, estimate: Estimate, steps: int | None) -> Estimates:
        """Add a newer one; `saved` is its time where it is to be put on disk now.

        Args:
            steps: that the job has in all, where that is known.
        """
        half = self.half is None and steps is not None and 2 * estimate.step >= steps
        due = self.first is None or half or estimate.at - self.saved >= _SAVED_EVERY
        return Estimates(
            last=estimate,
            first=self.first or estimate,
            half=estimate if half else self.half,
            saved=estimate.at if due else self.saved,
        )


def errors_of(first: Estimate | None, half: Estimate | None, ended: float) -> str:
    """Describe how wrong the first estimate was, and the one at half of the steps.

    >>> errors_of(Estimate(at=100.0, finish=118.0, step=0), None, 120.0)
    'first estimate: 2.0 s late, 10.0 % of 20.0 s'
    """
    named = {"first estimate": first, "at half of its steps": half}
    return "; ".join(
        f"{name}: {_error(estimate, ended)}"
        for name, estimate in named.items()
        if estimate is not None
    )


def _error(estimate: Estimate, ended: float) -> str:
    late = ended - estimate.finish
    return (
        f"{abs(late):.1f} s {'late' if late > 0 else 'early'}, {abs(estimate.error(ended)):.1%} of "
        f"{ended - estimate.at:.1f} s"
    ).replace("%", " %")
