"""The default policy.

It keeps promised deadlines, meets as many others as it can, and uses surplus devices well.

Pure. One plan holds every job whose deadline is promised and as many of the others as still can be
in time (`joint`); these are *hoped for*: they run by the plan, but may be given up for cheaper
ones. A job that is hoped for is promised as soon as it is cheap (`price`), which it becomes as it
runs. Devices that the plan leaves go out by efficiency (`allotment`, `surplus`).

Why no promise breaks while profiles are right and nothing fails: the plan of a cycle, without the
jobs that are hoped for, is a plan for all promised jobs within capacity, and a job is promised only
where the plan has it. If no new plan is found for all that were promised, the last one goes on, and
hope gets what is free beside it. So each cycle leaves a plan in which every promised job is done in
time, and `promises` proves that the next one can go on with it. Jobs without a promise run on
devices that no promise needs at that moment; what they hold is taken back at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brim.domain.promising import PromiseAt
from brim.domain.quantities import counted
from brim.domain.schedule import (
    Admitted,
    Decision,
    JobState,
    Reason,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
)
from brim.domain.workload import Priority
from brim.policies.allotment import MARGIN, Plans, allot
from brim.policies.joint import BY_DEADLINE, PlanCandidate, plan_jointly
from brim.policies.paces import Paces, is_measured, joined_by, slower
from brim.policies.price import NO_ARRIVALS, Arrivals, Prices
from brim.policies.promises import (
    Promise,
    as_planned,
    carry_on,
    mend,
    need_of,
    next_change,
    plan_all,
    plan_most,
    workers_now,
)

# Jobs that are planned again in each cycle, which takes a few milliseconds; each further one
_JOBS_PER_CYCLE = 100
# may be as long planned as this many seconds: so making plans takes a thousandth of a processor's
# time.
_AGE = 0.1
# Jobs that may be hoped for: the cheapest; and those tried in a cycle that goes on with its plan.
_HOPED, _TRIED = 400, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The memory that one cycle leaves to the next.

    Args:
        plans: of all jobs that are promised or hoped for.
        arrivals: costs of earlier jobs.
        planned: when all plans were made again.
        devices: for which they were made.
        paces: measured speeds of jobs, against their profiles: when, and how fast.
    """

    plans: Mapping[str, Promise] = field(default_factory=dict)
    arrivals: Arrivals = NO_ARRIVALS
    planned: float = 0.0
    devices: int = 0
    paces: Paces = ()


def brim(snapshot: Snapshot) -> Decision:
    """Decide one cycle; the memory is a `Remembered`."""
    return _Cycle(snapshot).decide()


class _Cycle:
    """One pass: the snapshot, and the plan that is made for it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.now = snapshot, snapshot.now
        # Promises count on what is assured; what is borrowed only ever adds to the surplus.
        self.devices = (
            snapshot.capacity
            if snapshot.assured is None
            else min(snapshot.assured, snapshot.capacity)
        )
        self.last: Remembered = snapshot.memory or Remembered()
        self.states = {state.job.id: state for state in snapshot.jobs}
        self.paces = joined_by(self.last.paces, snapshot)
        self.plans: dict[str, Promise] = {}  # of promised jobs
        self.hoped: dict[str, Promise] = {}
        self.broken = False
        self.verdicts: list[Verdict] = []

    def decide(self) -> Decision:
        promised = self._promised()
        hopeful = self._hopeful()
        planned = self._plan(promised, hopeful)
        arrivals = self._joined(hopeful)
        self._judge(hopeful, arrivals)
        due = {promise.job: promise.bare for promise in promised}
        due |= {name: hopeful[name].bare for name in self.plans if name in hopeful}
        needed = {name: workers_now(promise, self.now) for name, promise in self.plans.items()}
        plans = Plans(self.plans, self.hoped, due, needed)
        workers, reasons = allot(self.snapshot, plans)
        all_plans = self.plans | self.hoped
        return Decision(
            workers=workers,
            verdicts=tuple(self.verdicts),
            wake=next_change(all_plans, self.now),
            reasons=reasons,
            # A plan has to have so much to spare before a migration may disturb it.
            pinned=frozenset(
                name
                for name, plan in self.plans.items()
                if plan.spare < MARGIN * due[name].change - 1e-6
            ),
            needed=needed,
            # Without a plan, nothing was planned: who keeps it writes nothing down.
            memory=Remembered(
                plans=all_plans,
                arrivals=arrivals,
                planned=planned if all_plans else 0.0,
                devices=self.devices if all_plans else 0,
                paces=self.paces,
            ),
        )

    # What is wanted -------------------------------------------------------------------------------

    def _candidate(self, state: JobState, *, doubt: float) -> PlanCandidate:
        bare = need_of(state, now=self.now, overheads=self.snapshot.overheads, doubt=doubt)
        return PlanCandidate(
            state.job.id, bare, MARGIN * bare.change, None, slower(state, self.paces)
        )

    def _promised(self) -> list[PlanCandidate]:
        """Promised jobs by deadline, without any doubt."""
        found = [
            self._candidate(state, doubt=0.0)
            for state in self.snapshot.jobs
            if state.standing is Standing.ADMITTED and state.job.deadline is not None
        ]
        return sorted(found, key=BY_DEADLINE)

    def _hopeful(self) -> dict[str, PlanCandidate]:
        """Jobs without a promise that could be in time, the cheapest first."""
        found = []
        for state in self.snapshot.jobs:
            if state.job.deadline is None or state.standing is Standing.ADMITTED:
                continue
            candidate = self._candidate(state, doubt=self.snapshot.overheads.doubt)
            share = candidate.bare.share()
            if share is not None:
                cost = share * (candidate.bare.finish(share) - self.now)
                candidate.cost = cost
                found.append((cost, candidate.job, candidate))
        return {job: candidate for _, job, candidate in sorted(found)}

    # The plan -------------------------------------------------------------------------------------

    def _plan(self, promised: list[PlanCandidate], hopeful: Mapping[str, PlanCandidate]) -> float:
        """Find a plan; returns when it was made as a whole."""
        age = self.now - self.last.planned
        if age < _AGE * (len(promised) + len(hopeful) - _JOBS_PER_CYCLE) and self._go_on(
            promised, hopeful
        ):
            return self.last.planned
        # Who would be late even alone is nobody's reason to make no plan.
        self._plan_anew([candidate for candidate in promised if candidate.is_possible], hopeful)
        return self.now

    def _go_on(
        self, promised: Sequence[PlanCandidate], hopeful: Mapping[str, PlanCandidate]
    ) -> bool:
        """Go on with the last plan, and fit in arrivals.

        False where it no longer keeps each promise.
        """
        if self.devices < self.last.devices:
            return False
        plans = {}
        for candidate in promised:
            last = self.last.plans.get(candidate.job)
            promise = None if last is None else as_planned(last, candidate.bare, self.now)
            if promise is not None:
                plans[candidate.job] = promise
            elif candidate.is_possible:
                return False
        waiting: list[PlanCandidate] = []
        going: list[PlanCandidate] = []
        fresh = frozenset(self.snapshot.arrived)
        for candidate in hopeful.values():
            last = self.last.plans.get(candidate.job)
            promise = None if last is None else as_planned(last, candidate.bare, self.now)
            if promise is not None:
                plans[candidate.job] = promise
                going.append(candidate)
            elif candidate.job in fresh or len(waiting) < _TRIED:
                waiting.append(candidate)
        joint = self._jointly(waiting, fixed_plans=plans, givable=going) if waiting else plans
        assert joint is not None, "promised jobs keep their places"
        self._split(joint, hopeful)
        return True

    def _plan_anew(
        self, promised: list[PlanCandidate], hopeful: Mapping[str, PlanCandidate]
    ) -> None:
        doubt = self.snapshot.overheads.doubt
        careful = (
            [self._candidate(self.states[candidate.job], doubt=doubt) for candidate in promised]
            if doubt
            else promised
        )
        hopes = list(hopeful.values())[:_HOPED]
        plans = self._jointly([*careful, *hopes])
        if plans is None:
            reduced = self._plan_without_doubt(promised)
            self.broken = len(reduced) < len(promised)
            plans = self._jointly(hopes, fixed_plans=reduced)
            assert plans is not None, "promised jobs keep their places"
        self._split(plans, hopeful)

    def _jointly(
        self,
        candidates: Sequence[PlanCandidate],
        *,
        fixed_plans: Mapping[str, Promise] | None = None,
        givable: Sequence[PlanCandidate] = (),
    ) -> dict[str, Promise] | None:
        last = self.last.plans
        return plan_jointly(
            candidates,
            now=self.now,
            devices=self.devices,
            last=last,
            fixed_plans=fixed_plans,
            givable=givable,
        )

    def _split(self, plans: Mapping[str, Promise], hopeful: Mapping[str, PlanCandidate]) -> None:
        self.hoped = {name: plans[name] for name in hopeful if name in plans}
        self.plans = {name: promise for name, promise in plans.items() if name not in self.hoped}

    def _plan_without_doubt(self, candidates: Sequence[PlanCandidate]) -> dict[str, Promise]:
        """Plan without the margin for doubt.

        The margin of a promise may be used up: it is there for this.
        """
        now, devices, last = self.now, self.devices, self.last.plans
        needs = [candidate.needs for candidate in candidates]
        plans = carry_on(last, needs, now=now, devices=devices)
        if plans is not None and len(plans) == len(needs):
            return plans
        bare = [(name, need, need) for name, _, need in needs]
        plans = plan_all(needs, now=now, devices=devices) or plan_all(
            bare, now=now, devices=devices
        )
        if plans is not None:
            return plans
        # A failure, a wrong profile or lost capacity: keep as many as can be kept.
        mended, fitted = (
            mend(last, bare, now=now, devices=devices),
            plan_most(bare, now=now, devices=devices),
        )
        return mended if len(mended) >= len(fitted) else fitted

    # Verdicts -------------------------------------------------------------------------------------

    def _joined(self, hopeful: Mapping[str, PlanCandidate]) -> Arrivals:
        costs = [hopeful[name].cost or 0.0 for name in self.snapshot.arrived if name in hopeful]
        return self.last.arrivals.joined_by(costs, now=self.now)

    def _judge(self, hopeful: Mapping[str, PlanCandidate], arrivals: Arrivals) -> None:
        """Promise planned and cheap jobs; tell every arrival its standing."""
        prices = Prices(arrivals, now=self.now, devices=self.devices)
        fresh = frozenset(self.snapshot.arrived)
        for name in [
            *self.snapshot.arrived,
            *(name for name in list(self.hoped) if name not in fresh),
        ]:
            candidate = hopeful.get(name)
            refusal = self._refusal(name) if candidate is None else self._not_yet(candidate, prices)
            if refusal is None:
                self.plans[name] = self.hoped.pop(name)
                self.verdicts.append(self._yes(name))
            elif name in fresh:
                self.verdicts.append(refusal)

    def _yes(self, name: str) -> Admitted:
        pieces, deadline = self.plans[name].pieces, self.states[name].job.deadline
        share, finish = max(piece.workers for piece in pieces), pieces[-1].stop
        assert deadline is not None
        text = (
            f"{counted(share, 'worker')} will do: done {deadline - finish:.0f} s before the "
            "deadline"
        )
        return Admitted(job=name, reason=Reason.FITS, share=share, finish=finish, detail=text)

    def _refusal(self, name: str) -> Verdict:
        """Return the verdict of a job that has no deadline, or cannot meet it."""
        job = self.states[name].job
        if job.deadline is None:
            is_service = job.priority is Priority.ONLINE
            text = "comes before training" if is_service else "runs on what promised jobs leave"
            return Admitted(job=name, reason=Reason.NO_DEADLINE, detail=text, promises=False)
        bare = self._candidate(self.states[name], doubt=self.snapshot.overheads.doubt).bare
        earliest = bare.finish(bare.ceiling)
        text = (
            f"{counted(bare.ceiling, 'worker')}, the most that help, would be done "
            f"{earliest - job.deadline:.0f} s after the deadline"
        )
        return Rejected(job=name, reason=Reason.TOO_LATE, detail=text, earliest=earliest, runs=True)

    def _not_yet(self, candidate: PlanCandidate, prices: Prices) -> Rejected | None:
        """Return the reason why a deadline is not promised now.

        None where it is promised.
        """
        state, cost = self.states[candidate.job], candidate.cost or 0.0
        if candidate.job not in self.hoped or self.broken:
            text = (
                f"with {counted(len(self.plans), 'promised job')} on "
                f"{counted(self.devices, 'device')} no plan is in time for all"
            )
            return Rejected(job=candidate.job, reason=Reason.BREAKS_PROMISE, detail=text, runs=True)
        if self.snapshot.promise is PromiseAt.MEASURED and not is_measured(state):
            text = "is planned to be in time, and promised once its own speed was measured"
            return Rejected(job=candidate.job, reason=Reason.TO_MEASURE, detail=text, runs=True)
        if (
            candidate.slower > 1.0
            and as_planned(self.hoped[candidate.job], candidate.doubtful, self.now) is None
        ):
            text = (
                "is planned to be in time, and promised once its own speed was measured: jobs "
                "were up to "
                f"{candidate.slower - 1.0:.0%} slower than their profiles"
            )
            return Rejected(job=candidate.job, reason=Reason.TO_MEASURE, detail=text, runs=True)
        highest = prices.highest(candidate.bare.due - self.now)
        if cost > highest:
            text = (
                f"is planned to be in time, and promised once it needs {highest:.0f} "
                "device-seconds, not "
                f"{cost:.0f}: jobs as cheap as that keep coming"
            )
            return Rejected(job=candidate.job, reason=Reason.LEAVES_ROOM, detail=text, runs=True)
        return None
