"""Assigns samples to steps and their micro-batches. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Schedule", "Span", "cut"]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range `[start, stop)` of positions in an epoch's order."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def cut(span: Span, parts: int) -> tuple[Span, ...]:
    """Cut a span into `parts` contiguous spans whose sizes differ by at most one; some may be empty.

    >>> cut(Span(10, 15), 3)
    (Span(start=10, stop=11), Span(start=11, stop=13), Span(start=13, stop=15))
    """
    size = len(span)
    edges = [span.start + size * part // parts for part in range(parts + 1)]
    return tuple(Span(low, high) for low, high in pairwise(edges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All the steps of a job. The last step of an epoch takes what is left.

    Args:
        samples: size of the training set, from 1.
        global_batch_size: samples of a step.
        epochs: passes over the data.
    """

    samples: int
    global_batch_size: int
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.global_batch_size)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that the step (from 0) belongs to."""
        return step // self.steps_per_epoch

    def part_sizes(self, parts: int) -> set[int]:
        """The numbers of samples that a micro-batch may have, where a step is cut into so many; none is 0.

        >>> Schedule(samples=21, global_batch_size=16, epochs=2).part_sizes(4)
        {1, 2, 4}
        """
        steps = (self.span(0), self.span(self.steps_per_epoch - 1))
        return {len(part) for span in steps for part in cut(span, parts)} - {0}

    def span(self, step: int) -> Span:
        """Positions in the order of its epoch that the step (from 0) applies.

        >>> Schedule(samples=10, global_batch_size=4, epochs=2).span(5)
        Span(start=8, stop=10)
        """
        start = step % self.steps_per_epoch * self.global_batch_size
        return Span(start, min(start + self.global_batch_size, self.samples))
