"""The times at which checkpoints are written, and the choice of those that are kept.

Pure: clocks and stores are at the edge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from brim.domain.quantities import format_duration, parse_duration
from brim.errors import SpecError

_WITHIN_AN_EPOCH = 300.0  # seconds: what is lost at most where everybody who had the weights dies
_SMALLER_IS_USUALLY_BETTER = ("loss", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Between two checkpoints: so many steps, or so many seconds.

    Neither means one at the end of each epoch, and within a long one every 5 minutes.
    """

    steps: int = 0
    seconds: float = 0.0

    def is_due(self, step: int, passed: float) -> bool:
        """Return whether to write one at a step, so many seconds after the last.

        >>> [EACH_EPOCH.is_due(50, 299.0), EACH_EPOCH.is_due(51, 300.0), Interval(steps=50).is_due(51, 300.0)]
        [False, True, False]
        """
        if self.steps:
            return step % self.steps == 0
        return passed >= (self.seconds or _WITHIN_AN_EPOCH)

    def __str__(self) -> str:
        """Write the interval as `parse` reads it."""
        return format_duration(self.seconds) if self.seconds else str(self.steps)

    @classmethod
    def parse(cls, text: str, *, field: str = "--checkpoint-every") -> Interval:
        """Read `50` (steps) or `30s`.

        Raises:
            SpecError: anything else.

        >>> Interval.parse("50"), Interval.parse("1m30s")
        (Interval(steps=50, seconds=0.0), Interval(steps=0, seconds=90.0))
        """
        if text.isascii() and text.isdigit():
            return cls(steps=int(text))
        hint = f"{field.split()[0]} 50, or {field.split()[0]} 30s"
        try:
            seconds = parse_duration(text, field=field)
        except SpecError:
            seconds = 0.0
        if not seconds or text[-1:].isdigit():
            raise SpecError(
                field, got=repr(text), need="a whole number of steps or a duration", hint=hint
            )
        return cls(seconds=seconds)


EACH_EPOCH = Interval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The metric by which a checkpoint is the best, and its direction."""

    metric: str
    largest: bool = True

    def __str__(self) -> str:
        """Write the rule as `parse` reads it."""
        return f"{self.metric}:{'max' if self.largest else 'min'}"

    @classmethod
    def parse(cls, text: str, *, field: str = "--keep-best") -> Best:
        """Read `auc`, `auc:max` or `log_loss:min`; a loss or an error must say which it is.

        Raises:
            SpecError: no name, another direction, or a loss without one.

        >>> str(Best.parse("auc")), str(Best.parse("log_loss:min"))
        ('auc:max', 'log_loss:min')
        """
        metric, colon, direction = text.partition(":")
        if not metric or (colon and direction not in ("max", "min")):
            hint = f"{field.split()[0]} auc, or {field.split()[0]} log_loss:min"
            raise SpecError(field, got=repr(text), need="NAME, NAME:max or NAME:min", hint=hint)
        if not colon and any(word in metric for word in _SMALLER_IS_USUALLY_BETTER):
            raise SpecError(
                field,
                got=repr(text),
                need="whether a smaller or a larger value is better",
                hint=f"{field.split()[0]} {metric}:min",
            )
        return cls(metric=metric, largest=direction != "min")

    def of(self, metrics: Mapping[int, Mapping[str, float]]) -> int | None:
        """Return the step of the best checkpoint that has the metric.

        The later of equals; None where none has it.
        """
        candidates = [
            (values[self.metric], step) for step, values in metrics.items() if self.metric in values
        ]
        sign = 1 if self.largest else -1
        return max(
            ((sign * value, step) for value, step in candidates if not math.isnan(value)),
            default=(0.0, None),
        )[1]


def surplus(
    metrics: Mapping[int, Mapping[str, float]],
    *,
    keep: int,
    best: Best | None,
    unsound_since: int | None = None,
) -> list[int]:
    """Return the steps of checkpoints that need not be kept.

    The newest `keep`, the best, and the last sound one are kept.

    Args:
        metrics: of each checkpoint, by its step; empty where none was measured on its weights.
        unsound_since: the step whose loss was the first of those, up to now, that are no numbers.
            Its weights may have been spoiled by the update before it, so the last sound checkpoint
            is one of an earlier step.

    >>> surplus({10: {"auc": 0.7}, 20: {"auc": 0.6}, 30: {}, 40: {}}, keep=2, best=Best(metric="auc"))
    [20]
    >>> surplus({10: {}, 20: {}, 30: {}, 40: {}}, keep=1, best=None, unsound_since=20)
    [20, 30]
    """
    protected = {*sorted(metrics)[-keep:], *([] if best is None else [best.of(metrics)])}
    if unsound_since is not None:
        protected.add(max((step for step in metrics if step < unsound_since), default=None))
    return [step for step in sorted(metrics) if step not in protected]
