"""A job's life is one: live, simulated and foretold, the same events make the same of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.coordination.cluster.reconcile import Force, Leave, Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import Answered, Decided, Looked
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster
from brim.domain.lifecycle import Phase
from brim.domain.measuring import Measured
from brim.domain.resizing import BELIEVED, OVERHEADS, Overheads
from brim.domain.schedule import Decision, JobState, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.workload import Job
from brim.simulator.engine import Settings, foresee, simulate
from brim.user_code.policies import POLICIES
from coordination.scheduled import Taught, Transcript
from workloads import random_jobs

CLUSTER = Cluster.parse("1x8")
UP = {"node0": NodeSeen(up=True)}


class Known(Taught):
    """Every model was measured, and changes cost as much as the simulator charges."""

    def __init__(self, overheads: Overheads) -> None:
        super().__init__()
        self.charged = overheads
        self.speeds["m"] = Measured({1: (20.0, 20.0)})

    @property
    def overheads(self) -> Overheads:
        return self.charged


class Follower:
    """A policy that has a live cluster's automaton live through the events of a simulation.

    Its processes are where the simulation has them, and obey at once.
    """

    def __init__(self, policy: str, overheads: Overheads) -> None:
        self.policy = POLICIES[policy]
        self.heard = Transcript("1x8")
        self.heard.lessons = Known(overheads)
        self.heard.jobs = type(self.heard.jobs)([], self.heard.jobs.spec, self.heard.lessons)
        self.names: dict[str, str] = {}
        self.states: dict[str, JobState] = {}
        self.held: dict[str, int] = {}
        self.foretold: dict[str, float] = {}
        self.cycles = 0
        self.looked = 0.0

    def __call__(self, snapshot: Snapshot) -> Decision:
        self.pass_until(snapshot.now, remaining_jobs={state.job.id for state in snapshot.jobs})
        for name in snapshot.arrived:
            state = next(state for state in snapshot.jobs if state.job.id == name)
            self.submit(state.job)
        self.states = {self.names[state.job.id]: state for state in snapshot.jobs}
        self.look(snapshot.now)
        self.agrees(snapshot)
        decision = self.policy(snapshot)
        self.heard.hear(Decided(self.translated(decision)), snapshot.now)
        while self.look(snapshot.now):
            pass
        self.foretold = foresee(snapshot, decision, self.policy)
        self.cycles += 1
        return decision

    def pass_until(self, now: float, *, remaining_jobs: Collection[str]) -> None:
        """Look often, as a live cluster is looked at; the jobs that are gone ended when foretold.

        The simulator decides nothing at the end of the last job that is there.
        """
        for job, end in sorted(self.foretold.items(), key=lambda entry: entry[1]):
            if job not in remaining_jobs and self.names[job] in self.states and end <= now + 1e-6:
                self.look_until(min(end, now))
                del self.states[self.names[job]]
                self.look(min(end, now))
        self.look_until(now)

    def look_until(self, now: float) -> None:
        while now - self.looked > 9.0:  # what went on without a look does not count
            self.looked += 9.0
            self.look(self.looked)
        self.looked = now

    def submit(self, job: Job) -> None:
        """As the simulator has it: work in steps, its deadline, its workers."""
        record = self.heard.submit("1:8", at=job.submitted, deadline=job.deadline)
        assert record.submission.fingerprint == "m"
        record.progress = replace(record.progress, steps=round(job.work))
        self.names[job.id] = record.id

    def translated(self, decision: Decision) -> Decision:
        """The same decision about the same jobs by their other names."""
        workers = {self.names[job]: count for job, count in decision.workers.items() if count}
        return Decision(
            workers=workers,
            nodes={job: {"node0": count} for job, count in workers.items()},
            verdicts=tuple(
                replace(verdict, job=self.names[verdict.job]) for verdict in decision.verdicts
            ),
        )

    def look(self, now: float) -> bool:
        """True while there are steps to take."""
        jobs = self.heard.jobs
        seen = {job.id: self.seen(job) for job in jobs.to_look_at()}
        self.heard.hear(Looked(UP, seen), now)
        steps_taken = [step for step in self.heard.commands if isinstance(step, STEPS)]
        for step in steps_taken:
            if isinstance(step, Start | Resize):
                self.held[step.job] = step.workers["node0"]
                self.heard.hear(Answered(step), now)
            elif isinstance(step, Suspend | Force):
                self.held.pop(step.job)
                if isinstance(step, Suspend):
                    self.heard.hear(Answered(step), now)
        return bool(steps_taken)

    def seen(self, job: ScheduledJob) -> Seen:
        state = self.states.get(job.id)
        if state is None:
            return Seen(alive=False, outcome="done", step=job.progress.steps or 0)
        step = int(state.job.work - state.remaining)
        if job.id not in self.held:
            return Seen(alive=False, outcome="suspended", step=step)
        workers = {"node0": self.held[job.id]}
        return Seen(alive=True, workers=workers, agents=frozenset({"node0"}), step=step)

    def agrees(self, snapshot: Snapshot) -> None:
        """A policy is shown the same of the live cluster as of the simulated one."""
        now = snapshot.now
        live = self.heard.jobs.snapshot(now, memory=None)
        assert live.overheads == snapshot.overheads
        assert live.capacity == snapshot.capacity
        assert live.arrived == tuple(self.names[job] for job in snapshot.arrived)
        assert [state.job.id for state in live.jobs] == list(self.states)
        for live_job, simulated_job in zip(live.jobs, snapshot.jobs, strict=True):
            assert (live_job.workers, live_job.standing) == (
                simulated_job.workers,
                simulated_job.standing,
            )
            assert live_job.job.deadline == simulated_job.job.deadline
            assert live_job.attained == pytest.approx(simulated_job.attained)
            assert live_job.changed == pytest.approx(simulated_job.changed)
            if (
                simulated_job.remaining > 1.0
            ):  # the live cluster does not see an end before it is there
                assert max(live_job.ready, now) == pytest.approx(max(simulated_job.ready, now))
                assert live_job.remaining == pytest.approx(simulated_job.remaining, abs=1.5)


STEPS = (Start, Resize, Suspend, Force, Leave)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["brim", "elasticflow", "edf", "edf-admission", "fifo-gang"]),
    overheads=st.sampled_from([OVERHEADS["none"], OVERHEADS["brim"], BELIEVED]),
)
def test_live_simulated_and_foreseen_lives_are_equal(
    seed: int, policy: str, overheads: Overheads
) -> None:
    jobs = [
        replace(job, work=float(round(job.work) + 2)) for job in random_jobs(seed, 6, spread=600.0)
    ]
    follower = Follower(policy, overheads)
    run = simulate(jobs, CLUSTER, follower, settings=Settings(overheads=overheads))
    happened = {
        outcome.job.id: outcome.finished for outcome in run.outcomes if outcome.finished is not None
    }
    follower.pass_until(max(happened.values()), remaining_jobs=())
    for outcome in run.outcomes:
        job = follower.heard.known[follower.names[outcome.job.id]]
        dropped = outcome.finished is None
        assert job.life.phase is (Phase.REFUSED if dropped else Phase.DONE)
        assert job.promised == outcome.admitted
        if not dropped:
            assert job.ended == pytest.approx(outcome.finished)
            assert job.progress.attained == pytest.approx(outcome.attained)
    # The last forecast was made when nobody was left to come.
    assert follower.foretold == pytest.approx(
        {job: happened[job] for job in follower.foretold}, rel=1e-6
    )
    assert follower.cycles >= len(jobs)
