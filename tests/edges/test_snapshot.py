"""A snapshot of a master is data: reading it runs nothing, and the master goes on from it as it
would have.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import brim
import recorded_run
from brim.coordination.job.barrier import COMMIT, Barrier
from brim.coordination.job.membership import Event, RunOutcome, World
from brim.coordination.job.rendezvous import Rendezvous
from brim.domain.faults import parse_faults
from brim.domain.job import WorkerRange
from brim.errors import EnvironmentFault
from brim.master.decisions import Decisions
from brim.master.entries import (
    Asked,
    Before,
    Began,
    Entry,
    GraceOver,
    Heard,
    Joined,
    Lost,
    OthersLate,
    Overstayed,
)
from brim.master.state import State, freeze, thaw
from brim.wire import messages as wire
from coordination import cluster
from edges.test_master import FACTS, REPORT

LIVES = 150
SCHEDULES = 300


class Payload:
    """Any process that unpickles this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._path),)


def beginning(**fields: Any) -> Began:
    spec = recorded_run.spec(**{"workers": WorkerRange.parse("1:3"), "faults": (), **fields})
    return Began(
        at=0.0, now=0.0, attempt="1", life=1, spec=spec, run="run", started=0.0, before=Before()
    )


def test_a_snapshot_runs_nothing(tmp_path: Path) -> None:
    marker, version = tmp_path / "ran", msgspec.__version__
    pickled = pickle.dumps((brim.__version__, Payload(marker)))
    pickle.loads(pickled)
    assert marker.is_dir()  # the payload is one
    marker.rmdir()
    # This one changes a module of the process that reads it, and names nothing but what is brim's.
    through_us = b"\x80\x04cbrim.master.decisions\nmsgspec\n}\x8c\x0b__version__\x8c\x05owneds\x62."
    snapshot = msgspec.msgpack.decode(freeze(State.after(beginning())))
    altered = msgspec.msgpack.encode({**snapshot, "state": pickled})
    for crafted in (pickled, through_us, altered, b""):
        with pytest.raises(EnvironmentFault, match="snapshot cannot be read"):
            thaw(crafted)
    assert not marker.exists()
    assert msgspec.__version__ == version


def test_a_snapshot_of_another_version_says_so() -> None:
    snapshot = msgspec.msgpack.decode(freeze(State.after(beginning())))
    foreign = msgspec.msgpack.encode({"version": "0.0.1", "something": "else"})
    with pytest.raises(EnvironmentFault, match=r"is of brim 0\.0\.1, this is"):
        thaw(foreign)
    with pytest.raises(EnvironmentFault, match=r"cannot be read: .*rendezvous"):
        thaw(msgspec.msgpack.encode({**snapshot, "state": {**snapshot["state"], "rendezvous": 3}}))


class Woken(cluster.Cluster):
    """A simulated cluster whose master is put to sleep, and read from its bytes, before every
    event.
    """

    def _handle(self, event: Event) -> None:
        self.rendezvous = _asleep(self.rendezvous, Rendezvous)
        self._barrier = _asleep(self._barrier, Barrier)
        super()._handle(event)


def _asleep(value: Any, kind: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


def test_what_coordinates_sleeps_between_any_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SCHEDULES):
        awake = cluster.at_random(seed).run()
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "Cluster", Woken)
            woken = cluster.at_random(seed).run()
        assert isinstance(woken, Woken)
        assert woken.story == awake.story, f"schedule {seed}"


class Life:
    """The entries of a job with up to three agents, whose messages answer those of the master, by
    chance.

    Args:
        seed: of the chance.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        faults = parse_faults("kill rank 0 at step 3; add 1 at step 5; remove 1 at step 9")
        self.began = beginning(
            agents=self._rng.randint(1, 2),
            spares=self._rng.randint(0, 1),
            faults=faults if seed % 2 else (),
        )
        self.decisions = Decisions(State.after(self.began))
        self._read = dict[str, int]()
        self._worlds = dict[str, World]()
        self._step = 0
        self._now = 0.0

    def entries(self, count: int) -> Iterator[Entry]:
        for _ in range(count):
            self._now += self._rng.random()
            yield self._next()

    def _next(self) -> Entry:
        times: dict[str, Any] = {"at": 1000 + self._now, "now": self._now}
        agents = self.decisions.agents
        missing = [name for name in "ABC" if name not in agents]
        chance = self._rng.random()
        if missing and (not agents or chance < 0.05):
            room = self._rng.choice((None, 1, 2))
            name = missing[0]
            return Joined(agent=name, session="s", host=f"host{name}", room=room, **times)
        agent = self._rng.choice(sorted(agents))
        if chance < 0.06:
            return Lost(agent=agent, reason="gone", **times)
        if chance < 0.08:
            return GraceOver(**times) if chance < 0.07 else Overstayed(**times)
        if (due := self.decisions.state.others_due) and chance < 0.2:
            return OthersLate(round=due[0], **times)
        if chance < 0.10:
            return Asked(question=wire.Ask(verb="resize", workers=self._rng.randint(1, 3)), **times)
        if chance < 0.101:
            return Asked(question=wire.Ask(verb="suspend"), **times)
        number = agents[agent].heard + 1
        return Heard(agent=agent, number=number, message=self._says(agent), **times)

    def _says(self, agent: str) -> wire.AgentMessage:
        outbox = self.decisions.agents[agent].outbox
        messages = outbox.messages_after(self._read.get(agent, 0))
        self._read[agent] = self._read.get(agent, 0) + len(messages[:1])
        if messages and self._rng.random() < 0.3:
            outbox.acknowledge(messages[0][0])
        message = messages[0][1] if messages else None
        workers = sorted(self.decisions._rendezvous.workers) or ["w1"]
        match message:
            case wire.StartWorkers(workers=[worker]):
                return wire.WorkerStarted(worker=worker, pid=7)
            case wire.InstallRound(world=new):
                self._worlds[agent] = new
                return _from(
                    new.members[0].worker, wire.Installed(round=new.round, step=self._step)
                )
            case wire.HoldRound(round=round):
                return self._commit(round, is_held=True)
            case wire.ToWorker(worker=worker, message=wire.WriteNow()):
                return _from(worker, wire.NowWritten())
            case (
                wire.ToWorker(worker=worker, message=wire.Dismissed())
                | wire.SignalWorker(worker=worker)
            ):
                return wire.LoseWorker(worker=worker, reason="exit status 0")
        worker = self._rng.choice(workers)
        hello = wire.Hello(address=f"{worker}:1", layout="", facts=FACTS)
        world = self._worlds.get(agent)
        return self._rng.choice(
            [
                _from(worker, hello),
                _from(worker, hello),
                _from(worker, wire.CheckpointDrafted(step=self._step)),
                _from(
                    worker,
                    wire.Logged(epoch=0, step=self._step, values={"auc": self._rng.random()}),
                ),
                _from(
                    worker,
                    wire.Evaluated(epoch=self._step // 4, step=self._step, metrics={"loss": 0.5}),
                ),
                _from(worker, wire.LeaveAsked()),
                _from(worker, wire.Completed(weights_sha256="d1", metrics={"auc": 0.7}))
                if self._step > 20
                else wire.Warn(message="not done yet"),
                wire.Late(
                    worker=worker, doing="in step 3", seconds=9.0, limit=None, stack="a stack"
                ),
                wire.OnTime(worker=worker),
                wire.Silence(worker=worker, silent=True),
                wire.LoseWorker(worker=worker, reason="signal 9"),
                *[self._commit(world.round) if world else wire.Warn(message="nothing yet")] * 8,
                *[self._together(world) if world else wire.Warn(message="nothing yet")] * 3,
            ]
        )

    def _commit(self, round: int, *, is_held: bool = False) -> wire.Commits:
        self._step += 1
        record = wire.CommitRecord(
            round=round, step=self._step, at=self._now, payloads=[REPORT], held=is_held
        )
        return wire.Commits(records=[record])

    def _together(self, world: World) -> wire.ArriveTogether:
        return wire.ArriveTogether(
            round=world.round, step=self._step, phase=COMMIT, payloads=[REPORT]
        )


def _from(worker: str, message: wire.WorkerMessage) -> wire.FromWorker:
    return wire.FromWorker(worker=worker, message=message)


def test_decisions_come_back_as_they_were() -> None:
    """Through random lives: nothing of a state is left out, and the woken master decides the same."""
    outcomes = set[RunOutcome | None]()
    message_count = 0
    for seed in range(LIVES):
        life = Life(seed)
        for entry in life.entries(120):
            woken = Decisions(thaw(freeze(life.decisions.state)))
            assert vars(woken) == vars(life.decisions), f"life {seed}"
            effects = life.decisions.take(entry)
            assert woken.take(entry) == effects, f"life {seed}: {entry}"
            message_count += len(effects)
        outcomes.add(life.decisions.outcome)
    assert outcomes == {None, *RunOutcome}
    assert message_count > 100 * LIVES
