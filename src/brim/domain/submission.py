"""A user's submission to a scheduler: a job, its tenant, priority and deadline. Pure values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

from brim.domain.channels import Subscription
from brim.domain.conditions import MOST_PREDECESSORS, MOST_RETRIES, NO_CONDITIONS, Conditions
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.workload import Priority
from brim.errors import SpecError, did_you_mean

FARTHEST_DEADLINE = (
    10 * 365 * 86_400.0
)  # seconds from the submission; what is later was meant otherwise
MOST_BYTES = (
    128 << 10
)  # of a submission: it is written with each change of the job, and sent to nodes
_MAX_SHOWN_CHARACTERS = 60  # characters of a text that a message shows
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
        conditions: what has to hold before it gets its first workers.
        retries: how often it is started again after it has failed.
        notify: the channels on which it is reported.
    """

    spec: JobSpec
    fingerprint: str
    deadline: float | None = None
    tenant: str = NO_TENANT
    priority: Priority = Priority.PREEMPTIBLE
    opaque: bool = False
    anywhere: bool = False
    processes: int = 1
    conditions: Conditions = NO_CONDITIONS
    retries: int = 0
    notify: tuple[Subscription, ...] = ()

    def with_workers(self, workers: WorkerRange) -> Submission:
        """The same job with another range of workers.

        Raises:
            SpecError: its micro-batches are too few for so many.
        """
        service = self.spec.service
        if service is not None:  # its load decides within the range
            service = replace(service, minimum=workers.minimum, maximum=workers.maximum)
            spec = replace(self.spec, service=service)
            return replace(self, spec=spec).scaled(self.spec.workers.maximum)
        spec = replace(self.spec, workers=workers.times(self.processes))
        return replace(self, spec=replace(spec, workers=workers))

    def with_range_of(self, other: Submission) -> Submission:
        """The same job with another submission's range of workers, and of replicas."""
        service, range_of = self.spec.service, other.spec.service
        if service is None or range_of is None:
            return self.with_workers(other.spec.workers)
        service = replace(service, minimum=range_of.minimum, maximum=range_of.maximum)
        spec = replace(self.spec, workers=other.spec.workers, service=service)
        return as_service(replace(self, spec=spec))

    def scaled(self, replicas: int) -> Submission:
        """The same service with so many replicas at most, for now."""
        service = self.spec.service
        assert service is not None, "only services are scaled"
        most = min(service.maximum, max(service.minimum, replicas))
        workers = WorkerRange(minimum=service.minimum, maximum=most)
        return replace(self, spec=replace(self.spec, workers=workers))


def as_service(submission: Submission) -> Submission:
    """The same job with the rights of a service, and the fewest replicas, where it is one."""
    service = submission.spec.service
    if service is None:
        return submission
    return replace(submission, priority=Priority.ONLINE).scaled(service.minimum)


def fingerprint(spec: JobSpec, source: bytes, *, processes: int = 1) -> str:
    """A name for everything that decides how long a step takes, and how many there are.

    Args:
        source: the bytes of the training file, or of the program that the command runs.
        processes: of each worker.

    >>> from brim.domain.job import WorkerRange
    >>> one = JobSpec(file="a.py", parameters={}, workers=WorkerRange(minimum=1, maximum=4))
    >>> two = JobSpec(file="b.py", parameters={}, workers=WorkerRange(minimum=2, maximum=8), seed=3)
    >>> fingerprint(one, b"x") == fingerprint(two, b"x"), fingerprint(one, b"x") == fingerprint(one, b"y")
    (True, False)
    """
    decides: tuple[object, ...] = (
        spec.command, sorted(spec.parameters.items()), spec.global_batch_size, spec.micro_batches, spec.exact,
        spec.threads, spec.loaders, spec.device, spec.transport,
    )  # fmt: skip
    if spec.capture:
        decides = (*decides, "captured")
    text = repr((*decides, processes) if processes > 1 else decides)
    return hashlib.sha256(text.encode() + b"\0" + source).hexdigest()[:16]


def kind_of_start(submission: Submission) -> str:
    """A name for commands that take equally long to be started again.

    That is nearly all the start of Python and of libraries, so a change of the code keeps the name.

    >>> from brim.domain.job import WorkerRange
    >>> one = WorkerRange(minimum=1, maximum=1)
    >>> specs = [JobSpec(command=("a",), workers=one, bundle=bundle) for bundle in ("", "0" * 64)]
    >>> len({kind_of_start(Submission(spec=spec, fingerprint="f")) for spec in specs})
    1
    """
    text = repr((submission.tenant, submission.spec.directory, submission.spec.command))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_tenant(submission: Submission) -> Submission:
    """The same job with a fingerprint that no other tenant's job has, made by the scheduler itself.

    A client's word counts only for code that was not sent: with any word of its own it could teach
    others wrong speeds, and be taught them.
    """
    spec = submission.spec
    decides = (
        submission.tenant, spec.file, sorted(spec.env.items()), spec.directory, spec.servers, spec.delay,
        spec.asynchronous, spec.embeddings, spec.clip_norm, spec.inference, spec.bundle or submission.fingerprint,
    )  # fmt: skip
    content = repr(decides).encode()
    return replace(
        submission, fingerprint=fingerprint(spec, content, processes=submission.processes)
    )


def check_spec(spec: JobSpec) -> None:
    """Check the code and the texts of a spec, from any source.

    Specs that are kept were checked before, so that no later check makes their records unreadable.

    Raises:
        SpecError: nothing could be started from it.
    """
    if not (spec.file or spec.command):
        raise SpecError(
            "FILE", got="nothing", need="a training file or a command", hint="brim submit FILE.py"
        )
    for name, text in _texts(spec):
        if "\0" in text:
            field = "FILE" if name == "file" else name
            raise SpecError(
                field, got=repr(text[:_MAX_SHOWN_CHARACTERS]), need="text without the character NUL"
            )
    for glob in spec.include:
        check_glob(glob)


def check_conditions(submission: Submission) -> None:
    """Check what a job waits for, and how often it is tried again, from any source.

    Raises:
        SpecError: it can never begin, or be done by its deadline.
    """
    conditions, retries = submission.conditions, submission.retries
    if not 0 <= retries <= MOST_RETRIES:
        need = f"a number from 0 to {MOST_RETRIES}"
        raise SpecError("--retries", got=str(retries), need=need, hint="--retries 3")
    if len(conditions.predecessors) > MOST_PREDECESSORS:
        actual, need = f"{len(conditions.predecessors):,} jobs", f"at most {MOST_PREDECESSORS:,}"
        raise SpecError("--after", got=actual, need=need, hint="a job of an array stands for all")
    if conditions.limit < 0 or not 0.0 <= conditions.earliest < math.inf:
        raise SpecError("conditions", got=str(conditions), need="no negative numbers")
    if submission.deadline is not None and submission.deadline <= conditions.earliest:
        need = "a moment before the deadline"
        hint = "a later --deadline, or an earlier --at"
        raise SpecError("--at", got="the deadline or a later moment", need=need, hint=hint)


def check_terminal(submission: Submission, array: Sequence[int]) -> None:
    """Check that an interactive job is started once, from any source.

    Raises:
        SpecError: it may be started more often, without anybody at its terminal.
    """
    if not submission.spec.tty:
        return
    for name, is_given in (("--retries", submission.retries > 0), ("--array", bool(array))):
        if is_given:
            raise SpecError(
                "--tty",
                got=f"it beside {name}",
                need="a job that is started once: nobody is at the terminal of another start",
                hint=f"leave out {name}, or --tty",
            )


def _texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a spec, each with the name of its field."""
    match value:
        case str():
            yield name, value
        case tuple():
            for item in value:
                yield from _texts(item, name)
        case Mapping():
            yield from _texts((*value.keys(), *value.values()), name)
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from _texts(getattr(value, field.name), field.name)
        case _:
            return


def parts_of(glob: str) -> list[str]:
    """The parts of a path, or of a glob, below a folder.

    >>> parts_of("./configs/**/*.yaml")
    ['configs', '**', '*.yaml']
    """
    return [part for part in glob.split("/") if part not in ("", ".")]


def check_glob(glob: str) -> None:
    """Raises SpecError for a glob of more than files below a folder, or that means nothing."""
    parts = parts_of(glob)
    leads_out = not parts or glob.startswith("/") or ".." in parts
    if leads_out or any("**" in part and part != "**" for part in parts):
        raise SpecError(
            "--include",
            got=repr(glob),
            need="a glob of files below the folder of the code, in which ** stands alone",
            hint="--include 'configs/*.yaml', or --include 'configs/**/*.yaml'",
        )


def parse_priority(text: str) -> Priority:
    """Read `online`, `preserved` or `preemptible`.

    Raises:
        SpecError: anything else.
    """
    names = {priority.name.lower(): priority for priority in Priority}
    if text.lower() not in names:
        raise SpecError(
            "--priority",
            got=repr(text),
            need="one of " + ", ".join(names),
            hint=did_you_mean(text, names),
        )
    return names[text.lower()]
