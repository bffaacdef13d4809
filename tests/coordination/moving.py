"""A whole job in one thread whose master's host dies: another master goes on from agents' copies.

Shipped code, besides that of `cluster.py`: the master's decisions, its admission of agents,
sessions, and its messages for copies. Simulated: streams, whose last parcels may be lost, and the
disks. `python -m coordination.moving 10000` in `tests/` runs so many schedules at random.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

import recorded_run
from brim.coordination.job.membership import RunOutcome
from brim.coordination.job.session import Outbox, is_new
from brim.domain.accounting import audit, sample_checksum
from brim.domain.job import WorkerRange
from brim.domain.step_records import Restore, StepRecord, lasting
from brim.host.clock import VirtualClock
from brim.master.copying import CopyFeed
from brim.master.decisions import Decisions, Record
from brim.master.entrance import age_of_copy
from brim.master.entries import Asked, Before, Began, Entry, Restated, TookOver, decode, encode
from brim.master.loop import Master, _Connection
from brim.master.records import Written
from brim.master.state import State, thaw
from brim.telemetry.events import Event, Restored
from brim.telemetry.record_files import EVENTS, STEPS
from brim.wire import messages as wire
from coordination.cluster import (
    PARTS,
    SCHEDULE,
    Closed,
    Cluster,
    Fault,
    Setting,
    SimAgent,
    calm_weights,
    validate,
)
from coordination.cluster import State as WorkersState

_steps = msgspec.json.Decoder(StepRecord)
_events = msgspec.json.Decoder(Event)


class Disk:
    """The journal and the records of one master; stands for `Records`."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.files: dict[str, bytearray] = {EVENTS: bytearray(), STEPS: bytearray()}
        self.recent: deque[Written] = deque(maxlen=30)

    def take(self, decisions: Decisions, entry: Entry) -> None:
        payload = encode(entry)
        self.entries.append(payload)
        self._take(decisions, payload, entry)

    def _take(self, decisions: Decisions, payload: bytes, entry: Entry) -> None:
        lines = [record for record in decisions.take(entry) if isinstance(record, Record)]
        for line in lines:
            file, end = self.files[line.file], line.place + len(line.line)
            assert line.place <= len(file), "a record file lacks lines"
            assert file[line.place : end] in (b"", line.line), "another line is on record"
            file[line.place : end] = line.line
        self.recent.append(Written(decisions.state.entries, payload, lines))
        validate(decisions._rendezvous)

    def follow(self) -> Decisions:
        decisions: Decisions | None = None
        for payload in self.entries:
            entry = decode(payload)
            if isinstance(entry, Began):
                decisions = Decisions(State.after(entry))
            elif isinstance(entry, Restated):
                decisions = Decisions(thaw(entry.state))
            else:
                assert decisions is not None
                self._take(decisions, payload, entry)
        assert decisions is not None
        return decisions

    def read(self, file: str, place: int, size: int) -> bytes:
        return bytes(self.files[file][place : place + size])

    def lament(self, message: str, clock: object) -> None:
        raise AssertionError(message)

    def keep_prints(self, printed: object) -> None:
        raise AssertionError("nobody prints here")


@dataclass
class Copy:
    """An agent's copy of a disk; stands for its `Copy`."""

    disk: Disk = field(default_factory=Disk)
    number: int = 0
    holders: int = 0

    def take(self, part: wire.CopyPart) -> None:
        if part.begins:
            self.disk = Disk()
        for record in part.records:
            file = self.disk.files[record.file]
            assert record.place == len(file), "a copy's records have a gap"
            file += record.data
        self.disk.entries = [*([] if part.restates else self.disk.entries), *part.entries]
        self.number, self.holders = part.number, part.holders


@dataclass
class Line:
    """A stream between an agent and a master; parcels of a dead end may still be on their way."""

    up: deque[wire.FromAgent] = field(default_factory=deque)
    down: deque[wire.FromMaster] = field(default_factory=deque)
    sent: int = 0  # by the agent
    connection: _Connection | None = None
    admitted: bool = False  # the agent has heard so


class Holder(SimAgent):
    """An agent with its end of the session, and its copy."""

    def __init__(self, cluster: Moving, name: str, *, keeps: bool) -> None:
        super().__init__(cluster, name)
        self.session: Outbox[wire.AgentMessage] = Outbox()
        self.heard = self.life = 0
        self.keeps, self.copy = keeps, Copy()
        self.departs = False
        self.told: wire.JournalPlace | None = None
        self.line: Line | None = None

    def join(self) -> wire.JoinJob:
        offer = None
        if self.keeps and self.copy.number and self.told is not None:
            place = wire.JournalPlace(self.told.origin, self.copy.number)
            offer = wire.CopyOffer(place=place, holders=self.copy.holders)
        return wire.JoinJob(
            agent=self.name,
            session=self.name,
            host=self.name,
            life=self.life,
            heard=self.heard,
            keeps=self.keeps,
            told=self.told,
            copy=offer,
        )

    def say(self) -> None:
        """Take the next word of its own into the session."""
        message = self.outbox.popleft()
        assert not isinstance(message, Closed)
        self.session.put(message)

    def send(self) -> None:
        assert self.line is not None
        number, message = self.session.messages_after(self.line.sent)[0]
        self.line.sent = number
        self.line.up.append(wire.FromAgent(number, self.heard, message))

    def receive(self) -> None:
        assert self.line is not None
        parcel = self.line.down.popleft()
        if isinstance(parcel.message, wire.Configure):
            origins = {part.origin for part in parcel.message.line}
            assert self.told is None or self.told.origin in origins, "another run's master"
            assert parcel.message.life >= self.life
            self.life = parcel.message.life
            self.told = wire.JournalPlace(parcel.message.line[-1].origin, 0)
            self.line.sent, self.line.admitted = parcel.heard, True
        assert self.told is not None
        if parcel.copy is not None and self.keeps:
            self.copy.take(parcel.copy)
        self.told = wire.JournalPlace(self.told.origin, parcel.told)
        self.session.acknowledge(parcel.heard)
        if parcel.number and is_new(parcel.number, last_number=self.heard):
            self.heard = parcel.number
            assert not isinstance(parcel.message, wire.Configure | wire.Beat | wire.Refused)
            self.inbox.append(parcel.message)


class Moving(Cluster):
    """A job whose master, and its host, may die.

    Args:
        setting, choose, faults: see `Cluster`; besides, `lose_master` (its host is gone),
            `hand_over` (the master leaves, its host stays), `restart` (it goes on where it was) and
            `depart` (agents are asked to leave).
        local: the first agent is on the master's host.
    """

    def __init__(
        self,
        setting: Setting,
        choose: Callable[[int], int],
        faults: tuple[Fault, ...] = (),
        *,
        local: bool,
    ) -> None:
        super().__init__(setting, choose, faults)
        self.clock = VirtualClock(100.0)
        self._born = setting.agents
        self.agents: dict[str, SimAgent] = {}
        for number in range(setting.agents):
            self._add(f"a{number}", keeps=not (local and number == 0))
        self.takeovers = self.displaced = self.late = 0
        self._called: set[str] = set()  # those with the master that took over last
        self._disk: Disk | None = Disk()
        spec = recorded_run.spec(
            workers=WorkerRange(minimum=setting.minimum, maximum=setting.target),
            agents=setting.agents,
            spares=setting.spares,
            micro_batches=PARTS,
            faults=(),
        )
        beginning = Began(
            at=self.clock.wall(),
            now=self.clock.now(),
            attempt="first",
            life=1,
            spec=spec,
            run="run",
            started=0.0,
            before=Before(),
            stands_alone=not local,
        )
        self._disk.entries.append(encode(beginning))
        self.decisions = Decisions(State.after(beginning))
        self.master: Master | None = self._lead(self._disk)

    def _add(self, name: str, *, keeps: bool) -> None:
        self.agents[name] = Holder(self, name, keeps=keeps)

    def _stamp(self) -> dict[str, float]:
        self.clock.advance(0.001)
        return {"at": self.clock.wall(), "now": self.clock.now()}

    def _lead(self, disk: Disk) -> Master:
        return Master(self.decisions, disk, clock=self.clock)  # type: ignore[arg-type]

    @property
    def holders(self) -> list[Holder]:
        return [agent for agent in self.agents.values() if isinstance(agent, Holder)]

    # What the base asks of the master's state

    def key_of(self, payload: Any) -> bytes:
        if not isinstance(payload, list):
            return super().key_of(payload)
        parts = [
            wire.MicroReport(rank, micro, start, stop, sample_checksum(np.arange(start, stop)), 0.0)
            for rank, micro, start, stop in payload
        ]
        # Of which epoch it is follows from the step, which is not known here: see `_records`.
        return msgspec.msgpack.encode(wire.StepReport(epoch=0, parts=parts, seconds={}))

    @property
    def storage(self) -> WorkersState | None:
        """The newest checkpoint that is not ahead of the records."""
        official = [step for step in self._stored if step <= self.decisions.progress.step]
        return self._stored[max(official)] if official else None

    # What happens next

    def happen(self) -> bool:
        if self.decisions.outcome is not None:
            return False
        able = self._enabled()
        while self._faults and (self.events >= self._faults[0].after or not able):
            self.inflict(self._faults.pop(0))
            able = self._enabled()
        if not able:
            return False
        self.events += 1
        assert self.events < 40_000, "it does not end"
        able[self._choose(len(able))]()
        return True

    def _enabled(self) -> list[Callable[[], None]]:
        able: list[Callable[[], None]] = []
        if self.master is None:
            able.append(self._take_over)
        elif not any(holder.alive for holder in self.holders) or self._waits_for_hosts:
            able.append(partial(self._add, f"a{self._number()}", keeps=True))
        for holder in self.holders:
            able += self._of_lines(holder, self.master)
            if not holder.alive:
                continue
            if holder.inbox:
                able.append(holder.obey)
            if holder.outbox:
                able.append(holder.say)
            able += [partial(holder.start, name) for name in holder.waiting]
            for worker in holder.workers.values():
                if worker.outbox:
                    able.append(partial(holder.hear, worker))
                if worker.runnable:
                    able.append(worker.run)
                if worker.writes:
                    able.append(worker.write)
                if worker.alive and worker.has_made:
                    able.append(worker.beat)
        return able

    @property
    def _waits_for_hosts(self) -> bool:
        """The run has not begun, and hosts that it was to begin with are gone."""
        rendezvous = self.decisions._rendezvous
        living = sum(holder.alive for holder in self.holders)
        return not rendezvous.roster.hired and living < self.setting.agents

    def _number(self) -> int:
        self._born += 1
        return self._born

    def _of_lines(self, holder: Holder, master: Master | None) -> list[Callable[[], None]]:
        able: list[Callable[[], None]] = []
        line = holder.line
        if line is None:
            if master is not None and holder.alive:
                able.append(partial(self._call, holder, master))
            elif master is not None and holder.name in self.decisions.agents:
                able.append(partial(self._notice, holder.name, master))
            return able
        if holder.alive and line.down:
            able.append(holder.receive)
        if holder.alive and line.admitted and holder.session.messages_after(line.sent):
            able.append(holder.send)
        if line.connection is None or master is None:  # the master that it led to is gone
            if not line.down or not holder.alive:
                able.append(partial(self._hang_up, holder))
            return able
        if line.up:
            able.append(partial(self._hear_parcel, holder, line, master))
        if self._has_news(holder, line):
            able.append(partial(self._tell_more, holder, line))
        if not holder.alive and not line.up:
            able.append(partial(self._hang_up, holder))
        return able

    @staticmethod
    def _hang_up(holder: Holder) -> None:
        holder.line = None

    # The master's end of streams

    def _call(self, holder: Holder, master: Master) -> None:
        join = holder.join()
        refused = master._admit(join)
        if refused is not None:
            assert holder.name not in self._called, "it is displaced, and had offered its copy"
            self.displaced += 1
            self._retire(holder)
            return
        self._called.discard(holder.name)
        connection = _Connection(master._feed(join), sent=join.heard)
        master._connections[holder.name] = connection
        session = self.decisions.agents[holder.name]
        session.outbox.acknowledge(join.heard)
        holder.line = Line(connection=connection)
        hello = wire.Configure(
            spec=self.decisions.spec,
            run_dir="run",
            life=self.decisions.state.life,
            heard=session.heard,
            line=tuple(self.decisions.state.line),
        )
        self._put(holder.line, 0, hello, session.heard)
        connection.news.set()

    def _put(self, line: Line, number: int, message: wire.MasterMessage, received: int) -> None:
        assert line.connection is not None
        feed: CopyFeed | None = line.connection.feed
        copy = feed.part() if feed is not None else None
        entry_count = self.decisions.state.entries
        line.down.append(wire.FromMaster(number, received, message, entry_count, copy))
        line.connection.news.clear()

    def _has_news(self, holder: Holder, line: Line) -> bool:
        assert line.connection is not None
        session = self.decisions.agents.get(holder.name)
        return session is not None and line.connection.news.is_set()

    def _tell_more(self, holder: Holder, line: Line) -> None:
        session = self.decisions.agents[holder.name]
        assert line.connection is not None
        fresh = session.outbox.messages_after(line.connection.sent)
        for number, message in fresh or [(0, wire.Beat())]:
            line.connection.sent = max(line.connection.sent, number)
            line.connection.told = session.heard
            self._put(line, number, message, session.heard)

    def _hear_parcel(self, holder: Holder, line: Line, master: Master) -> None:
        parcel = line.up.popleft()
        session = self.decisions.agents.get(holder.name)
        if session is not None and holder.name in master._connections:
            master._on_parcel(holder.name, session, parcel)
            assert holder.name in self.decisions.agents, "what it said made no sense"

    def _notice(self, name: str, master: Master) -> None:
        master._lose(name, "its connection closed")

    def _retire(self, holder: Holder) -> None:
        """It ends its workers, and comes again under another name."""
        holder.lose()
        holder.outbox.clear()
        holder.line = None
        self._add(f"a{self._number()}", keeps=holder.keeps)

    # The master's death

    def inflict(self, fault: Fault) -> None:
        living = [holder for holder in self.holders if holder.alive]
        match fault.kind:
            case "lose_master" | "hand_over" | "restart" if self.master is not None:
                self.story.append((self.events, fault))
                self._end_master(fault)
            case "lose_agent" if len(living) > 1 and len(self.decisions.agents) > 1:
                self.story.append((self.events, fault))
                victim = living[fault.which % len(living)]
                victim.lose(unsent=fault.which)
                victim.outbox.clear()
            case "depart" if self.decisions._rendezvous.stands_alone:
                self.story.append((self.events, fault))
                staying = [holder for holder in living if holder.life and not holder.departs]
                for leaver in staying[fault.which % max(1, len(staying)) :]:
                    leaver.departs = True
                    leaver.outbox.append(wire.Depart())
            case "resize" | "stop" if self.master is not None:
                self.story.append((self.events, fault))
                verb = "suspend" if fault.kind == "stop" else "resize"
                ask = wire.Ask(verb=verb, workers=1 + fault.which % 4)
                if not self.decisions.refusal(ask):
                    self._ask(ask)
            case "kill" | "term" | "kill_all":
                super().inflict(fault)

    def _ask(self, ask: wire.Ask) -> None:
        assert self.master is not None
        self.master._take(Asked(question=ask, **self._stamp()))

    def _end_master(self, fault: Fault) -> None:
        """Some of its last messages are lost: of each stream the adversary says how many."""
        for holder in self.holders:
            if holder.line is not None:
                line = holder.line
                line.connection = None
                line.up.clear()
                lost = self._choose(len(line.down) + 1) if fault.kind != "hand_over" else 0
                for _ in range(lost):
                    line.down.pop()
        if fault.kind == "restart":
            assert self._disk is not None
            entries = self._disk.entries
            disk = Disk()
            disk.entries, disk.files = list(entries), self._disk.files
            self._go_on(disk, origin="")
            return
        self.master = self._disk = None
        for holder in self.holders:
            if not holder.keeps and fault.kind == "lose_master":
                holder.lose()
                holder.outbox.clear()

    def _take_over(self) -> None:
        """Of the agents that are left some call in time; the longest of their copies it is."""
        living = [holder for holder in self.holders if holder.alive]
        calling = [holder.join() for holder in living if holder.line is None]
        offers = {join.agent: join for join in calling if join.copy is not None}
        if not offers:
            if len(calling) == len(living):
                raise NoCopyLeft
            return  # parcels of the dead master are still on their way
        for name in list(offers)[: self._choose(len(offers))]:
            del offers[name]
            self.late += 1
        longest = max(offers, key=lambda name: age_of_copy(offers[name]))
        holder = self.agents[longest]
        assert isinstance(holder, Holder)
        disk = Disk()
        disk.entries = list(holder.copy.disk.entries)
        disk.files = {name: bytearray(data) for name, data in holder.copy.disk.files.items()}
        self.takeovers += 1
        self._called = set(offers)
        self._go_on(disk, origin=f"takeover {self.takeovers}")

    def _go_on(self, disk: Disk, *, origin: str) -> None:
        self.decisions = disk.follow()
        self.master, self._disk = self._lead(disk), disk
        life = self.decisions.state.life + 1
        wall, now = self.clock.wall(), self.clock.now()
        self.master._take(TookOver(life=life, origin=origin, at=wall, now=now))

    # What must hold at the end

    def _records(self) -> tuple[list[StepRecord], list[Restore]]:
        assert self._disk is not None
        steps = [_steps.decode(line) for line in bytes(self._disk.files[STEPS]).splitlines()]
        steps = [replace(step, epoch=SCHEDULE.epoch_of(step.step - 1)) for step in steps]
        events = [_events.decode(line) for line in bytes(self._disk.files[EVENTS]).splitlines()]
        restores = [Restore(e.step, e.commits) for e in events if isinstance(e, Restored)]
        return steps, restores

    def check(self) -> None:
        outcome = self.decisions.outcome
        assert outcome is not None, "it hangs"
        assert outcome is not RunOutcome.FAILED, bytes(self._disk.files[EVENTS]).splitlines()[-2:]  # type: ignore[union-attr]
        assert not self.decisions._rendezvous.workers
        steps, restores = self._records()
        lasting_steps = lasting(steps, restores)
        assert [step.step for step in lasting_steps] == list(range(1, len(lasting_steps) + 1)), (
            "steps are lost or repeated"
        )
        stored = [state for step, state in self._stored.items()]
        assert all(state.weights == calm_weights(state[0]) for state in stored)
        if outcome is not RunOutcome.DONE:
            fault_kinds = {fault.kind for _, fault in self.story if isinstance(fault, Fault)}
            outlives = self.decisions._rendezvous.stands_alone
            assert fault_kinds & {"stop", "term"} or not outlives, (
                "it did not wait for another host"
            )
            return
        assert self.weights == calm_weights(SCHEDULE.steps), "other weights than of a calm run"
        assert len(lasting_steps) == SCHEDULE.steps
        ledger = audit(
            steps,
            restores,
            samples_per_epoch=SCHEDULE.samples,
            epochs=SCHEDULE.epochs,
            order=lambda epoch, start, stop: np.arange(start, stop),
        )
        assert ledger.exact, ledger


class NoCopyLeft(Exception):
    """All copies of a run's journal are gone with their hosts: its last checkpoint is left."""


KINDS = (
    *("lose_master",) * 6,
    *("hand_over", "hand_over", "restart", "lose_agent", "lose_agent"),
    *("depart",) * 3,
    *("kill", "kill", "kill", "term", "resize", "resize", "kill_all", "stop"),
)


def at_random(seed: int) -> Moving:
    """A setting, faults and a schedule that follow from the seed."""
    rng = random.Random(seed)
    target = rng.randint(1, 4)
    setting = Setting(
        agents=rng.choice((2, 3, 3)),
        minimum=rng.randint(1, target),
        target=target,
        spares=rng.randint(0, 1),
        every=rng.choice((1, 2, 1000)),
    )
    faults = tuple(
        Fault(int(rng.random() ** 1.5 * 700), rng.choice(KINDS), rng.randrange(4))
        for _ in range(rng.randint(1, 5))
    )
    lazy = rng.random() < 0.5

    def choose(count: int) -> int:
        return int(rng.random() ** (3 if lazy else 1) * count)

    return Moving(setting, choose, faults, local=rng.random() < 0.5)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    seen, failures = Counter[str](), 0
    for seed in range(first, first + count):
        job = at_random(seed)
        try:
            job.run()
        except NoCopyLeft:
            seen["no copy left"] += 1
        except Exception as error:  # noqa: BLE001 - a tally of what went wrong
            failures += 1
            if failures <= 10:
                print(seed, type(error).__name__, str(error)[:300])  # noqa: T201
        seen["events"] += job.events
        seen["takeovers"] += job.takeovers
        seen["displaced"] += job.displaced
        seen[str(job.decisions.outcome)] += 1
    print(f"{count} schedules, {failures} failures, {dict(seen)}")  # noqa: T201


if __name__ == "__main__":
    main()
