"""A user's submission to a scheduler: a job, its tenant, priority and deadline. Pure values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from brim.domain.job import JobSpec, WorkerRange
from brim.domain.workload import Priority
from brim.errors import SpecError, did_you_mean

FARTHEST_DEADLINE = (
    10 * 365 * 86_400.0
)  # seconds from the submission; what is later was meant otherwise
MOST_BYTES = (
    128 << 10
)  # of a submission: it is written with each change of the job, and sent to nodes
NO_TENANT = "default"  # of who names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One job as it was submitted.

    Args:
        spec: what to do; `spec.workers` is the range within which the scheduler decides.
        fingerprint: names jobs whose steps take equally long, see `fingerprint`.
        deadline: seconds since 1970; None for a job that has none.
        tenant: who pays, see `brim.domain.tenancy`.
        opaque: its processes are none of brim's, and nobody hears of their steps.
        anywhere: others decide where its workers are: the nodes of a plan say how many there are to
            be, and no worker is moved.
        processes: training processes of each worker, which share what it gets: to its run each is a
            worker. The scheduler counts neither their number nor what one of them has.
    """

    spec: JobSpec
    fingerprint: str
    deadline: float | None = None
    tenant: str = NO_TENANT
    priority: Priority = Priority.PREEMPTIBLE
    opaque: bool = False
    anywhere: bool = False
    processes: int = 1

    def within(self, workers: WorkerRange) -> Submission:
        """The same job with another range of workers.

        Raises:
            SpecError: its micro-batches are too few for so many.
        """
        spec = replace(self.spec, workers=workers.times(self.processes))
        return replace(self, spec=replace(spec, workers=workers))


def fingerprint(spec: JobSpec, source: bytes, *, processes: int = 1) -> str:
    """A name for everything that decides how long a step takes, and how many there are.

    Args:
        source: the bytes of the training file, or of whatever the command runs.
        processes: of each worker.

    >>> from brim.domain.job import WorkerRange
    >>> one = JobSpec(file="a.py", parameters={}, workers=WorkerRange(minimum=1, maximum=4))
    >>> two = JobSpec(file="b.py", parameters={}, workers=WorkerRange(minimum=2, maximum=8), seed=3)
    >>> fingerprint(one, b"x") == fingerprint(two, b"x"), fingerprint(one, b"x") == fingerprint(one, b"y")
    (True, False)
    """
    decides = (
        spec.command, sorted(spec.parameters.items()), spec.global_batch_size, spec.micro_batches, spec.exact,
        spec.threads, spec.loaders, spec.device, spec.transport,
    )  # fmt: skip
    said = repr((*decides, processes) if processes > 1 else decides)
    return hashlib.sha256(said.encode() + b"\0" + source).hexdigest()[:16]


def parse_priority(text: str) -> Priority:
    """Read `online`, `preserved` or `preemptible`.

    Raises:
        SpecError: anything else.
    """
    known = {priority.name.lower(): priority for priority in Priority}
    if text.lower() not in known:
        raise SpecError(
            "--priority",
            got=repr(text),
            need="one of " + ", ".join(known),
            hint=did_you_mean(text, known),
        )
    return known[text.lower()]
