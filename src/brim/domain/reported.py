"""Reports of a command on its progress, in brim's form and that of Kubeflow's trainers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.domain.options import LARGEST_COUNT
from brim.errors import SpecError

_MOST_VALUES = 32  # of one report
_LONGEST_NAME = 64  # characters of a value's name
# How transformers and Kubeflow's SDK name steps among a trainer's metrics.
_STEP, _TOTAL = "current_step", "total_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a command.

    Args:
        step: that it has made; 0: it did not say.
        total: steps that it will have made in the end; 0: it did not say.
        values: of the step, by name.
    """

    step: int = 0
    total: int = 0
    values: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, count in (("step", self.step), ("total", self.total)):
            if not 0 <= count <= LARGEST_COUNT:
                raise SpecError(name, got=str(count), need=f"a number from 0 to {LARGEST_COUNT:,}")
        if 0 < self.total < self.step:
            raise SpecError("step", got=f"{self.step} of {self.total}", need="at most the total")


def read_report(content: object) -> Report:
    """Read the report that a command has posted: plain fields, or the status of Kubeflow's trainers.

    Of the latter only the numbers of steps and the metrics count: percentages and times are made
    from them, and are wrong where a command stops before its end or was started again.

    Args:
        content: of the JSON, or the fields of a form.

    Raises:
        SpecError: it is neither.

    >>> read_report({"step": "120", "total": "960", "loss": "0.5"})
    Report(step=120, total=960, values={'loss': 0.5})
    >>> metrics = [{"name": "current_step", "value": "3"}, {"name": "loss", "value": "0.5"}]
    >>> read_report({"trainerStatus": {"progressPercentage": 99, "metrics": metrics}})
    Report(step=3, total=0, values={'loss': 0.5})
    """
    if not isinstance(content, Mapping):
        raise SpecError("the report", got=repr(content)[:_LONGEST_NAME], need="step=N and total=N")
    status = content.get("trainerStatus")
    if isinstance(status, Mapping):
        listed = status.get("metrics")
        entries = (
            [entry for entry in listed if isinstance(entry, Mapping)]
            if isinstance(listed, list)
            else []
        )
        fields = {str(entry.get("name")): entry.get("value") for entry in entries}
        fields["step"], fields["total"] = fields.pop(_STEP, 0), fields.pop(_TOTAL, 0)
    else:
        fields = {str(name): value for name, value in content.items()}
    step, total = (_count(name, fields.pop(name, 0)) for name in ("step", "total"))
    values = {name: value for name, text in fields.items() if (value := _number(text)) is not None}
    for name in values:
        if not (name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
            raise SpecError("a value's name", got=repr(name[:_LONGEST_NAME]), need="a short name")
    if len(values) > _MOST_VALUES:
        raise SpecError("values", got=str(len(values)), need=f"at most {_MOST_VALUES} of a step")
    return Report(step=step, total=total, values=values)


def _count(name: str, value: object) -> int:
    number = _number(value)
    if number is None or number != int(number):
        raise SpecError(name, got=repr(value)[:_LONGEST_NAME], need="a whole number")
    return int(number)


def _number(value: object) -> float | None:
    """Return a number, or a text of one; None for anything else, as for one that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
