"""The journal of a live cluster, decided again: by the same policy, which must give the same, or by
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from brim.domain.schedule import Admitted, Decision, Rejected, Snapshot, Verdict
from brim.errors import EnvironmentFault
from brim.loop import run_cluster
from brim.policies.cycle import Memory
from brim.scheduler.loop import decide
from brim.storage.cycles import decode_cycle, decode_memory
from brim.storage.database import CycleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A cycle that was decided otherwise this time.

    Args:
        cycle: its number in the journal, from 1.
        at: seconds since 1970.
        what: one sentence for each thing that differs, what was decided then first.
    """

    cycle: int
    at: float
    policy: str
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What deciding again gave.

    Args:
        cycles: that were decided again.
        policies: that decided then, in their order.
        first, last: when the first and the last of these cycles were, seconds since 1970; None
            without cycles.
    """

    cycles: int
    policies: tuple[str, ...]
    first: float | None
    last: float | None
    differences: tuple[Difference, ...]


def replay(rows: Iterable[CycleRow], *, policy: str | None = None) -> Replay:
    """Decide every cycle of a journal again, by the loop that decided it.

    Args:
        rows: in order. Where the first is not number 1, what came before is forgotten: it only says
            what it left.
        policy: decides instead of those that did, with a memory of its own, on what was really so
            at each cycle; only workers and verdicts are compared then.
    """
    journal = _Journal(iter(rows), policy)
    asyncio.run(run_cluster(journal, journal.decide))
    return Replay(
        cycles=len(journal.times),
        policies=tuple(dict.fromkeys(journal.policies)),
        first=min(journal.times, default=None),
        last=max(journal.times, default=None),
        differences=tuple(journal.differences),
    )


class _Journal:
    """A `Backend` whose world is a journal: what is decided about it is compared, not done."""

    def __init__(self, rows: Iterator[CycleRow], policy: str | None) -> None:
        self._rows, self._other = rows, policy
        self._memory: object = None
        self._left_by = ""
        self._snapshot: Snapshot
        self._decided: Decision
        self._row: CycleRow
        self.times: list[float] = []
        self.policies: list[str] = []
        self.differences: list[Difference] = []

    async def wait(self, until: float | None) -> bool:
        for row in self._rows:
            if row.number > 1 and not self._left_by:
                self._leave(row.policy, _left_by(row))
                continue
            self._row = row
            return True
        return False

    def _leave(self, policy: str, memory: object) -> None:
        self._left_by, self._memory = policy, memory

    async def observe(self) -> Snapshot:
        seen, self._decided = decode_cycle(self._row.content)
        self._snapshot = replace(seen, memory=self._memory)
        self.times.append(seen.now)
        self.policies.append(self._row.policy)
        return self._snapshot

    def decide(self, snapshot: Snapshot) -> Decision:
        return decide(snapshot, self._other or self._row.policy, left_by=self._left_by)

    async def apply(self, decision: Decision) -> None:
        row, other = self._row, self._other
        # Where its memory is damaged, the scheduler went on without it as well.
        unreadable = other is None and _left_by(row) is None
        self._leave(other or row.policy, None if unreadable else decision.memory)
        facts = _outcome if other else _everything
        then, now = facts(self._decided), facts(decision)
        what = tuple(
            f"{name}: {then.get(name, 'none')}, this time {now.get(name, 'none')}"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        )
        if what:
            at = self._snapshot.now
            self.differences.append(
                Difference(cycle=row.number, at=at, policy=row.policy, what=what)
            )


def _left_by(row: CycleRow) -> Memory | None:
    """What a cycle left to the next; None where that is damaged."""
    try:
        return decode_memory(row.memory, policy=row.policy)
    except EnvironmentFault:
        return None


def _outcome(decision: Decision) -> dict[str, str]:
    """What jobs notice: who is let in, and who has how many workers."""
    found = {f"verdict on {verdict.job}": _word(verdict) for verdict in decision.verdicts}
    return found | {
        f"workers of {job}": str(count) for job, count in decision.workers.items() if count
    }


def _word(verdict: Verdict) -> str:
    if isinstance(verdict, Rejected):
        return "refused"
    return "promised" if verdict.promises else "accepted"


def _everything(decision: Decision) -> dict[str, str]:
    """All that a decision says, each part under a name; numbers in full, so that nothing is rounded
    away.
    """
    found = _outcome(decision) | {"wake": str(decision.wake)}
    for verdict in decision.verdicts:
        more = verdict.finish if isinstance(verdict, Admitted) else verdict.earliest
        size = verdict.share if isinstance(verdict, Admitted) else verdict.runs
        found[f"verdict on {verdict.job}"] += (
            f" ({verdict.reason}: {verdict.detail}; {size}, {more})"
        )
    for job, (reason, detail) in decision.reasons.items():
        found[f"reason of {job}"] = f"{reason}: {detail}"
    needed = {"needed": "unknown"} if decision.needed is None else {}
    needed |= {f"needed by {job}": str(count) for job, count in (decision.needed or {}).items()}
    found |= {f"place of {job}": str(dict(nodes)) for job, nodes in decision.nodes.items()}
    names = {"pinned": decision.pinned, "moved": decision.moved}
    return found | needed | {name: " ".join(sorted(jobs)) for name, jobs in names.items()}
