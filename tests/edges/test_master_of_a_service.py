"""A master and what workers say of their replicas: records, failures, and a rolling restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import recorded_run
from brim.backends.watching import RunWatch
from brim.domain.job import WorkerRange
from brim.domain.services import Service, ServiceReplica
from brim.master.decisions import Decisions, Record
from brim.master.entries import Asked, Before, Began, Heard, Joined
from brim.master.state import State, freeze, thaw
from brim.telemetry.record_files import EVENTS
from brim.wire import messages as wire
from edges.test_master_dies import hello, installed


class Master:
    """One that leads a service of so many replicas, all of which are in the first round.

    Attributes:
        events: that it has recorded.
    """

    def __init__(self, count: int) -> None:
        spec = recorded_run.spec(
            file="",
            command=("python", "s.py"),
            restart=True,
            epochs=0,
            spares=0,
            service=Service(port=8000, maximum=4),
            workers=WorkerRange(minimum=count, maximum=count),
        )
        began = Began(
            at=0.0, now=0.0, attempt="1", life=1, spec=spec, run="run", started=0.0, before=Before()
        )
        self.decisions = Decisions(State.after(began))
        self.events: list[dict[str, Any]] = []
        self.lines = b""
        self.number = 0
        self._take(Joined(at=1.0, now=1.0, agent="a1", session="s", host="h"))
        for worker in self.workers:
            self.hear(hello(worker))
        for worker in self.workers:
            self.hear(installed(worker, 1, 0))

    @property
    def workers(self) -> list[str]:
        return list(self.decisions.state.rendezvous.workers)

    def _take(self, entry: Any) -> None:
        for effect in self.decisions.take(entry):
            if isinstance(effect, Record) and effect.file == EVENTS:
                self.lines += effect.line
                self.events.append(msgspec.json.decode(effect.line))

    def hear(self, message: wire.AgentMessage) -> None:
        self.number += 1
        at = float(self.number + 1)
        self._take(Heard(at=at, now=at, agent="a1", number=self.number, message=message))

    def news(self, worker: str, replica: str, state: str, **fields: Any) -> None:
        news = wire.ReplicaNews(replica=replica, state=state, **fields)
        self.hear(wire.FromWorker(worker=worker, message=news))

    def ready(self, worker: str, count: int) -> None:
        self.news(worker, f"{worker}-{count}", "ready", address=f"127.0.0.1:{4000 + count}")

    def renew(self) -> None:
        self._take(Asked(at=99.0, now=99.0, question=wire.Ask(verb="renew")))

    @property
    def renewed(self) -> list[str]:
        """The workers that were told to replace their replicas, in order."""
        messages = [message for _, message in self.decisions.agents["a1"].outbox.messages_after(0)]
        return [
            message.worker
            for message in messages
            if isinstance(message, wire.ToWorker) and isinstance(message.message, wire.RenewReplica)
        ]

    def failures(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == "failed"]


def test_service_that_was_never_ready_fails() -> None:
    master = Master(2)
    master.news("w1", "w1-1", "gone", reason="exit status 3: no such table")
    assert not master.failures()
    master.news("w1", "w1-5", "failed", reason="exit status 3: no such table")
    (failure,) = master.failures()
    assert failure["who"] == "user"
    assert failure["message"].endswith("the last: exit status 3: no such table")


def test_replica_that_fails_later_ends_no_service() -> None:
    master = Master(2)
    master.ready("w1", 1)
    master.news("w2", "w2-5", "failed", reason="exit status 3")
    assert not master.failures()


def test_replicas_are_replaced_one_after_the_other() -> None:
    master = Master(3)
    for worker in master.workers:
        master.ready(worker, 1)
    assert master.decisions.refusal(wire.Ask(verb="renew")) == ""
    master.renew()
    assert master.renewed == ["w1"]
    master.news("w1", "w1-1", "ready", address="127.0.0.1:4001", cpu=0.5)  # not its successor
    assert master.renewed == ["w1"]
    master.ready("w1", 2)
    assert master.renewed == ["w1", "w2"]
    assert master.decisions.status()["renewing"] == 2
    master.decisions = Decisions(thaw(freeze(master.decisions.state)))  # another master goes on
    master.hear(wire.LoseWorker(worker="w2", reason="signal 9"))
    assert master.renewed == ["w1", "w2", "w3"]
    master.ready("w3", 2)
    assert master.decisions.status()["renewing"] == 0


def test_other_runs_have_nothing_to_replace() -> None:
    beginning = Began(
        at=0.0,
        now=0.0,
        attempt="1",
        life=1,
        spec=recorded_run.spec(),
        run="r",
        started=0.0,
        before=Before(),
    )
    decisions = Decisions(State.after(beginning))
    assert "no service" in decisions.refusal(wire.Ask(verb="renew"))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4001; shutdown", "example.com:80", "", "[::1%lo]:80"]
)
def test_scheduler_sees_replicas_as_the_records_say(tmp_path: Path, address: str) -> None:
    master = Master(2)
    master.ready("w1", 1)
    master.news("w2", "w2-1", "ready", address=address)  # its owner may have written that
    master.news("w1", "w1-1", "ready", address="127.0.0.1:4001", cpu=0.75)
    (tmp_path / EVENTS).write_bytes(master.lines)
    watch = RunWatch(tmp_path)
    watch.poll()
    seen = watch.seen(alive=True, workers={"a1": 2})
    assert seen.replicas == (ServiceReplica("w1-1", "127.0.0.1", 4001, "ready", 0.75),)
    assert (seen.step, seen.first_step is not None) == (2, True)
    master.news("w1", "w1-1", "leaving", address="127.0.0.1:4001")
    master.hear(wire.LoseWorker(worker="w2", reason="signal 9"))
    (tmp_path / EVENTS).write_bytes(master.lines)
    watch.poll()
    (replica,) = watch.replicas
    assert not replica.is_ready
    master.news("w1", "w1-1", "gone", reason="it was to leave")
    (tmp_path / EVENTS).write_bytes(master.lines)
    watch.poll()
    assert watch.replicas == ()
