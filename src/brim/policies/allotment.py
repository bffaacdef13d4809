"""Allotments: the workers that jobs have now.

They follow from plans, from the devices free beside the plans, and from the past holdings of jobs.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brim.domain.quantities import counted
from brim.domain.schedule import JobState, Reason, Snapshot
from brim.domain.workload import Priority
from brim.policies.promises import Promise, workers_now
from brim.policies.surplus import SurplusClaim, share_out
from brim.policies.timeline import Need

# Changes of workers that a plan keeps time for: two by which a surplus may disturb it, and a
# migration.
MARGIN = 3.0
# A worker that a job already holds counts this many times: jobs of nearly equal return do not swap.
_STAY = 1.5
# A job is resized for a surplus only if that saves this many times the seconds that it costs.
_WORTH = 2.0
# A job that has just changed is not grown again before this many times the cost have passed,
_COOLDOWN = 2.0
# and one that runs without a promise is not stopped before this many changes could have been made.
_RUN = 5.0


class Plans(NamedTuple):
    """The plans of promised jobs and of others.

    Attributes:
        promised: plans of jobs whose deadline is promised; `hoped`: of others that could be in
            time.
        due: the needs of every promised job, late ones included.
        needed: workers that the plans of promised jobs have now.
    """

    promised: Mapping[str, Promise]
    hoped: Mapping[str, Promise]
    due: Mapping[str, Need]
    needed: Mapping[str, int]


def allot(snapshot: Snapshot, plans: Plans) -> tuple[dict[str, int], dict[str, tuple[Reason, str]]]:
    """Workers by job, and the reason for each."""
    return _Allotment(snapshot, plans).decision_parts()


class _Allotment:
    """Workers as they are given out: `base` by right, the rest from the surplus."""

    def __init__(self, snapshot: Snapshot, plans: Plans) -> None:
        self.snapshot, self.now, self.plans = snapshot, snapshot.now, plans
        self.states = {state.job.id: state for state in snapshot.jobs}
        self.base = dict(plans.needed)
        self.free = snapshot.capacity - sum(self.base.values())

    def decision_parts(self) -> tuple[dict[str, int], dict[str, tuple[Reason, str]]]:
        self._measure()
        self._hope()
        self._begin_early()
        self._keep_running()
        workers = self._steady(self._with_surplus())
        reasons = {
            name: self._reason(state, name, workers[name])
            for name, state in self.states.items()
            if name in workers
        }
        return workers, reasons

    def _give(self, name: str, count: int) -> None:
        self.base[name] = count
        self.free -= count

    def _measure(self) -> None:
        """Run the jobs that cannot be judged before they are measured, on devices left by promises.

        That takes seconds.
        """
        for state in self.snapshot.jobs:
            if state.unmeasured and state.job.minimum <= self.free:
                self._give(state.job.id, state.job.minimum)

    def _hope(self) -> None:
        for name, promise in self.plans.hoped.items():
            count = workers_now(promise, self.now)
            if 0 < count <= self.free:
                self._give(name, count)

    def _begin_early(self) -> None:
        """Promises that are to begin later and have little to spare begin now, if devices are free.

        That costs them nothing: their plan pays for a start when they are to begin. Late jobs take
        all there is.
        """
        if self.free <= 0:
            return
        for name, need in sorted(
            self.plans.due.items(), key=lambda entry: (entry[1].due, entry[0])
        ):
            promise = self.plans.promised.get(name)
            if promise is not None:
                begins = next(
                    (piece.start for piece in promise.pieces if piece.stop > self.now), self.now
                )
                is_enough = promise.spare >= MARGIN * need.change
                if self.base[name] or is_enough or begins < self.now + need.change:
                    continue
            share = _useful(need, self.free)
            if share >= max(need.minimum, 1):
                self._give(name, share)

    def _keep_running(self) -> None:
        """Let running jobs keep their gangs for a while.

        Where devices can be reclaimed, always.

        So no job is stopped for less than a change or two costs, and a tenant that must give
        devices back shrinks all its jobs before it stops one.
        """
        has_tenants = bool(self.snapshot.tenants)
        running = [state for state in self.snapshot.jobs if state.workers]
        for state in sorted(running, key=lambda state: (state.changed, state.job.id)):
            minimum = state.job.minimum
            if self.base.get(state.job.id, 0) or minimum > self.free:
                continue
            run = _RUN * self.snapshot.overheads.cost(0, state.job.ceiling)
            if has_tenants or self.now - state.changed < run:
                self._give(state.job.id, minimum)

    def _with_surplus(self) -> dict[str, int]:
        if self.free <= 0:  # who has none is told why, all the same
            return dict.fromkeys(self.states, 0) | self.base
        claims = [
            claim for state in self.snapshot.jobs if (claim := self._claim(state)) is not None
        ]
        return self.base | share_out(claims, self.free, stay=_STAY)

    def _claim(self, state: JobState) -> SurplusClaim | None:
        job, base = state.job, self.base.get(state.job.id, 0)
        promise = self.plans.promised.get(job.id)
        ceiling = job.ceiling
        if promise is not None:
            change = self.plans.due[job.id].change
            if promise.spare < 2.0 * change - 1e-6 and state.workers <= base:
                return None
            if promise.spare < change - 1e-6:
                return None
        return SurplusClaim(
            job.id,
            job.curve,
            base,
            state.workers,
            job.minimum,
            ceiling,
            state.remaining / state.pace,
        )

    def _steady(self, granted: Mapping[str, int]) -> dict[str, int]:
        """Undo changes that cost more than they save."""
        spare = self.snapshot.capacity - sum(granted.values())
        workers = dict(granted)
        for state in self.snapshot.jobs:
            name, holds = state.job.id, state.workers
            goal = workers.get(name, 0)
            # Its owner may have raised the minimum.
            is_fed = holds >= max(self.base.get(name, 0), state.job.minimum)
            waits = is_fed and not _is_online(state)  # requests do not wait
            if goal > holds and waits and not self._worthwhile(state, goal):
                workers[name] = holds
                spare += goal - holds
        for state in self.snapshot.jobs:
            name, holds = state.job.id, state.workers
            goal = workers.get(name, 0)
            if goal < holds <= state.job.ceiling and state.job.minimum <= holds <= goal + spare:
                workers[name] = holds
                spare -= holds - goal
        return workers

    def _worthwhile(self, state: JobState, goal: int) -> bool:
        best, time_left = state.job.curve.best, state.remaining / state.pace
        cost = max(self.snapshot.overheads.cost(state.workers, goal), state.restart)
        if self.now - state.changed < _COOLDOWN * cost:
            return False
        return time_left / best[state.workers] - time_left / best[goal] > _WORTH * cost

    def _reason(self, state: JobState, name: str, count: int) -> tuple[Reason, str]:
        base = self.base.get(name, 0)
        if count and state.unmeasured:
            return Reason.TO_MEASURE, "its deadline can be judged once its steps were measured"
        if count and _is_online(state):
            most = counted(state.job.maximum or count, "worker")
            return Reason.ONLINE, f"{count} of {most} at most, before jobs of lower priority"
        if count > base:
            return Reason.SURPLUS, _on_surplus(state, base, count)
        if count and name in self.plans.hoped:
            return (
                Reason.HOPE,
                f"its deadline needs {counted(count, 'worker')}, and is not promised yet",
            )
        if count and state.job.deadline is None:
            if count == state.job.maximum:
                return Reason.MINIMUM_SHARE, "as many as it may have"
            return Reason.MINIMUM_SHARE, "its fewest: others make better use of more"
        if count:
            return Reason.MINIMUM_SHARE, f"its deadline needs {counted(count, 'worker')}"
        plan = self.plans.promised.get(name) or self.plans.hoped.get(name)
        if plan is not None:
            text = f"its plan resumes it in {plan.pieces[0].start - self.now:.0f} s and is in time"
            return Reason.AHEAD_OF_PLAN, text
        return Reason.CLUSTER_FULL, _in_better_use(self.snapshot.capacity)


def _on_surplus(state: JobState, base: int, count: int) -> str:
    """Say what workers from the surplus are for: to measure a job's speed, or to make it faster."""
    text = f"{base} needed, {count - base} from the surplus"
    if state.profiled:
        return f"{text}, on which its speed is measured"
    speeds = state.job.curve.best
    if not base or not speeds[base]:
        return text
    return f"{text}, expected to be {speeds[count] / speeds[base]:.2f} times as fast"


def _in_better_use(devices: int) -> str:
    """Say that no device is left.

    >>> _in_better_use(4), _in_better_use(1)
    ('all 4 devices are in better use', 'the only device is in better use')
    """
    if devices < 2:
        return "the only device is in better use" if devices else "training has no device now"
    return f"all {devices:,} devices are in better use"


def _is_online(state: JobState) -> bool:
    """Return whether a job answers requests, by its owner's word."""
    return state.job.priority is Priority.ONLINE and state.job.deadline is None


def _useful(need: Need, free: int) -> int:
    """The fewest workers that are as fast as `free` workers are."""
    maximum = min(free, need.ceiling)
    if maximum <= 0:
        return 0
    return next((n for n in range(maximum + 1) if need.best[n] >= need.best[maximum]), 0)
