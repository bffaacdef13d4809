"""A master's decisions on slow workers and bad hosts follow from its journal, and are told to
people.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

import recorded_run
from brim.domain.job import WorkerRange
from brim.master.decisions import Decisions, Effect, Record
from brim.master.entries import Asked, Before, Began, Entry, Heard, Joined
from brim.master.state import State, freeze, thaw
from brim.telemetry.record_files import EVENTS
from brim.wire import messages as wire
from edges.test_master import FACTS


class Job:
    """The entries of a job with one agent, as it goes on."""

    def __init__(self, workers: int, /, **options: Any) -> None:
        self.workers = [f"w{number}" for number in range(1, workers + 1)]
        spec = recorded_run.spec(
            **{
                "workers": WorkerRange(minimum=workers, maximum=workers),
                "faults": (),
                "spares": 0,
                **options,
            }
        )
        self.began = Began(
            at=0.0, now=0.0, attempt="1", life=1, spec=spec, run="run", started=0.0, before=Before()
        )
        self.entries: list[Entry] = [Joined(at=1.0, now=1.0, agent="a1", session="s", host="node7")]
        for worker in self.workers:
            self.hears(wire.WorkerStarted(worker=worker, pid=1))
            self.hears(
                wire.FromWorker(
                    worker=worker, message=wire.Hello(address="h:1", layout="", facts=FACTS)
                )
            )

    def hears(self, message: wire.AgentMessage) -> None:
        moment = float(len(self.entries))
        number = sum(isinstance(entry, Heard) for entry in self.entries) + 1
        self.entries.append(
            Heard(at=moment, now=moment, agent="a1", number=number, message=message)
        )

    def steps(
        self,
        count: int,
        *,
        round: int,
        shares: list[int],
        slow: float = 1.0,
        pace: float = 0.02,
        is_held: bool = False,
    ) -> None:
        """Steps of a second each, in which the last worker takes `slow` times the pace for a
        micro-batch; all wait behind the last one.
        """
        paces = [pace] * (len(shares) - 1) + [pace * slow]
        own_seconds = [pace * share for pace, share in zip(paces, shares, strict=True)]
        for step in range(count):
            payloads = []
            for rank, (share, work) in enumerate(zip(shares, own_seconds, strict=True)):
                parts = [wire.MicroReport(rank, micro, 0, 1, 0, 0.5) for micro in range(share)]
                seconds = {
                    "data": 0.2 * work,
                    "compute": 0.8 * work,
                    "wait": max(own_seconds) - work,
                    "reduce": 0.001,
                }
                payloads.append(
                    msgspec.msgpack.encode(wire.StepReport(epoch=0, parts=parts, seconds=seconds))
                )
            record = wire.CommitRecord(
                round=round,
                step=step + 1,
                at=float(step),
                payloads=payloads,
                held=is_held and step + 1 == count,
            )
            self.hears(wire.Commits(records=[record]))

    def effects(self, *, restated_at: int | None = None) -> list[Effect]:
        """The consequences of the entries; on the way the master may be put to sleep and woken."""
        decisions = Decisions(State.after(self.began))
        effects = list[Effect]()
        for index, entry in enumerate(self.entries):
            if index == restated_at:
                decisions = Decisions(thaw(freeze(decisions.state)))
            effects += decisions.take(entry)
        return effects

    def events(self, kind: str) -> list[dict[str, Any]]:
        records = [effect for effect in self.effects() if isinstance(effect, Record)]
        lines = [msgspec.json.decode(record.line) for record in records if record.file == EVENTS]
        return [line for line in lines if line["kind"] == kind]


def straggling() -> Job:
    job = Job(4)
    job.steps(80, round=1, shares=[2, 2, 2, 2], slow=3.0, is_held=True)
    job.steps(80, round=2, shares=[3, 2, 2, 1], slow=3.0)
    return job


def test_shares_move_once_and_are_on_record() -> None:
    job = straggling()
    assert [(event["shares"], event["cause"]) for event in job.events("round")] == [
        ([2, 2, 2, 2], "start"),
        ([3, 2, 2, 1], "w4 is 3.0 times slower"),
    ]
    assert not job.events("warning")


@pytest.mark.parametrize("restated_at", [None, 30, 60, 120])
def test_a_replay_comes_to_the_same(restated_at: int | None) -> None:
    job = straggling()
    assert job.effects(restated_at=restated_at) == job.effects()


def test_without_canonical_reduction_nothing_moves() -> None:
    job = Job(4, exact=False)
    job.steps(200, round=1, shares=[1, 1, 1, 1], slow=3.0)
    assert [event["shares"] for event in job.events("round")] == [[1, 1, 1, 1]]


def test_an_extreme_straggler_is_named_with_its_host() -> None:
    job = Job(4)
    job.steps(200, round=1, shares=[2, 2, 2, 2], slow=30.0)
    (warning,) = job.events("warning")
    assert warning["message"].startswith(
        "w4 on node7 (agent a1) takes 30.0 times as long for a micro-batch as its peers: everyone "
        "waits for it even "
        "where it has one of 8, and without it steps would be 9.9 times as fast"
    )


@pytest.mark.parametrize(
    ("options", "pace", "message"),
    [
        ({}, 0.02, ""),
        ({"exact": False}, 0.001, ""),
        ({"micro_batches": 1}, 0.001, ""),
        ({}, 0.001, "a micro-batch takes 0.8 ms, and a step has 8"),
        ({"capture": True}, 0.001, "the same for 1 worker only"),
        ({"workers": WorkerRange.parse("1:4")}, 0.001, "the same for 1 to 4 workers only"),
    ],
)
def test_short_micro_batches_bring_advice_once(
    options: dict[str, Any], pace: float, message: str
) -> None:
    job = Job(1, **options)
    job.steps(20, round=1, shares=[8], pace=pace)
    assert not job.events("warning")
    job.steps(40, round=1, shares=[8], pace=pace)
    messages = [event["message"] for event in job.events("warning")]
    assert len(messages) == bool(message)
    assert all(message in text and "--micro-batches auto" in text for text in messages)
    assert [("--capture" in text) for text in messages] == [
        not options.get("capture") for _ in messages
    ]


@pytest.mark.parametrize(("workers", "warned"), [("1", True), ("1:4", False), ("2", False)])
def test_servers_beside_one_worker_bring_a_warning(workers: str, warned: bool) -> None:
    limits = WorkerRange.parse(workers)
    job = Job(limits.minimum, workers=limits, servers=1)
    messages = [event["message"] for event in job.events("warning")]
    assert [text.startswith("--ps: ") for text in messages] == [True] * warned


def test_an_excluded_host_is_named_with_a_remedy() -> None:
    job = Job(2)
    for number in range(2, 8):
        job.hears(wire.LoseWorker(worker=f"w{number}", reason="signal 9"))
    (warning,) = job.events("warning")
    assert warning["message"] == (
        "node7 (agent a1) gets no more workers: 6 in a row died young there, the last: signal 9; "
        "the job goes on "
        "with 1 worker; brim resize run 2 gives it another try"
    )
    job.entries.append(Asked(at=99.0, now=99.0, question=wire.Ask(verb="resize", workers=2)))
    decisions = Decisions(State.after(job.began))
    for entry in job.entries:
        decisions.take(entry)
    starts = [
        m
        for _, m in decisions.agents["a1"].outbox.messages_after(0)
        if isinstance(m, wire.StartWorkers)
    ]
    assert [start.delay for start in starts] == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 0.0]


def test_silence_is_on_record_until_it_ends() -> None:
    job = Job(2)
    job.hears(wire.Silence(worker="w2", silent=True))
    job.hears(wire.Silence(worker="w2", silent=False))
    job.hears(wire.Silence(worker="w9", silent=True))
    states = [event["state"] for event in job.events("worker") if event["worker"] == "w2"]
    assert states == ["started", "ready", "active", "suspect", "active"]
    assert all(event["worker"] != "w9" for event in job.events("worker"))


def starving(memory: Literal["limit", "host"], reason: str) -> Job:
    """All workers of a job, one after the other, are lost since memory ran out."""
    job = Job(1)
    for number in range(1, 7):
        job.hears(wire.LoseWorker(worker=f"w{number}", reason=reason, memory=memory))
    return job


def test_only_the_first_memory_loss_is_explained() -> None:
    job = Job(2)
    reason = "out of memory: the kernel ended it; it had 3 GiB"
    for worker in ("w2", "w3"):
        job.hears(wire.LoseWorker(worker=worker, reason=reason, memory="host"))
    (warning,) = job.events("warning")
    assert warning["message"].startswith(
        f"w2 (rank 1) on node7 (agent a1) is lost, {reason}; run fewer workers"
    )


@pytest.mark.parametrize("restated_at", [None, 8])
@pytest.mark.parametrize(
    ("memory", "worker", "end"),
    [
        (
            "limit",
            "user",
            "; give workers more (--memory), or have them do less at a time (--micro-batches)",
        ),
        ("host", "environment", ""),  # elsewhere, or at another time, there may be more
    ],
)
def test_lack_of_memory_fails_the_run_with_advice(
    memory: Literal["limit", "host"], worker: str, end: str, restated_at: int | None
) -> None:
    job = starving(memory, "out of memory: so it is")
    effects = job.effects(restated_at=restated_at)
    assert effects == job.effects()
    (failed,) = job.events("failed")
    assert failed["who"] == worker
    assert failed["message"].endswith(
        f"6 in a row died young on a1, the last: out of memory: so it is{end}"
    )
    (ended,) = job.events("run_ended")
    assert ended["summary"]["out_of_memory"] == 6
