"""ElasticJobs as `brim submit` writes them, from a submission, for `read_job` to read. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

from brim.domain.faults import describe
from brim.domain.job import OPTIONS, JobSpec, default_micro_batches
from brim.domain.options import Option
from brim.domain.quantities import format_duration
from brim.domain.submission import NO_TENANT, Submission
from brim.errors import SpecError
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.client.times import write_time
from brim.kubernetes.objects.elastic_jobs import JOB_NAME
from brim.kubernetes.objects.fields import (
    ENV,
    LONGEST_NAME,
    PARAMETERS,
    PLAIN_FIELDS,
    WORKERS,
    read_option,
)
from brim.kubernetes.objects.identities import GROUP, KIND, MANAGED_BY, VERSION, WORKER
from brim.kubernetes.objects.job_spec import CODE_KEY
from brim.kubernetes.objects.templates import OPPORTUNISTIC, PLANNED, PROCESSES

LARGEST_CODE = 1 << 20  # bytes that a ConfigMap may have
_NUMBER = 12  # characters that the number behind a job's name, or the mark of its key, may take


def stem_of(name: str) -> str:
    """Return the beginning of the names of a job's objects.

    >>> stem_of("My Flights_2"), stem_of("2026"), stem_of("")
    ('my-flights-2', 'job-2026', 'job')
    """
    plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    return plain[: LONGEST_NAME - _NUMBER].rstrip("-")


def name_of_key(stem: str, key: str) -> str:
    """Return the name of the job of a key, which is the same however often it is submitted.

    >>> name_of_key("flights", "nightly")
    'flights-k2a3b62b5'
    """
    return f"{stem}-k{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def code_map(name: str, namespace: str, bundle: bytes) -> PlainObject:
    """Return the ConfigMap with the code of a job.

    Raises:
        SpecError: it is more than a ConfigMap may have.
    """
    if len(bundle) > LARGEST_CODE:
        raise SpecError(
            "FILE",
            got=f"{len(bundle) >> 10:,} KiB of code with what --include names",
            need=f"at most {LARGEST_CODE >> 10:,} KiB, as an object of Kubernetes may have",
            hint="put it into the image of the job, and leave --include out",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-code",
            "namespace": namespace,
            "labels": {MANAGED_BY: "brim-submit"},
        },
        "binaryData": {CODE_KEY: base64.b64encode(bundle).decode()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChoices:
    """Choices about the pods of a job, which no scheduler but Kubernetes' has.

    Args:
        image: of its workers; empty: that of jobs which name none.
        mode: one of `MODES`: the chooser of a worker's node.
        gang: the fewest workers are bound together, or none.
        processes_per_worker: training processes in the pod of each worker, which share its slot.
    """

    image: str = ""
    mode: str = PLANNED
    gang: bool = False
    processes_per_worker: int = 1


def elastic_job(
    name: str, namespace: str, submission: Submission, choices: PodChoices | None = None
) -> PlainObject:
    """Return the object of a job; `code_map` returns that of its code.

    Args:
        choices: None: the usual ones.

    Raises:
        SpecError: something of it can only be said to a scheduler of this host, such as a path, or
            its micro-batches are too few for so many processes.
    """
    choices = choices or PodChoices()
    if choices.processes_per_worker > 1:
        submission = _sharing_pods(submission, choices.processes_per_worker)
    if not re.fullmatch(JOB_NAME, name):
        raise ValueError(f"{name} cannot be the name of an ElasticJob")
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {MANAGED_BY: "brim-submit"},
        },
        "spec": {**dict(_spec(submission, name)), **dict(_chosen(choices))},
    }


def _sharing_pods(submission: Submission, processes: int) -> Submission:
    """Return the same job with so many processes in each pod; micro-batches that were left out are enough."""
    spec = submission.spec
    left_out = spec.micro_batches == default_micro_batches(spec.workers)
    full = replace(
        spec,
        workers=spec.workers.times(processes),
        micro_batches=0 if left_out else spec.micro_batches,
    )
    return replace(submission, spec=replace(full, workers=spec.workers), processes=processes)


def _chosen(choices: PodChoices) -> Iterator[tuple[str, Any]]:
    if choices.mode != PLANNED:
        yield "mode", choices.mode
    if choices.gang:
        yield "gang", True
    if choices.image:
        yield "template", {"spec": {"containers": [{"name": WORKER, "image": choices.image}]}}


def _spec(submission: Submission, name: str) -> Iterator[tuple[str, Any]]:
    job = submission.spec
    if job.file:
        yield "file", PurePath(job.file).name if job.bundle else job.file
    else:
        yield "command", list(job.command)
    if job.bundle:
        yield "bundle", {"configMap": f"{name}-code", "sha256": job.bundle}
    yield WORKERS, {"min": job.workers.minimum, "max": job.workers.maximum}
    yield from _options(job, submission.processes)
    if submission.deadline is not None:
        yield "deadline", write_time(submission.deadline)
    if submission.tenant != NO_TENANT:
        yield "tenant", submission.tenant
    yield "priority", submission.priority.name.lower()
    if submission.processes > 1:
        yield PROCESSES, submission.processes
    if submission.anywhere:
        yield "mode", OPPORTUNISTIC


def _options(job: JobSpec, processes: int) -> Iterator[tuple[str, Any]]:
    source: dict[str, Any] = {"file": "usual.py"} if job.file else {"command": ("usual",)}
    usual = JobSpec(**source, workers=job.workers.times(processes), parameters={})
    for name, pairs in ((PARAMETERS, job.parameters), (ENV, job.env)):
        if pairs:
            yield name, dict(pairs)
    for name, option in PLAIN_FIELDS.items():
        value = getattr(job, option)
        if value != getattr(usual, option):
            yield name, _written(f"spec.{name}", OPTIONS[option], value)


def _written(path: str, option: Option, value: Any) -> Any:
    """Return a value as an object has it, so that the same value is read again.

    Raises:
        SpecError: nothing is, such as for a path that begins at a directory of this host.
    """
    last: SpecError | None = None
    for text in _candidates(value):
        try:
            if read_option(path, option, text) == value:
                return text
        except SpecError as wrong:
            last = wrong if text == value else last or wrong
    actual, need = (
        (last.got, last.need) if last else (repr(value), "a value that an object can have")
    )
    raise SpecError(option.named, got=actual, need=need, hint=last.hint if last else "")


def _candidates(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        yield "; ".join(describe(fault) for fault in value)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int | float | str):
        yield value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != float("inf"):
            yield format_duration(value)
            yield f"{value / 2**20:.20g}MiB"
        yield repr(value)
    yield "none" if value is None else str(value)
