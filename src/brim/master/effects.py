"""What comes of a master's decisions: lines of the record files, and messages in the outboxes of
its sessions. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from brim.coordination.session import Outbox
from brim.telemetry.events import Event, Restored, event_of
from brim.telemetry.record_files import EVENTS, STEPS
from brim.wire.messages import MasterMessage


@dataclass(frozen=True, slots=True)
class Record:
    """A line that belongs at this place of a record file, whether or not it is there already."""

    file: str
    place: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Secure:
    """Bring the journal down to the disk before anything else is said."""


Effect = Record | Secure


@dataclass(slots=True)
class AgentSession:
    """The master's end of its conversation with one agent."""

    session: str
    host: str
    heard: int = 0
    outbox: Outbox[MasterMessage] = field(default_factory=Outbox)


@dataclass(slots=True, kw_only=True)
class Effects:
    """Collects the effects of one entry after the other.

    Args:
        sizes: bytes of the record files, by name.
        commits: steps that were ever committed.
        at: when the entry was written, in seconds since 1970.
        now: the same, monotonic.
        agents: those in the job, by name.
    """

    sizes: dict[str, int]
    commits: int
    at: float
    now: float
    agents: dict[str, AgentSession] = field(default_factory=dict)
    _pending: list[Effect] = field(default_factory=list)

    def begin(self, *, at: float, now: float) -> None:
        """Another entry."""
        self.at, self.now = at, now

    def end(self) -> list[Effect]:
        """What is to be performed, in order."""
        effects, self._pending = self._pending, []
        return effects

    def event(self, kind: str, /, **fields: object) -> None:
        """A line of events.jsonl, of this moment."""
        self._record(EVENTS, event_of(kind, at=self.at, **fields))

    def restored(self, step: int, *, at: float, path: str) -> None:
        """A line of events.jsonl, of an earlier moment: the next commits begin behind `step`."""
        self._record(EVENTS, Restored(at=at, step=step, path=path, commits=self.commits))

    def step(self, fields: dict[str, Any]) -> None:
        """A line of steps.jsonl."""
        self._record(STEPS, fields)
        self.commits += 1

    def _record(self, file: str, record: Event | dict[str, Any]) -> None:
        line = msgspec.json.encode(record) + b"\n"
        place = self.sizes.get(file, 0)
        self.sizes[file] = place + len(line)
        self._pending.append(Record(file, place, line))

    def secure(self) -> None:
        """Nothing is said before the journal is on disk."""
        self._pending.append(Secure())

    def tell(self, agent: str, message: MasterMessage) -> None:
        """Say something to an agent, if it is in the job."""
        if agent in self.agents:
            self.agents[agent].outbox.put(message)
