"""Faults as a small language: `kill rank 1 at step 40; add 2 at step 60; stop rank 0 for 5s at step 80`.

Pure: it names what is to be done and when; performing it is the agent's work.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from brim.domain.quantities import format_duration, parse_duration
from brim.errors import SpecError, did_you_mean

__all__ = ["Fault", "FaultKind", "describe", "parse_faults"]


class FaultKind(enum.StrEnum):
    KILL = "kill"
    TERM = "term"
    STOP = "stop"
    ADD = "add"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, performed once `step` steps have been committed.

    Args:
        rank: the victim of kill, term and stop.
        count: how many workers `add` adds.
        seconds: how long `stop` lasts.
    """

    kind: FaultKind
    step: int
    rank: int = 0
    count: int = 0
    seconds: float = 0.0


FIELD = "--faults"
_FORMS = {
    FaultKind.KILL: (re.compile(r"kill rank (?P<rank>\d+) at step (?P<step>\d+)"), "kill rank 1 at step 40"),
    FaultKind.TERM: (re.compile(r"term rank (?P<rank>\d+) at step (?P<step>\d+)"), "term rank 2 at step 90"),
    FaultKind.STOP: (
        re.compile(r"stop rank (?P<rank>\d+) for (?P<span>.+?) at step (?P<step>\d+)"),
        "stop rank 0 for 5s at step 80",
    ),
    FaultKind.ADD: (re.compile(r"add (?P<count>\d+) at step (?P<step>\d+)"), "add 2 at step 60"),
}


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read clauses separated by `;`, in the order written; an empty text has none.

    Raises:
        SpecError: a clause that says nothing this language can say; the message quotes that clause.

    >>> [describe(fault) for fault in parse_faults("kill rank 1 at step 40; add 2 at step 60")]
    ['kill rank 1 at step 40', 'add 2 at step 60']
    """
    clauses = [" ".join(clause.split()) for clause in text.split(";")]
    return tuple(_parse_clause(clause) for clause in clauses if clause)


def describe(fault: Fault) -> str:
    """The clause that `parse_faults` reads back as this fault."""
    at = f"at step {fault.step}"
    match fault.kind:
        case FaultKind.ADD:
            return f"add {fault.count} {at}"
        case FaultKind.STOP:
            return f"stop rank {fault.rank} for {format_duration(fault.seconds)} {at}"
        case _:
            return f"{fault.kind} rank {fault.rank} {at}"


def _parse_clause(clause: str) -> Fault:
    verb = clause.split()[0].lower()
    if verb not in set(FaultKind):
        hint = did_you_mean(verb, [kind.value for kind in FaultKind])
        raise SpecError(
            FIELD, got=repr(clause), need="a clause that begins with kill, term, stop or add", hint=hint
        )
    pattern, example = _FORMS[FaultKind(verb)]
    found = pattern.fullmatch(clause.lower())
    if not found:
        raise SpecError(
            FIELD, got=repr(clause), need=f"a clause like {example!r}", hint=f'--faults "{example}"'
        )
    groups = found.groupdict()
    if groups.get("count") == "0":
        raise SpecError(
            FIELD, got=repr(clause), need="at least 1 worker to add", hint=f'--faults "{example}"'
        )
    span = groups.get("span")
    return Fault(
        kind=FaultKind(verb),
        step=int(groups["step"]),
        rank=int(groups.get("rank", 0)),
        count=int(groups.get("count", 0)),
        seconds=parse_duration(span, field=f"{FIELD} {clause!r}") if span else 0.0,
    )
