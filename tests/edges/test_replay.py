"""`brim simulate replay`: a scheduler's journal, decided again, through any fate of the scheduler in
between.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.domain.cluster import Cluster
from brim.domain.course import Origin
from brim.domain.resizing import OVERHEADS
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Rejected, Snapshot
from brim.domain.tenancy import Tenant
from brim.policies.brim import Remembered
from brim.scheduler.cycles import decode_cycle, decode_memory, encode_cycle
from brim.scheduler.loop import Scheduler
from brim.scheduler.replay import CourseOfDecisions, replay
from brim.storage.database import CycleRow, Database
from brim.user_code.policies import POLICIES
from conformance.worlds import LiveWorld, measured, run
from pages import assert_loads_nothing
from submissions import submission
from workloads import random_jobs

TENANTS = (Tenant(id="ads", guaranteed=4), Tenant(id="web", guaranteed=4))


class Story(LiveWorld):
    """Jobs of two tenants under a scheduler that may be killed between any two of its steps."""

    def __init__(self, folder: Path, policy: str) -> None:
        super().__init__(Cluster.parse("1x8"), 0, folder, tenants=TENANTS, policy=policy)
        self.begin()

    def begin(self) -> None:
        """Another life of the scheduler."""
        self.revive()
        self.database = Database(self.folder / "scheduler.db")
        self.scheduler = Scheduler(
            self.book, self.database, self.backend, jobs_folder=self.folder, clock=self.clock
        )

    def decide(self, *, killed: bool = False) -> None:
        """One cycle, whose scheduler may die once it is written down."""
        snapshot = run(self.backend.observe())
        decision = self.scheduler._decide(snapshot)
        assert isinstance(decision, Decision)
        self.scheduler._journal(snapshot, decision)
        if killed:
            self.begin()
        else:
            run(self.backend.apply(decision))
            self.settle()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.decide()

    def change_policy(self, policy: str) -> None:
        self.spec = replace(self.spec, policy=policy)
        self.backend.reconfigure(self.spec)


def tell(story: Story, ending: str) -> None:
    """Promises, surplus, a reclaim, three deaths of the scheduler and a change of policy."""
    story.book.learn(submission(), measured({1: 10.0, 4: 35.0}), 7000)
    now = story.clock.wall()
    for tenant, seconds in (("ads", 2000.0), ("web", 400.0), ("ads", 900.0)):
        story.submit(tenant=tenant, deadline=now + seconds)
        story.pass_time(3.0)
    story.decide(killed=True)
    story.submit(tenant="web")
    story.pass_time(5.0)
    story.processes.say("job-1", step=40, steps=7000)
    story.change_policy("edf")
    story.change_policy(ending)
    story.pass_time(5.0)
    story.begin()
    for _ in range(4):
        story.pass_time(20.0)
    story.processes.end("job-2", "done", summary={"exit": "done"})
    story.settle()
    story.decide(killed=True)
    story.pass_time(70.0)


@pytest.mark.parametrize("ending", sorted(POLICIES))
def test_the_journal_replayed_gives_the_same_plans(tmp_path: Path, ending: str) -> None:
    story = Story(tmp_path, "brim")
    tell(story, ending)
    found = replay(story.database.cycles())
    assert found.differences == ()
    assert (found.cycles, found.policies) == (12, tuple(dict.fromkeys(["brim", ending])))


def test_a_truncated_journal_replays_from_its_start(tmp_path: Path) -> None:
    story = Story(tmp_path, "brim")
    tell(story, "brim")
    rows = list(story.database.cycles())[4:]
    found = replay(rows)
    assert (found.cycles, found.differences) == (len(rows) - 1, ())


def brim(*words: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", "replay", *words], catch_exceptions=False)


def test_a_changed_plan_fails_with_its_difference(tmp_path: Path) -> None:
    story = Story(tmp_path, "brim")
    tell(story, "brim")
    assert brim("--state", str(tmp_path)).exit_code == 0
    rows = list(story.database.cycles())
    snapshot, decision = decode_cycle(rows[4].content)
    count = decision.workers["job-3"]
    forged = replace(decision, workers={**decision.workers, "job-3": count + 1})
    story.database._sql.execute(
        "update cycles set content = ? where number = 5", (encode_cycle(snapshot, forged),)
    )
    done = brim("--state", str(tmp_path))
    assert done.exit_code == 1
    assert "12 cycles" in done.stdout
    assert "1 of them differ" in done.stdout
    assert "cycle 5," in done.stdout
    assert f"workers of job-3: {count + 1}, this time {count}" in done.stdout
    found = json.loads(brim("--state", str(tmp_path), "--json").stdout)
    assert [difference["cycle"] for difference in found["differences"]] == [5]


ADMITTED = Admitted(job="a", reason=Reason.FITS, share=1, finish=5.0)
REJECTED = Rejected(job="b", reason=Reason.TOO_LATE, detail="late")
ALIKE = Decision(
    workers={"a": 1},
    verdicts=(ADMITTED, REJECTED),
    wake=3.0,
    reasons={"a": (Reason.SURPLUS, "1 needed")},
    pinned=frozenset("a"),
    needed={"a": 1},
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": {"a": 2}}, "workers of a: 2, this time 1"),
        ({"wake": None}, "wake: None, this time 3.0"),
        ({"wake": 3.0000001}, "wake: 3.0000001, this time 3.0"),
        ({"reasons": {}}, "reason of a: none, this time surplus-by-marginal-return: 1 needed"),
        ({"pinned": frozenset()}, "pinned: , this time a"),
        ({"moved": frozenset("b")}, "moved: b, this time "),
        ({"needed": None}, "needed: unknown, this time none"),
        ({"verdicts": ALIKE.verdicts[:1]}, "verdict on b: none, this time refused"),
        ({"verdicts": (replace(ADMITTED, finish=6.0), REJECTED)}, "1, 6.0), this time"),
        ({"verdicts": (ADMITTED, replace(REJECTED, runs=True))}, "late; True, "
                                                                                   "None), this "
                                                                                   "time"),
    ],
)  # fmt: skip
def test_everything_that_a_decision_says_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    story = Story(tmp_path, "brim")
    story.decide()
    row = next(story.database.cycles())
    snapshot, _ = decode_cycle(row.content)
    monkeypatch.setattr("brim.scheduler.replay.decide", lambda *_, **__: ALIKE)

    def with_row(decision: Decision) -> list[CycleRow]:
        return [row._replace(content=encode_cycle(snapshot, decision))]

    assert replay(with_row(ALIKE)).differences == ()
    (difference,) = replay(with_row(replace(ALIKE, **changes))).differences
    assert any(message in line for line in difference.what), difference.what


def test_another_policy_can_be_asked(tmp_path: Path) -> None:
    story = Story(tmp_path, "brim")
    tell(story, "brim")
    assert "asked brim: the same plans" in brim("--state", str(tmp_path), "--policy", "brim").stdout
    done = brim("--state", str(tmp_path), "--policy", "edf")
    assert done.exit_code == 0
    assert "asked edf: " in done.stdout
    assert "verdict on job-1: promised, this time accepted" in done.stdout


@pytest.mark.parametrize("kinds", [None, (), ("", "0c1f")])
def test_recorded_cycles_contain_node_kinds(kinds: tuple[str, ...] | None) -> None:
    job = replace(random_jobs(0, 1)[0], exact=True, kinds=kinds)
    seen = Snapshot(
        now=1.0,
        cluster=Cluster.parse("1x8"),
        capacity=8,
        jobs=(JobState(job=job, remaining=job.work),),
        overheads=OVERHEADS["none"],
    )
    snapshot, _ = decode_cycle(encode_cycle(seen, Decision(workers={})))
    assert snapshot.jobs[0].job == job


def test_recorded_cycles_contain_chosen_nodes_once() -> None:
    names = tuple(f"node-{number}" for number in range(50))
    choices = (names, None, names[:2], (*names[:9], *names[9:]), ())
    jobs = [
        replace(job, nodes=nodes) for job, nodes in zip(random_jobs(0, 5), choices, strict=True)
    ]
    seen = Snapshot(
        now=1.0,
        cluster=Cluster.parse("1x8"),
        capacity=8,
        jobs=tuple(JobState(job=job, remaining=job.work) for job in jobs),
        overheads=OVERHEADS["none"],
    )
    content = encode_cycle(seen, Decision(workers={}))
    assert zlib.decompress(content).count(b'"node-49"') == 1
    snapshot, _ = decode_cycle(content)
    assert [state.job for state in snapshot.jobs] == jobs
    assert snapshot.jobs[0].job.nodes is snapshot.jobs[3].job.nodes


def test_a_held_job_has_not_ended() -> None:
    job = random_jobs(0, 1)[0]
    cluster = Cluster.parse("1x8")
    decided = CourseOfDecisions()
    for moment, workers in ((1, 2), (10, 0), (20, 3), (30, 0)):  # none: the cycle leaves it out
        snapshot = Snapshot(
            now=job.submitted + moment,
            cluster=cluster,
            capacity=8,
            jobs=(JobState(job=job, remaining=job.work),) if workers else (),
            overheads=OVERHEADS["none"],
        )
        decided.take(snapshot, Decision(workers={job.id: workers} if workers else {}))
    (course,) = decided.course(Origin.REPLAYED, subject="", policy="brim", states={}).jobs
    assert course.ended == job.submitted + 30
    spans = [(holding.workers, holding.start - job.submitted) for holding in course.holdings]
    assert spans == [(0, 0), (2, 1), (0, 10), (3, 20)]


def test_actual_and_alternative_decisions_are_compared(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path, "brim")
    tell(story, "brim")
    found = replay(story.database.cycles(), policy="edf")
    assert (found.then.policy, found.again.policy) == ("brim", "edf")
    for course in (found.then, found.again):
        assert [job.job for job in course.jobs] == ["job-1", "job-2", "job-3", "job-4"]
        assert max(count for _, count in course.held()) <= 8
        for job in course.jobs:
            assert job.holdings[0].start == job.submitted
            assert [a.end for a in job.holdings[:-1]] == [b.start for b in job.holdings[1:]]
    assert [job.promised for job in found.then.jobs] == [True, True, True, False]
    assert not any(job.promised for job in found.again.jobs)
    ended = found.then.jobs[1]
    assert (ended.state, ended.kept(found.then.end)) == ("done", True)
    out_folder = tmp_path / "out"
    output = brim("--state", str(tmp_path), "--policy", "edf", "--out", str(out_folder))
    assert f"wrote {out_folder}/index.html" in output.stderr
    page = (out_folder / "index.html").read_text()
    assert_loads_nothing(page)
    for words in (
        "policy edf, decided again",
        "decided again: worker-seconds",
        "job-4, policy edf",
    ):
        assert words in page
    assert (out_folder / "course.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads(brim("--state", str(tmp_path), "--json").stdout)) == {
        "asked", "cycles", "policies", "first", "last", "differences",
    }  # fmt: skip


def test_without_a_journal_or_with_an_unknown_policy(tmp_path: Path) -> None:
    done = brim("--state", str(tmp_path))
    assert done.exit_code == 2
    assert f"got no {tmp_path / 'scheduler.db'}" in done.stderr
    assert not (tmp_path / "scheduler.db").exists()
    Story(tmp_path, "brim")
    assert "no cycle has been decided yet" in brim("--state", str(tmp_path)).stdout
    assert "did you mean 'edf'?" in brim("--state", str(tmp_path), "--policy", "edff").stderr


def test_outdated_policy_memory_is_harmless() -> None:
    plan = {"job-1": {"pieces": [[0.0, 9.0, 1]], "spare": 1.0}}
    old_memory = msgspec.msgpack.encode({"policies": [["default", 0, plan]], "blocks": {}})
    memory = decode_memory(old_memory, policy="brim")
    assert memory.policies == {("default", 0): Remembered()}
