"""The jobs of a live cluster as a policy sees them: what is written down of them, and what they
were seen to do.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from brim.backends.processes import Seen
from brim.coordination.reconcile import ByNode
from brim.domain.cluster import ClusterSpec
from brim.domain.measuring import Measured, curve_of
from brim.domain.profiling import Profile, advance, sizes_to_measure
from brim.domain.resizing import clocks_agree, measured_overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot, Standing
from brim.domain.workload import Job
from brim.storage.book import Book, JobRecord

_CAUTION = (
    0.97  # of the measured speed is what plans count on: a promise without anything to spare breaks
)
_AT_ONCE = 0.1  # seconds within which a job has devices that nobody had to give up for it
_UNKNOWN_WORK = 600.0  # steps that a job is believed to have until it says how many
_AWAY = 10.0  # seconds without a look, after which nobody knows what took how long


@dataclass(slots=True)
class Track:
    """What this life of the scheduler knows of a job beyond the book.

    Args:
        seen: at the last look.
        looked: when that was.
        confirmed: its processes have said yes to their target; those of an earlier life are asked
            again.
        begun: the step at which its processes were started.
        forced: to which workers it was forced, since it was last asked for fewer.
        sizes: numbers of workers at which it was seen to be measured.
        learned: when the book last learned from it.
        agrees: the clock of its processes with the scheduler's, as its last step shows: no cost is
            learned else.
        change: of its workers, whose cost is not known yet: when, from how many, and at which step.
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


class Picture:
    """What this life of the scheduler has seen.

    Args:
        book: has what jobs like these have taught before.

    Attributes:
        overheads: what changes cost here, as far as that was seen.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self.overheads = measured_overheads(book.costs)
        self._tracks: dict[str, Track] = {}
        self._looked = math.inf  # when the last look began

    def _learn_cost(self, kind: str, seconds: float) -> None:
        self._book.learn_cost(kind, max(0.0, seconds))
        self.overheads = measured_overheads(self._book.costs)

    def track(self, record: JobRecord) -> Track:
        track = self._tracks.get(record.id)
        if track is None:
            track = self._tracks[record.id] = Track()
        return track

    def look(self, now: float) -> None:
        """A look begins; what went on while the host slept, or this process was stopped, took
        nobody knows how long.
        """
        if now - self._looked > _AWAY:
            for track in self._tracks.values():
                track.change = track.wanted = track.looked = None
                track.agrees = False
        self._looked = now

    def see(self, record: JobRecord, seen: Seen, now: float) -> None:
        """What its processes do now."""
        track, last = self.track(record), seen.last_step
        if last is not None and last != track.seen.last_step:
            before = track.looked
            track.agrees = before is not None and clocks_agree(last, unseen=before, seen=now)
        track.seen, track.looked = seen, now

    def begin(self, record: JobRecord, now: float) -> None:
        """Its processes are about to be started."""
        wanted = self.track(record).wanted
        self._tracks[record.id] = Track(
            confirmed=True, begun=record.step, looked=now, wanted=wanted
        )

    def end(self, record: JobRecord, now: float) -> Track:
        """They have ended; what was seen of them.

        What was measured is enough: it may be long until it runs again.
        """
        if self._measured(record).rates:
            record.profile = None
        track = self._tracks.pop(record.id, Track())
        if track.agrees and track.seen.outcome == "done" and track.seen.last_step is not None:
            self._learn_cost("end", now - track.seen.last_step)
        return track

    def has_stepped(self, record: JobRecord) -> bool:
        """Whether its processes have done anything that was not done before."""
        track = self.track(record)
        return track.seen.step > track.begun

    def snapshot(
        self,
        records: list[JobRecord],
        spec: ClusterSpec,
        *,
        lost: Collection[str],
        memory: object,
        now: float,
    ) -> Snapshot:
        """These jobs as a policy sees them; one that has a deadline arrives once it can be judged.

        Args:
            lost: nodes whose devices nobody can have now.
        """
        cluster = spec.cluster.without(lost)
        return Snapshot(
            now=now,
            cluster=cluster,
            capacity=max(0, cluster.devices - spec.headroom),
            jobs=tuple(self.state(record, spec, now) for record in records),
            arrived=tuple(
                record.id for record in records if not record.judged and self.is_known(record)
            ),
            overheads=self.overheads.paid_ahead,
            tenants=spec.tenants,
            promise=spec.promise,
            memory=memory,
        )

    def want(self, record: JobRecord, now: float) -> None:
        """Its plan has changed: it gives it `record.workers` from now on."""
        self.track(record).wanted = now if record.workers > record.target else None

    def change(self, record: JobRecord, told: ByNode, now: float) -> float:
        """Its workers, or their nodes, are about to change; what that is believed to cost, in
        seconds.
        """
        track, workers = self.track(record), sum(told.values())
        track.change = (
            (now, record.target, record.step) if workers not in (0, record.target) else None
        )
        if workers > record.target and track.wanted is not None and now - track.wanted > _AT_ONCE:
            self._learn_cost("handover", now - track.wanted)
        track.wanted = None
        return self.overheads.cost(record.target, workers, moved=dict(told) != record.told)

    def reckon(self, record: JobRecord) -> None:
        """What its last change has cost, once there are steps on its new number of workers to tell
        from.
        """
        track = self.track(record)
        reached, rate = track.seen.reached, track.seen.measured.rates.get(record.target)
        if (
            track.change is None
            or reached is None
            or reached.workers != record.target
            or rate is None
        ):
            return
        (at, before, step), track.change = track.change, None
        if track.agrees:
            # The time that the steps made meanwhile do not account for at the new speed.
            cost = reached.at - at - (reached.step - step) / rate
            self._learn_cost("resize" if before else "start", cost)

    def _measured(self, record: JobRecord) -> Measured:
        mine, earlier = (
            self.track(record).seen.measured,
            self._book.measured(record.submission.fingerprint),
        )
        return mine.merged([earlier]) if mine.totals else earlier

    def _steps(self, record: JobRecord) -> int | None:
        return record.steps or self._book.steps_of(record.submission)

    def is_known(self, record: JobRecord) -> bool:
        """Whether it can be judged: a deadline can be promised only to what was measured."""
        return record.submission.deadline is None or self.is_measured(record)

    def is_measured(self, record: JobRecord) -> bool:
        """Whether its speed and its steps are known."""
        return record.profile is None and bool(self._measured(record).rates and self._steps(record))

    def _believed(self, record: JobRecord) -> dict[int, float]:
        """What its curve goes through; while it is profiled the last size alone, so that the next
        is worth trying.
        """
        rates, profile = self._measured(record).rates, record.profile
        if profile is None:
            return rates
        below = max((n for n in rates if n < profile.size), default=None)
        return {} if below is None else {below: rates[below]}

    def _bounds(self, record: JobRecord, cluster: ClusterSpec) -> tuple[int, int]:
        """The fewest and the most workers that it can have here."""
        workers = record.submission.spec.workers
        return workers.minimum, min(workers.maximum, max(cluster.capacity, workers.minimum))

    def _curve(self, record: JobRecord, cluster: ClusterSpec) -> ScalingCurve:
        track, rates = self.track(record), self._believed(record)
        bounds = self._bounds(record, cluster)
        if track.curve is None or bounds != track.bounds or _differ(rates, track.rates):
            track.rates, track.bounds = rates, bounds
            track.curve = curve_of(
                rates, parts=_parts(record), minimum=bounds[0], maximum=bounds[1]
            )
        return track.curve

    def profile(self, record: JobRecord, cluster: ClusterSpec) -> Profile | None:
        """The profile that a job would begin with: of a model that nobody has measured, if sizes
        can be tried.
        """
        if record.launches or self._measured(record).rates:
            return None
        sizes = self._sizes(record, cluster)
        return Profile(size=sizes[0]) if len(sizes) > 1 else None

    def _sizes(self, record: JobRecord, cluster: ClusterSpec) -> tuple[int, ...]:
        minimum, maximum = self._bounds(record, cluster)
        return sizes_to_measure(parts=_parts(record), minimum=minimum, maximum=maximum)

    def advance(self, record: JobRecord, cluster: ClusterSpec, now: float) -> str:
        """Go on with the profile of a job that runs; what was measured, or why it is over, in
        words.
        """
        profile = record.profile
        if profile is None or self.track(record).seen.first_step is None:
            return ""
        if record.target > profile.size:
            record.profile = None
            return f"not at {profile.size}: its policy gives it {record.target}"
        record.profile, said = advance(
            profile,
            self._measured(record),
            self._sizes(record, cluster),
            now=now,
            deadline=record.submission.deadline,
        )
        return said

    def state(self, record: JobRecord, spec: ClusterSpec, now: float) -> JobState:
        """One job as a policy sees it."""
        submission, workers = record.submission, record.submission.spec.workers
        curve, known = self._curve(record, spec), self.is_known(record)
        profile = record.profile or self.profile(record, spec)
        work = float(self._steps(record) or _UNKNOWN_WORK)
        job = Job(
            id=record.id,
            submitted=record.submitted,
            work=work,
            curve=curve,
            deadline=submission.deadline if known else None,
            requested=workers.maximum,
            duration=work / curve.best[min(workers.maximum, len(curve.best) - 1)],
            minimum=workers.minimum,
            # So a policy need not know of profiles.
            maximum=profile.size if profile else workers.maximum,
            tenant=submission.tenant,
            priority=submission.priority,
        )
        saved = self.track(record).seen.saved
        return JobState(
            job=job,
            remaining=max(work - record.step, 1.0),
            workers=record.target if record.running else 0,
            standing=record.standing if known else Standing.BEST_EFFORT,
            attained=record.attained,
            # Its end takes time as well, which is put before its progress: see
            # `Overheads.paid_ahead`.
            ready=max(record.ready, now) + self.overheads.end if record.running else record.ready,
            changed=record.changed,
            pace=_CAUTION,
            unsaved=max(0.0, now - saved) if record.running and saved else 0.0,
            nodes=record.held,  # its home is left last
            unmeasured=not known,
        )


def _parts(record: JobRecord) -> int:
    """Micro-batches of a step, where ranks take whole ones."""
    spec = record.submission.spec
    return spec.micro_batches if spec.exact else 0


def _differ(rates: dict[int, float], others: dict[int, float]) -> bool:
    """Whether a curve through one is another than through the other, by more than a fiftieth."""
    return rates.keys() != others.keys() or any(
        abs(rate / others[n] - 1.0) > 0.02 for n, rate in rates.items()
    )
