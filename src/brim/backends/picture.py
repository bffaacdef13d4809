"""The jobs of a live cluster as a policy sees them: what is written down of them, and what they were seen to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.backends.processes import Seen
from brim.domain.cluster import ClusterSpec
from brim.domain.measuring import curve_of
from brim.domain.resizing import Overheads
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot, Standing
from brim.domain.workload import Job
from brim.storage.book import Book, JobRecord

__all__ = ["Picture", "Track"]

_UNKNOWN_WORK = 600.0  # steps that a job is believed to have until it says how many


@dataclass(slots=True)
class Track:
    """What this life of the scheduler knows of a job beyond the book.

    Args:
        seen: at the last look.
        looked: when that was.
        confirmed: its processes have said yes to their target; those of an earlier life are asked again.
        begun: the step at which its processes were started.
        forced: it was told on that its grace period is over.
        unanswered: since when its processes have not answered.
    """

    seen: Seen = field(default_factory=lambda: Seen(alive=False))
    looked: float | None = None
    confirmed: bool = False
    begun: int = 0
    forced: bool = False
    unanswered: float | None = None
    rates: dict[int, float] = field(default_factory=dict)
    sizes: tuple[int, int] = (0, 0)
    curve: ScalingCurve | None = None


class Picture:
    """What this life of the scheduler has seen.

    Args:
        book: has what jobs like these have taught before.
        overheads: what changes are believed to cost.
    """

    def __init__(self, book: Book, overheads: Overheads) -> None:
        self._book, self._overheads = book, overheads
        self._tracks: dict[str, Track] = {}

    def track(self, record: JobRecord) -> Track:
        return self._tracks.setdefault(record.id, Track())

    def begin(self, record: JobRecord, now: float) -> None:
        """Its processes are about to be started."""
        self._tracks[record.id] = Track(confirmed=True, begun=record.step, looked=now)

    def end(self, record: JobRecord) -> Track:
        """They have ended; what was seen of them."""
        return self._tracks.pop(record.id, Track())

    def snapshot(
        self, records: list[JobRecord], spec: ClusterSpec, *, memory: object, now: float
    ) -> Snapshot:
        """These jobs as a policy sees them; one that has a deadline arrives once it can be judged."""
        return Snapshot(
            now=now,
            cluster=spec.cluster,
            capacity=spec.capacity,
            jobs=tuple(self.state(record, spec, now) for record in records),
            arrived=tuple(record.id for record in records if not record.judged and self.is_known(record)),
            overheads=self._overheads,
            tenants=spec.tenants,
            memory=memory,
        )

    def _rates(self, record: JobRecord) -> dict[int, float]:
        earlier = self._book.measured(record.submission.fingerprint)
        return self.track(record).seen.measured.merged([earlier]).rates

    def _steps(self, record: JobRecord) -> int | None:
        return record.steps or self._book.steps_of(record.submission)

    def is_known(self, record: JobRecord) -> bool:
        """Whether it can be judged: a deadline can be promised only to what was measured."""
        return record.submission.deadline is None or bool(self._rates(record) and self._steps(record))

    def _curve(self, record: JobRecord, cluster: ClusterSpec) -> ScalingCurve:
        track, rates, spec = self.track(record), self._rates(record), record.submission.spec
        least = spec.workers.minimum
        sizes = least, min(spec.workers.maximum, max(cluster.capacity, least))
        if track.curve is None or sizes != track.sizes or _differ(rates, track.rates):
            track.rates, track.sizes = rates, sizes
            parts = spec.micro_batches if spec.exact else 0
            track.curve = curve_of(rates, parts=parts, minimum=sizes[0], maximum=sizes[1])
        return track.curve

    def state(self, record: JobRecord, spec: ClusterSpec, now: float) -> JobState:
        """One job as a policy sees it."""
        submission, workers = record.submission, record.submission.spec.workers
        curve, known = self._curve(record, spec), self.is_known(record)
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
            maximum=workers.maximum,
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
            ready=record.ready,
            changed=record.changed,
            unsaved=max(0.0, now - saved) if record.running and saved else 0.0,
        )


def _differ(rates: dict[int, float], others: dict[int, float]) -> bool:
    """Whether a curve through one is another than through the other, by more than a fiftieth."""
    return rates.keys() != others.keys() or any(
        abs(rate / others[n] - 1.0) > 0.02 for n, rate in rates.items()
    )
