"""The cost of starting, resizing or migrating a job, in seconds without progress. Pure values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_NEWEST = 15  # measurements of a cost that count
_NEWEST_RESTARTS = 5  # measurements of a command's restarts that count
_MIN_SAMPLES = 3  # of them, before they are believed
# seconds by which clocks that agree may seem to differ: what is told arrives a little later
_CLOCK_TOLERANCE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds without progress at a change, by the size it leads to.

    `fixed + per_doubling (1 + log2 n)`.

    A job that stays as it is pays nothing, nor does one that is suspended: it pays when it resumes.

    Args:
        start: seconds at a start, where that is not what a resize costs.
        end: seconds from the last step to the end of the processes.
        doubt: seconds that a plan may lose to what it cannot know, such as how long others take to
            give way. A promise is made only with so much to spare.
        recovery: seconds from a worker's death to the first new step, detection included.
        lost: seconds of work that a failure undoes (half a checkpoint interval, or a step).

    >>> cost = OVERHEADS["published"].cost
    >>> cost(4, 8), cost(8, 8), cost(8, 0)
    (10.0, 0.0, 0.0)
    """

    name: str
    fixed: float = 0.0
    per_doubling: float = 0.0
    start: float | None = None
    end: float = 0.0
    doubt: float = 0.0
    recovery: float = 0.0
    lost: float = 0.0

    def cost(self, count_before: int, count_after: int, *, moved: bool = False) -> float:
        """Seconds that going from `count_before` to `count_after` workers takes.

        `moved` if the devices differ.
        """
        if count_after == 0 or (count_before == count_after and not moved):
            return 0.0
        if count_before == 0 and self.start is not None:
            return self.start
        return self.fixed + self.per_doubling * (1.0 + math.log2(count_after))

    @property
    def paid_ahead(self) -> Overheads:
        """Return the overheads as policies see them.

        The end of a job is paid with its last change, for it holds devices as well.

        >>> BELIEVED.paid_ahead.cost(0, 4), BELIEVED.paid_ahead.cost(4, 2)
        (3.5, 0.8)
        """
        return self._with_fixed(self.end)

    @property
    def paid_behind(self) -> Overheads:
        """The inverse of `paid_ahead`: overheads as they are, of those that policies see.

        >>> BELIEVED.paid_ahead.paid_behind.cost(0, 4)
        3.0
        """
        return self._with_fixed(-self.end)

    def _with_fixed(self, extra: float) -> Overheads:
        start = None if self.start is None else self.start + extra
        return replace(self, fixed=self.fixed + extra, start=start) if extra else self


# `published`: the model of ElasticFlow's simulator without its cache of earlier placements (section
# 6.1: a resize is 2 s plus 2 s for each level of the tree), which is dearer than the 0.7 to 4.2 s
# that its authors measured (Fig 12b). The other three are for asking what elasticity itself is
# worth; where each figure comes from is in docs/guides/simulate.md.
OVERHEADS: dict[str, Overheads] = {
    "none": Overheads(name="none"),
    "published": Overheads(
        name="published", fixed=2.0, per_doubling=2.0, recovery=20.0, lost=300.0
    ),
    "brim": Overheads(name="brim", fixed=1.0, per_doubling=0.05, recovery=0.045, lost=0.014),
    "torchrun": Overheads(name="torchrun", fixed=6.5, per_doubling=0.0, recovery=5.6, lost=300.0),
    "restart": Overheads(name="restart", fixed=30.0, per_doubling=0.0, recovery=60.0, lost=300.0),
}

# What a live cluster goes by until it has seen its own starts, resizes and ends.
BELIEVED = Overheads(name="believed", start=3.0, fixed=0.3, end=0.5, doubt=1.0)


def ready_at(ready: float, now: float, *, end: float) -> float:
    """Return from when on a job that runs makes progress, as policies see it.

    Its end takes time as well, which is put before its progress (see `Overheads.paid_ahead`).

    Args:
        ready: when its last change is over.
        end: seconds that its end takes.
    """
    return max(ready, now) + end


def measured_overheads(seen: Mapping[str, list[float]]) -> Overheads:
    """Return the measured costs of changes.

    They are medians of the newest ones; for handovers, nearly the longest.

    Args:
        seen: seconds of starts (`start`), resizes (`resize`), ends (`end`), and from a plan to the
            devices that others had to give up for it (`handover`), the newest last.

    >>> measured_overheads({"start": [1.0, 9.0, 2.0], "end": [0.1]})
    Overheads(name='measured', fixed=0.3, per_doubling=0.0, start=2.0, end=0.5, doubt=1.0, recovery=0.0, lost=0.0)
    """
    cost = {
        kind: statistics.median(seconds[-_NEWEST:])
        for kind, seconds in seen.items()
        if len(seconds) >= _MIN_SAMPLES
    }
    waits = seen.get("handover", [])[-_NEWEST:]
    return replace(
        BELIEVED,
        name="measured" if cost else BELIEVED.name,
        start=cost.get("start", BELIEVED.start),
        fixed=cost.get("resize", BELIEVED.fixed),
        end=cost.get("end", BELIEVED.end),
        doubt=sorted(waits)[-2] if len(waits) >= _MIN_SAMPLES else BELIEVED.doubt,
    )


def measured_restart(seen: Sequence[float]) -> float | None:
    """Return the seconds that a command loses where it is started again; None: none was seen.

    It is the median of the newest ones. A single one is believed: nothing is known without it.

    >>> measured_restart([]), measured_restart([31.0]), measured_restart([5.0, 31.0, 6.0])
    (None, 31.0, 6.0)
    """
    return statistics.median(seen[-_NEWEST_RESTARTS:]) if seen else None


def clocks_agree(clock_reading: float, *, unseen: float, seen: float) -> bool:
    """Return whether the clocks of two processes agree.

    One made a thing, the other looked for it.

    Else the difference of the two, of which one was set after the other began, would be taken for
    what a change costs.

    Args:
        clock_reading: when it was made, by the one clock.
        unseen, seen: when it was not there yet, and when it was, by the other one.

    >>> clocks_agree(99.9, unseen=99.8, seen=100.0), clocks_agree(28_899.9, unseen=99.8, seen=100.0)
    (True, False)
    """
    return unseen - _CLOCK_TOLERANCE <= clock_reading <= seen + _CLOCK_TOLERANCE
