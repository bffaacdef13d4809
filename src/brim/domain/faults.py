"""A small language of faults.

Example: `kill rank 1 at step 40; add 2 at step 60; stop rank 0 for 5s at step 80`.

Pure: it names what is to be done and when. Two perform it: the job's own master, at the commit of
the step, and for what no process of the job could do to itself (a cut network, a full disk) `brim
chaos`, from outside.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from brim.domain.clauses import Clauses
from brim.errors import SpecError


class FaultKind(enum.StrEnum):
    KILL = "kill"
    TERM = "term"
    STOP = "stop"
    ADD = "add"
    REMOVE = "remove"
    KILL_MASTER = "kill master"
    STOP_MASTER = "stop master"
    KILL_AGENT = "kill agent"
    STOP_AGENT = "stop agent"
    TERM_AGENT = "term agent"
    KILL_HOST = "kill host"
    KILL_TEMPLATE = "kill template"
    KILL_COMMAND = "kill command"
    INTERRUPT = "interrupt"
    KILL_EVERYTHING = "kill everything"
    CUT = "cut"
    CUT_FROM = "cut from"
    CUT_TO = "cut to"
    DELAY = "delay"
    FILL_DISK = "fill disk"
    JUMP_CLOCK = "jump clock"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, performed once `step` steps have been committed.

    Args:
        rank: the victim of kill, term, stop and slow.
        count: how many workers `add` adds or `remove` removes.
        host: which is killed, whose agent is killed or asked to go, whose cable is cut or delayed;
            hosts count from 1, the master's.
        seconds: how long it lasts; 0 for a `stop` that lasts for ever, and for what has no length.
        by: seconds that packets are delayed, that the clock jumps, which may be back, or that a
            slow rank stands still at each of its stops.
    """

    kind: FaultKind
    step: int
    rank: int = 0
    count: int = 0
    host: int = 0
    seconds: float = 0.0
    by: float = 0.0


ON_NETWORK = frozenset({FaultKind.CUT, FaultKind.CUT_FROM, FaultKind.CUT_TO, FaultKind.DELAY})
ON_HOSTS = ON_NETWORK | {FaultKind.TERM_AGENT, FaultKind.KILL_HOST}  # these take several hosts
# These are `brim chaos`'s; all others are the master's.
FROM_OUTSIDE = ON_NETWORK | {
    FaultKind.KILL_MASTER,
    FaultKind.STOP_MASTER,
    FaultKind.KILL_AGENT,
    FaultKind.STOP_AGENT,
    FaultKind.TERM_AGENT,
    FaultKind.KILL_HOST,
    FaultKind.KILL_TEMPLATE,
    FaultKind.KILL_COMMAND,
    FaultKind.INTERRUPT,
    FaultKind.SLOW,
    FaultKind.KILL_EVERYTHING,
    FaultKind.FILL_DISK,
    FaultKind.JUMP_CLOCK,
}

FIELD = "--faults"
# Each form is both what is read and what is written. `stop` is also `for ever`.
_FORMS = {
    FaultKind.KILL: "kill rank {rank} at step {step}",
    FaultKind.TERM: "term rank {rank} at step {step}",
    FaultKind.STOP: "stop rank {rank} for {seconds} at step {step}",
    FaultKind.ADD: "add {count} at step {step}",
    FaultKind.REMOVE: "remove {count} at step {step}",
    FaultKind.KILL_MASTER: "kill master at step {step}",
    FaultKind.STOP_MASTER: "stop master for {seconds} at step {step}",
    FaultKind.KILL_AGENT: "kill agent {host} at step {step}",
    FaultKind.STOP_AGENT: "stop agent for {seconds} at step {step}",
    FaultKind.TERM_AGENT: "term agent {host} at step {step}",
    FaultKind.KILL_HOST: "kill host {host} at step {step}",
    FaultKind.KILL_TEMPLATE: "kill template at step {step}",
    FaultKind.KILL_COMMAND: "kill command at step {step}",
    FaultKind.INTERRUPT: "interrupt at step {step}",
    FaultKind.KILL_EVERYTHING: "kill everything at step {step}",
    FaultKind.CUT: "cut host {host} for {seconds} at step {step}",
    FaultKind.CUT_FROM: "cut from host {host} for {seconds} at step {step}",
    FaultKind.CUT_TO: "cut to host {host} for {seconds} at step {step}",
    FaultKind.DELAY: "delay host {host} by {by} for {seconds} at step {step}",
    FaultKind.FILL_DISK: "fill disk for {seconds} at step {step}",
    FaultKind.JUMP_CLOCK: "jump clock by {by} at step {step}",
    FaultKind.SLOW: "slow rank {rank} by {by} for {seconds} at step {step}",
}
_EXAMPLE = {"rank": "1", "count": "2", "host": "2", "seconds": "5s", "by": "50ms", "step": "40"}
_NUMBERS = ("rank", "count", "host", "step")
_LANGUAGE = Clauses(FIELD, _FORMS, _EXAMPLE, numbers=_NUMBERS, spans=("seconds", "by"))


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read clauses separated by `;`, in the order written; an empty string has none.

    Raises:
        SpecError: a clause is not in this language; the message quotes it.

    >>> [describe(fault) for fault in parse_faults("kill rank 1 at step 40; add 2 at step 60")]
    ['kill rank 1 at step 40', 'add 2 at step 60']
    """
    return tuple(_fault(kind, clause, words) for kind, clause, words in _LANGUAGE.read(text))


def describe(fault: Fault) -> str:
    """The clause that `parse_faults` reads back as this fault."""
    return _LANGUAGE.write(
        fault.kind,
        rank=fault.rank,
        count=fault.count,
        host=fault.host,
        step=fault.step,
        seconds=fault.seconds or "ever",
        by=fault.by,
    )


def _fault(kind: FaultKind, clause: str, words: dict[str, str]) -> Fault:
    for name, requirement in (
        ("count", f"at least 1 worker to {kind}"),
        ("host", "a host; they count from 1"),
    ):
        if words.get(name) and int(words[name]) == 0:
            raise SpecError(
                FIELD,
                got=repr(clause),
                need=requirement,
                hint=f'{FIELD} "{_LANGUAGE.example(kind)}"',
            )
    for_ever = kind is FaultKind.STOP and words["seconds"] == "ever"
    source = words.get("by", "")
    backwards = kind is FaultKind.JUMP_CLOCK and source.startswith("-")
    return Fault(
        kind=kind,
        **{name: int(words[name]) for name in _NUMBERS if name in words},
        seconds=_LANGUAGE.span(words.get("seconds"), clause) if not for_ever else 0.0,
        by=-_LANGUAGE.span(source[1:], clause) if backwards else _LANGUAGE.span(source, clause),
    )
