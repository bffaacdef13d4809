"""Beliefs about scheduled jobs: their speed, the cost of changes, and the view that a policy gets.

Pure: it is told all sightings, and learns from them and from the lessons of other jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import Seen
from brim.domain.cluster import ClusterSpec
from brim.domain.measuring import Measured, curve_of, curve_of_service, gain_of_one_more
from brim.domain.profiling import Profile, ProfileNote, advance, sizes_to_measure
from brim.domain.quantities import counted
from brim.domain.resizing import Overheads, clocks_agree, ready_at
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot, Standing
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.domain.usage import RecentUse
from brim.domain.workload import Job

_CAUTION = (
    0.97  # of the measured speed is what plans count on: a promise without anything to spare breaks
)
_FREE_DEVICES_WAIT = 0.1  # seconds within which a job has devices that nobody had to give up for it
_TOO_MANY = 1024  # workers: who needs so many on a smaller cluster waits all the same
_UNKNOWN_WORK = 600.0  # steps that a job is believed to have until it says how many
_ENDLESS = 1e12  # steps that a service is believed to have: it ends by its owner's word alone
_RESTART = 10.0  # seconds that a command is believed to lose at a restart, until one was seen
_BLIND_AFTER = 10.0  # seconds without a look, after which nobody knows what took how long


class Lessons(Protocol):
    """The lessons of jobs so far, kept up to date by the commands to learn."""

    @property
    def overheads(self) -> Overheads:
        """The costs of changes here, as far as they were seen."""
        ...

    def restart_of(self, submission: Submission) -> float | None:
        """Return the seconds that commands like this one lost at a restart; None: none was seen."""
        ...

    def measured(self, fingerprint: str) -> Measured:
        """Return the speeds that jobs with this fingerprint have taught."""
        ...

    def steps_of(self, submission: Submission) -> int | None:
        """Return the number of steps of a job; None where it is still unknown."""
        ...


class _Gain(NamedTuple):
    """The steps per second that one more worker would add to so many, by these rates."""

    workers: int
    rates: dict[int, float]
    gain: float | None


@dataclass(slots=True)
class Track:
    """Knowledge of this life of the scheduler about a job, beyond the records on disk.

    Args:
        seen: at the last look.
        looked: when that was.
        confirmed: its processes have said yes to their target; those of an earlier life are asked
            again.
        begun: the step at which its processes were started.
        forced: to which workers it was forced, since it was last asked for fewer.
        sizes: numbers of workers at which it was seen to be measured.
        learned: when others were last taught by it.
        agrees: whether the clock of its processes agrees with the scheduler's, as its last step
            shows; if not, no costs are learned.
        change: the latest change of workers whose cost is unknown: (time, workers before, step).
        wanted: since when its plan has more workers for it than it was asked to have.
    """

    seen: Seen = field(default_factory=lambda: Seen(alive=False))
    looked: float | None = None
    confirmed: bool = False
    begun: int = 0
    forced: ByNode | None = None
    sizes: frozenset[int] = frozenset()
    learned: float = 0.0
    agrees: bool = False
    change: tuple[float, int, int] | None = None
    wanted: float | None = None
    rates: dict[int, float] = field(default_factory=dict)
    bounds: tuple[int, int] = (0, 0)
    curve: ScalingCurve | None = None
    gain: _Gain | None = None


class Tracking:
    """Knowledge of this life of the scheduler about its jobs.

    Args:
        lessons: the lessons of earlier jobs like these.
        learn_cost: is called with a kind of change and the seconds that one took.
        learn_restart: is called with a job and the seconds that its command lost at a restart.
    """

    def __init__(
        self,
        lessons: Lessons,
        learn_cost: Callable[[str, float], None],
        learn_restart: Callable[[Submission, float], None],
    ) -> None:
        self._lessons = lessons
        self._learn_cost, self._learn_restart = learn_cost, learn_restart
        self._tracks: dict[str, Track] = {}
        self._looked = math.inf  # when the last look began

    def track(self, job: ScheduledJob) -> Track:
        """Return the knowledge of a present job."""
        track = self._tracks.get(job.id)
        if track is None:
            track = self._tracks[job.id] = Track()
        return track

    # What is seen ---------------------------------------------------------------------------------

    def look(self, now: float, *, unseen: float = 0.0) -> None:
        """Begin a look.

        Durations while the host slept, or this process was stopped, are unknown; as are those of an
        outage.

        Args:
            unseen: seconds of that.
        """
        if now - self._looked > _BLIND_AFTER or unseen > 0.0:
            for track in self._tracks.values():
                track.change = None
                track.wanted = None
                track.looked = None
                track.agrees = False
        self._looked = now

    def see(self, job: ScheduledJob, seen: Seen, now: float) -> None:
        """Note the present state of its processes."""
        track = self.track(job)
        last = seen.last_step
        if last is not None and last != track.seen.last_step:
            previous = track.looked
            track.agrees = previous is not None and clocks_agree(last, unseen=previous, seen=now)
        track.seen = seen
        track.looked = now

    def has_news(self, job: ScheduledJob, seen: Seen) -> bool:
        """Return whether a job was measured on another number of workers, or says its steps."""
        new_sizes = frozenset(seen.measured.rates) - self.track(job).sizes
        return bool(new_sizes) or (seen.steps is not None and job.progress.steps is None)

    def is_due_to_teach(self, job: ScheduledJob, now: float, *, interval: float) -> bool:
        """True if others were not taught by it for so long."""
        return now - self.track(job).learned > interval

    def has_taught(self, job: ScheduledJob, seen: Seen, now: float) -> None:
        """Note that its measurements are public."""
        track = self.track(job)
        track.sizes = frozenset(seen.measured.rates)
        track.learned = now

    def has_stepped(self, job: ScheduledJob) -> bool:
        """True if its processes have done anything that was not done before."""
        track = self.track(job)
        return track.seen.step > track.begun

    # Its life -------------------------------------------------------------------------------------

    def begin(self, job: ScheduledJob, now: float) -> None:
        """Forget its earlier processes: others are about to be started."""
        workers_wished = self.track(job).wanted
        self._tracks[job.id] = Track(
            confirmed=True, begun=job.progress.step, looked=now, wanted=workers_wished
        )

    def end(self, job: ScheduledJob, now: float) -> Track:
        """Forget its processes, which have ended, and return the last sight of them.

        The measurements are enough for its profile: it may be long until it runs again.
        """
        if self._measured(job).rates:
            job.profile = None
        track = self._tracks.pop(job.id, None) or Track()
        if track.agrees and track.seen.outcome == "done" and track.seen.last_step is not None:
            self._learn_cost("end", now - track.seen.last_step)
        return track

    def forget(self, job: ScheduledJob) -> None:
        """Know nothing more of a job whose life is over."""
        self._tracks.pop(job.id, None)

    # What changes cost ----------------------------------------------------------------------------

    def want(self, job: ScheduledJob, now: float) -> None:
        """Note that its plan has changed: it gives it `job.workers` from now on."""
        self.track(job).wanted = now if job.workers > job.target else None

    def change(self, job: ScheduledJob, targets: ByNode, now: float) -> float:
        """Note that its workers, or their nodes, are about to change.

        Return the seconds that this is believed to cost.
        """
        track = self.track(job)
        workers = sum(targets.values())
        grows = workers not in (0, job.target)
        track.change = (now, job.target, job.progress.step) if grows else None
        if (
            workers > job.target
            and track.wanted is not None
            and now - track.wanted > _FREE_DEVICES_WAIT
        ):
            self._learn_cost("handover", now - track.wanted)
        track.wanted = None
        moved = targets != job.allocation.told
        if job.submission.spec.is_restarted:
            return self._restart_of(job) if workers and moved else 0.0
        return self._lessons.overheads.cost(job.target, workers, moved=moved)

    def reckon(self, job: ScheduledJob) -> None:
        """Learn the cost of its last change, once its new number of workers has made steps."""
        track = self.track(job)
        reached = track.seen.reached
        if track.change is None or reached is None or reached.workers != job.target:
            return
        rate = track.seen.measured.rates.get(job.target)
        if rate is None:
            return
        changed_at, workers_before, step = track.change
        track.change = None
        if track.agrees:
            # The time that the steps made meanwhile do not account for at the new speed.
            cost = reached.at - changed_at - (reached.step - step) / rate
            if job.submission.spec.is_restarted:  # of no other kind of job
                self._learn_restart(job.submission, cost)
                return
            self._learn_cost("resize" if workers_before else "start", cost)

    def _restart_of(self, job: ScheduledJob) -> float:
        """Return the seconds that a command loses where it is started again, as it was seen to."""
        seen = self._lessons.restart_of(job.submission)
        return _RESTART if seen is None else seen

    # How fast it is -------------------------------------------------------------------------------

    def _measured(self, job: ScheduledJob) -> Measured:
        own_measurement = self.track(job).seen.measured
        learned = self._lessons.measured(job.submission.fingerprint)
        return own_measurement.merged([learned]) if own_measurement.totals else learned

    def _steps(self, job: ScheduledJob) -> int | None:
        return job.progress.steps or self._lessons.steps_of(job.submission)

    def is_known(self, job: ScheduledJob) -> bool:
        """True if it can be judged: only measured jobs can be promised deadlines."""
        return job.submission.deadline is None or self.is_measured(job)

    def is_measured(self, job: ScheduledJob) -> bool:
        """True if its speed and its steps are known."""
        return job.profile is None and bool(self._measured(job).rates and self._steps(job))

    def _believed(self, job: ScheduledJob) -> dict[int, float]:
        """Return the points of its curve.

        While it is profiled these are the last size alone, so that the next is worth trying.
        """
        rates = self._measured(job).rates
        profile = job.profile
        if profile is None:
            return rates
        smaller = max((n for n in rates if n < profile.size), default=None)
        return {} if smaller is None else {smaller: rates[smaller]}

    def _bounds(self, job: ScheduledJob, capacity: int) -> tuple[int, int]:
        """Return the fewest and the most workers that it can have here.

        A curve has a number for each count up to there: of a job that needs many more than there
        are, the number does not matter.
        """
        workers = job.submission.spec.workers
        minimum = min(workers.minimum, max(capacity + 1, _TOO_MANY))
        return minimum, min(workers.maximum, max(capacity, minimum))

    def speed(self, job: ScheduledJob) -> tuple[float | None, float | None]:
        """Return the steps per second of a running job, and the gain of one more worker.

        None stands for the unknown.
        """
        track, rates = self.track(job), self._measured(job).rates
        workers = job.target
        if track.gain is None or track.gain.workers != workers or _differ(rates, track.gain.rates):
            gain = gain_of_one_more(rates, parts=_parts(job), workers=workers) if workers else None
            track.gain = _Gain(workers, rates, gain)
        return rates.get(workers), track.gain.gain

    def _curve(self, job: ScheduledJob, capacity: int) -> ScalingCurve:
        track = self.track(job)
        rates = self._believed(job)
        bounds = self._bounds(job, capacity)
        if job.submission.spec.service is not None:
            return curve_of_service(*bounds)
        if track.curve is None or bounds != track.bounds or _differ(rates, track.rates):
            track.rates = rates
            track.bounds = bounds
            track.curve = curve_of(rates, parts=_parts(job), minimum=bounds[0], maximum=bounds[1])
        return track.curve

    # Its profile ----------------------------------------------------------------------------------

    def profile(self, job: ScheduledJob, capacity: int) -> Profile | None:
        """Return the profile that a job would begin with.

        Only an unmeasured model gets one, if sizes can be tried.
        """
        # Each size that is tried is a restart to a command, whose steps may never be heard of.
        is_opaque = job.submission.opaque or job.submission.spec.restart
        if is_opaque or job.starts.launches or self._measured(job).rates:
            return None
        sizes = self._sizes(job, capacity)
        return Profile(size=sizes[0]) if len(sizes) > 1 else None

    def _sizes(self, job: ScheduledJob, capacity: int) -> tuple[int, ...]:
        minimum, maximum = self._bounds(job, capacity)
        return sizes_to_measure(parts=_parts(job), minimum=minimum, maximum=maximum)

    def advance(self, job: ScheduledJob, capacity: int, now: float) -> ProfileNote | None:
        """Go on with the profile of a job that runs; return what is new about it."""
        profile = job.profile
        if profile is None or self.track(job).seen.first_step is None:
            return None
        if job.target > profile.size:
            job.profile = None
            size = counted(profile.size, "worker")
            return ProfileNote("not measured", f"at {size}: its policy gives it {job.target}")
        job.profile, note = advance(
            profile,
            self._measured(job),
            self._sizes(job, capacity),
            now=now,
            deadline=job.submission.deadline,
        )
        return note

    # What a policy sees ---------------------------------------------------------------------------

    def snapshot(
        self,
        jobs: Sequence[ScheduledJob],
        spec: ClusterSpec,
        *,
        unavailable: Mapping[str, str],
        kinds: Mapping[str, tuple[str, ...]],
        nodes: Mapping[str, tuple[str, ...]],
        recent: RecentUse | None,
        memory: object,
        now: float,
    ) -> Snapshot:
        """Return these jobs as a policy sees them.

        One that has a deadline arrives once it can be judged.

        Args:
            unavailable: why nodes have no devices now, by their ids.
            kinds: of nodes, by job that can go on on these only.
            nodes: by job that can be on these only.
            recent: what tenants have borrowed lately.
        """
        cluster, capacity = spec.cluster.with_lost(unavailable), spec.capacity
        arrived = [job.id for job in jobs if not job.judgement.judged and self.is_known(job)]
        return Snapshot(
            now=now,
            cluster=cluster,
            capacity=max(0, cluster.devices - spec.headroom),
            jobs=tuple(
                self.state(job, capacity, now, kinds=kinds.get(job.id), nodes=nodes.get(job.id))
                for job in jobs
            ),
            arrived=tuple(arrived),
            overheads=self._lessons.overheads.paid_ahead,
            tenants=spec.tenants,
            promise=spec.promise,
            recent=recent,
            unavailable=unavailable,
            memory=memory,
        )

    def state(
        self,
        job: ScheduledJob,
        capacity: int,
        now: float,
        *,
        kinds: tuple[str, ...] | None = None,
        nodes: tuple[str, ...] | None = None,
    ) -> JobState:
        """Return one job as a policy sees it.

        Args:
            capacity: devices for training here, also those that are lost now.
            kinds, nodes: that it can be on; None: all.
        """
        submission = job.submission
        workers = submission.spec.workers
        curve = self._curve(job, capacity)
        is_profiled = self.is_known(job)
        profile = job.profile or self.profile(job, capacity)
        is_service = submission.spec.service is not None
        minimum, most = self._bounds(job, capacity)[0], workers.maximum
        if profile is not None:  # its owner may have raised the fewest meanwhile
            most = max(profile.size, minimum)
        work = _ENDLESS if is_service else float(self._steps(job) or _UNKNOWN_WORK)
        job_for_policy = Job(
            id=job.id,
            submitted=job.submitted,
            work=work,
            curve=curve,
            deadline=submission.deadline if is_profiled else None,
            requested=workers.maximum,
            duration=work / curve.best[min(workers.maximum, len(curve.best) - 1)],
            minimum=minimum,
            maximum=most,  # so a policy need not know of profiles
            tenant=submission.tenant,
            priority=submission.priority,
            exact=submission.spec.exact,
            kinds=kinds,
            nodes=nodes,
        )
        allocation = job.allocation
        saved = self.track(job).seen.saved
        end = self._lessons.overheads.end
        return JobState(
            job=job_for_policy,
            remaining=work if is_service else max(work - job.progress.step, 1.0),
            workers=job.target if job.running else 0,
            standing=job.judgement.standing if is_profiled else Standing.BEST_EFFORT,
            attained=job.progress.attained,
            ready=ready_at(allocation.ready, now, end=end) if job.running else allocation.ready,
            changed=allocation.changed,
            pace=_CAUTION,
            unsaved=max(0.0, now - saved) if job.running and saved else 0.0,
            nodes=job.held,  # its home is left last
            unmeasured=not is_profiled,
            anywhere=submission.anywhere,
            restart=self._restart_of(job) if submission.spec.is_restarted else 0.0,
            profiled=profile is not None,
        )


def _parts(job: ScheduledJob) -> int:
    """Return the micro-batches of a step for each process of a worker, where they take whole ones."""
    spec = job.submission.spec
    if spec.restart:
        return spec.workers.maximum  # only sizes that divide it are of use: see `size_of`
    return spec.micro_batches // job.submission.processes if spec.exact else 0


def _differ(rates: dict[int, float], other_rates: dict[int, float]) -> bool:
    """Return whether the rates differ by more than 2 %, so that the curve must be fitted again."""
    return rates.keys() != other_rates.keys() or any(
        abs(rate / other_rates[n] - 1.0) > 0.02 for n, rate in rates.items()
    )
