"""The default policy: promises kept by a plan, refused jobs that may still make it, surplus by marginal
return.

Pure. What it does beyond ElasticFlow: it judges arrivals one at a time, against a plan for all that were
promised before; sizes need not be powers of two; what a change of workers costs is in the plan; a refused
job runs on what is left, and is promised after all as soon as a plan has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from brim.domain.quantities import counted
from brim.domain.schedule import Admitted, Decision, JobState, Reason, Rejected, Snapshot, Standing, Verdict
from brim.policies.promises import (
    Promise,
    carry_on,
    mend,
    need_of,
    next_change,
    plan_all,
    plan_most,
    workers_now,
)
from brim.policies.surplus import Claim, share_out
from brim.policies.timeline import Need

__all__ = ["brim"]

# Changes of workers that a plan keeps time for: two by which a surplus may disturb it, and a migration.
_MARGIN = 3.0
# A worker that a job already holds counts this many times: jobs of nearly equal return do not swap.
_STAY = 1.5
# A job is resized for a surplus only if that saves this many times the seconds that it costs.
_WORTH = 2.0
# A job that has just changed is not grown again before this many times the cost have passed,
_COOLDOWN = 2.0
# and one that runs without a promise is not stopped before this many changes could have been made.
_RUN = 5.0
# Refused jobs that are considered for a late promise in one cycle, so that overload stays cheap.
_SECOND_CHANCES = 8

_Needs = tuple[str, Need, Need]


def brim(snapshot: Snapshot) -> Decision:
    """Decide one cycle; the memory is the plan of every promised job."""
    return _Cycle(snapshot).decide()


class _Cycle:
    """One pass: the snapshot, and the plan as it grows."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.now = snapshot, snapshot.now
        # Promises count on what is assured; what is borrowed only ever adds to the surplus.
        self.devices = (
            snapshot.capacity if snapshot.assured is None else min(snapshot.assured, snapshot.capacity)
        )
        self.states = {state.job.id: state for state in snapshot.jobs}
        self.needs: list[_Needs] = []
        self.due: dict[str, Need] = {}
        self.plans: dict[str, Promise] = {}
        self.broken = False
        self.verdicts: list[Verdict] = []
        self.reasons: dict[str, tuple[Reason, str]] = {}

    def decide(self) -> Decision:
        self._plan_promised()
        arrived = self.snapshot.arrived
        for name in arrived:
            self._judge(self.states[name])
        fresh = frozenset(arrived)
        self._second_chances([s for s in self.snapshot.jobs if s.job.id not in fresh])
        workers = self._allocate()
        return Decision(
            workers=workers,
            verdicts=tuple(self.verdicts),
            wake=next_change(self.plans, self.now),
            reasons=self.reasons,
            pinned=frozenset(
                name for name, promise in self.plans.items() if promise.spare < self._afford(name)
            ),
            needed={name: workers_now(promise, self.now) for name, promise in self.plans.items()},
            memory=self.plans,
        )

    def _afford(self, name: str) -> float:
        """Seconds that a plan has to have to spare before a migration may disturb it."""
        return _MARGIN * self.snapshot.overheads.cost(0, self.states[name].job.ceiling) - 1e-6

    def _needs_of(self, state: JobState, *, doubt: float | None = None) -> _Needs:
        """What it needs if it loses `_MARGIN` changes first, and if it loses only the doubt about all that is known."""
        overheads = self.snapshot.overheads
        need = need_of(state, now=self.now, overheads=overheads)
        bare = need._replace(begin=need.begin + (overheads.doubt if doubt is None else doubt))
        return state.job.id, bare._replace(begin=bare.begin + _MARGIN * bare.change), bare

    def _plan_promised(self) -> None:
        promised = [
            s for s in self.snapshot.jobs if s.standing is Standing.ADMITTED and s.job.deadline is not None
        ]
        promised.sort(key=_by_deadline)
        exact = [self._needs_of(state, doubt=0.0) for state in promised]
        self.due = {name: bare for name, _, bare in exact}
        # Who would be late even alone is nobody's reason to make no plan.
        hopes = [needs for needs in exact if needs[2].share() is not None]
        doubt = self.snapshot.overheads.doubt
        self.needs = [self._needs_of(self.states[name]) for name, _, _ in hopes] if doubt else hopes
        plans = plan_all(self.needs, now=self.now, devices=self.devices)
        self.plans = self._plan_without_doubt(hopes) if plans is None else plans
        self.broken = len(self.plans) < len(hopes)
        self.needs = [needs for needs in self.needs if needs[0] in self.plans]

    def _plan_without_doubt(self, needs: list[_Needs]) -> dict[str, Promise]:
        """What promises had to spare may be used up: that is what it was for."""
        now, devices = self.now, self.devices
        last: Mapping[str, Promise] = self.snapshot.memory or {}
        plans = carry_on(last, needs, now=now, devices=devices)
        if plans is not None and len(plans) == len(needs):
            return plans
        bare = [(name, need, need) for name, _, need in needs]
        plans = plan_all(needs, now=now, devices=devices) or plan_all(bare, now=now, devices=devices)
        if plans is not None:
            return plans
        # A failure, a wrong profile or lost capacity: keep as many as can be kept.
        mended, fitted = mend(last, bare, now=now, devices=devices), plan_most(bare, now=now, devices=devices)
        return mended if len(mended) >= len(fitted) else fitted

    def _judge(self, state: JobState) -> None:
        job = state.job
        if job.deadline is None:
            text = "runs on what promised jobs leave"
            self.verdicts.append(Admitted(job=job.id, reason=Reason.NO_DEADLINE, detail=text, promises=False))
            return
        if self._promise(state):
            return
        bare = self._needs_of(state)[2]
        earliest = bare.finish(bare.ceiling)
        if bare.share() is None:
            text = (
                f"{bare.ceiling} workers, the most that help, would be done "
                f"{earliest - job.deadline:.0f} s after the deadline"
            )
            reason, when = Reason.TOO_LATE, earliest
        else:
            text = (
                f"with {len(self.needs)} promised jobs on {self.devices} devices no plan is in time for all"
            )
            reason, when = Reason.BREAKS_PROMISE, None
        self.verdicts.append(Rejected(job=job.id, reason=reason, detail=text, earliest=when, runs=True))

    def _promise(self, state: JobState) -> bool:
        """Add `state` to the plan if every promise, its own included, can be kept; and say so."""
        needs = self._needs_of(state)
        if self.broken or needs[2].share() is None:
            return False
        wider = sorted([*self.needs, needs], key=lambda one: (one[2].due, one[0]))
        plans = plan_all(wider, now=self.now, devices=self.devices)
        if plans is None:
            return False
        self.needs, self.plans = wider, plans
        pieces = plans[state.job.id].pieces
        share = max(piece.workers for piece in pieces)
        assert state.job.deadline is not None
        early = state.job.deadline - pieces[-1].stop
        text = f"{counted(share, 'worker')} will do: done {early:.0f} s before the deadline"
        self.verdicts.append(
            Admitted(job=state.job.id, reason=Reason.FITS, share=share, finish=pieces[-1].stop, detail=text)
        )
        return True

    def _hopeful(self, states: list[JobState]) -> list[tuple[float, JobState, int]]:
        """Unpromised jobs that could still be in time: (device-seconds needed, job, workers)."""
        found = []
        for state in states:
            if state.job.id in self.plans or state.job.deadline is None:
                continue
            need = self._needs_of(state)[2]
            share = need.share()
            if share is not None:
                found.append((share * (need.finish(share) - self.now), state, share))
        return sorted(found, key=lambda one: (one[0], one[1].job.id))

    def _second_chances(self, states: list[JobState]) -> None:
        for _, state, _ in self._hopeful(states)[:_SECOND_CHANCES]:
            self._promise(state)

    def _allocate(self) -> dict[str, int]:
        base = {name: workers_now(promise, self.now) for name, promise in self.plans.items()}
        free = self.snapshot.capacity - sum(base.values())
        free = self._measure(base, free)
        free = self._begin_early(base, free)
        free = self._keep_running(base, free)
        for _, state, share in self._hopeful(list(self.snapshot.jobs)):
            more = share - base.get(state.job.id, 0)
            if 0 <= more <= free:
                base[state.job.id] = share
                free -= more
        claims = [
            claim
            for state in self.snapshot.jobs
            if (claim := self._claim(state, base.get(state.job.id, 0))) is not None
        ]
        granted = base | share_out(claims, free, stay=_STAY)
        return self._steady(granted, base)

    def _begin_early(self, base: dict[str, int], free: int) -> int:
        """Promises that are to begin later and have little to spare begin now, if devices are free.

        That costs them nothing: their plan pays for a start when they are to begin. What is late takes what there is.
        """
        for name, need in sorted(self.due.items(), key=lambda one: (one[1].due, one[0])):
            promise = self.plans.get(name)
            if promise is not None:
                begins = next((piece.start for piece in promise.pieces if piece.stop > self.now), self.now)
                if base[name] or promise.spare >= _MARGIN * need.change or begins < self.now + need.change:
                    continue
            most = min(free, need.ceiling)
            share = (
                next((n for n in range(most + 1) if need.best[n] >= need.best[most]), 0) if most > 0 else 0
            )
            if share >= max(need.minimum, 1):
                base[name] = share
                free -= share
        return free

    def _measure(self, base: dict[str, int], free: int) -> int:
        """Who cannot be judged before it was measured runs now, on what promises leave: that takes seconds."""
        for state in self.snapshot.jobs:
            if state.unmeasured and state.job.minimum <= free:
                base[state.job.id] = state.job.minimum
                free -= state.job.minimum
        return free

    def _keep_running(self, base: dict[str, int], free: int) -> int:
        """What runs keeps its gang for a while; where devices can be reclaimed, always.

        So nobody is stopped for less than a change or two costs, and a tenant that must give devices back
        shrinks all its jobs before it stops one.
        """
        always = bool(self.snapshot.tenants)
        for state in sorted(self.snapshot.jobs, key=lambda s: (s.changed, s.job.id)):
            least = state.job.minimum
            if not state.workers or base.get(state.job.id, 0) or least > free:
                continue
            run = _RUN * self.snapshot.overheads.cost(0, state.job.ceiling)
            if always or self.now - state.changed < run:
                base[state.job.id] = least
                free -= least
        return free

    def _claim(self, state: JobState, base: int) -> Claim | None:
        job = state.job
        promise = self.plans.get(job.id)
        ceiling = job.ceiling
        if promise is not None:
            change = self.snapshot.overheads.cost(0, ceiling)
            if promise.spare < 2.0 * change - 1e-6 and state.workers <= base:
                return None
            if promise.spare < change - 1e-6:
                return None
        left = state.remaining / state.pace
        return Claim(job.id, job.curve, base, state.workers, job.minimum, ceiling, left)

    def _steady(self, granted: dict[str, int], base: Mapping[str, int]) -> dict[str, int]:
        """Undo changes that cost more than they save."""
        spare = self.snapshot.capacity - sum(granted.values())
        workers = dict(granted)
        for state in self.snapshot.jobs:
            name, holds = state.job.id, state.workers
            goal = workers.get(name, 0)
            least = max(base.get(name, 0), state.job.minimum)  # which its owner may have raised
            if goal > holds >= least and not self._worthwhile(state, goal):
                workers[name] = holds
                spare += goal - holds
        for state in self.snapshot.jobs:
            name, holds = state.job.id, state.workers
            goal = workers.get(name, 0)
            if goal < holds <= state.job.ceiling and state.job.minimum <= holds <= goal + spare:
                workers[name] = holds
                spare -= holds - goal
        for name, count in workers.items():
            self._explain(name, count, base.get(name, 0))
        return workers

    def _worthwhile(self, state: JobState, goal: int) -> bool:
        best, left = state.job.curve.best, state.remaining / state.pace
        cost = self.snapshot.overheads.cost(state.workers, goal)
        if self.now - state.changed < _COOLDOWN * cost:
            return False
        return left / best[state.workers] - left / best[goal] > _WORTH * cost

    def _explain(self, name: str, count: int, base: int) -> None:
        if count and self.states[name].unmeasured:
            self.reasons[name] = (
                Reason.TO_MEASURE,
                "its deadline can be judged once its steps were measured",
            )
        elif count > base:
            self.reasons[name] = (Reason.SURPLUS, f"{base} needed, {count - base} from the surplus")
        elif count:
            self.reasons[name] = (Reason.MINIMUM_SHARE, f"its deadline needs {counted(count, 'worker')}")
        elif name in self.plans:
            text = (
                f"its plan resumes it in {self.plans[name].pieces[0].start - self.now:.0f} s and is in time"
            )
            self.reasons[name] = (Reason.AHEAD_OF_PLAN, text)
        else:
            text = f"all {self.snapshot.capacity} devices are in better use"
            self.reasons[name] = (Reason.CLUSTER_FULL, text)


def _by_deadline(state: JobState) -> tuple[float, str]:
    assert state.job.deadline is not None
    return state.job.deadline, state.job.id
