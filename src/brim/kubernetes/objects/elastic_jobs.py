"""ElasticJobs as the scheduler knows them: submissions, and wishes beyond them.

What cannot be understood is a value too: errors that name the field. So an object, whatever is in
it, ends nothing but its own job. Pure: objects are decoded JSON, and times are in them.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import msgspec

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.job import AUTOMATIC, OPTIONS, JobSpec, WorkerRange, fewest_micro_batches
from brim.domain.lifecycle import Happening, Wish
from brim.domain.quantities import parse_duration
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import (
    FARTHEST_DEADLINE,
    MOST_BYTES,
    NO_TENANT,
    Submission,
    by_tenant,
    check_spec,
    fingerprint,
    parse_priority,
)
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.kubernetes.client.amounts import Totals
from brim.kubernetes.client.declared import read_fields
from brim.kubernetes.client.reading import (
    NAME,
    Problems,
    Reading,
    name_of,
    object_of,
    part_of,
    quoted,
    switch_of,
    text_of,
)
from brim.kubernetes.client.times import read_time
from brim.kubernetes.objects.fields import (
    LONGEST_NAME,
    PARAMETERS,
    PLAIN_FIELDS,
    WORKERS,
    in_the_objects_words,
    read_option,
)
from brim.kubernetes.objects.job_spec import CODE_KEY, ElasticJobSpec, read_workers
from brim.kubernetes.objects.templates import (
    MOST_PROCESSES,
    PROCESSES,
    PodTemplates,
    read_templates,
)
from brim.kubernetes.objects.tenants import KnownTenants
from brim.storage.bundles import read_bundle
from brim.user_code.own_code import is_in, word_of

JOBS = "elasticjobs"  # as addresses name them
JOB_NAME = (
    f"[a-z]([-a-z0-9]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?"  # pods and a Service have it in theirs
)

# All fields of a spec.
FIELDS = frozenset(
    each
    for names in (
        PLAIN_FIELDS,
        ElasticJobSpec.__struct_encode_fields__,
        PodTemplates.__struct_encode_fields__,
    )
    for each in names
)


def read_job(
    thing: object, *, code: bytes | None = None, tenants: KnownTenants | None = None
) -> Submission | Problems:
    """Return the submission that an ElasticJob asks for, or all that is wrong with it.

    Args:
        code: the files of the ConfigMap of `spec.bundle`, see `code_in`; None: there is no such
            ConfigMap, or no bundle.
        tenants: the tenants; None: there are none.
    """
    reading = Reading()
    meta = reading.read_or_none(read_metadata, thing) or {}
    fields = reading.read_or_none(object_of, part_of(thing, "spec"), path="spec") or {}
    values = {name: value for name, value in fields.items() if value is not None}
    for name in sorted(values.keys() - FIELDS):
        reading.problems.append(_unknown(name))
    options = _options(reading, values)
    spec = read_fields(ElasticJobSpec, values, reading, path="spec")
    if ("file" in values) == ("command" in values):
        actual = "both" if "file" in values else "neither"
        need = "spec.file, a training file, or spec.command, not both"
        reading.problems.append(
            SpecError("spec.file", got=actual, need=need, hint="file: flights.py")
        )
    tenant = reading.read_or_none(_tenant, values, meta, tenants or KnownTenants())
    deadline = reading.read_or_none(_deadline, values, meta)
    templates = reading.read_or_none(read_templates, values)
    if reading.problems:
        return tuple(reading.problems)
    job = reading.read_or_none(_spec, options, spec)
    if job is None or not _is_complete(reading, job, values, code):
        return tuple(reading.problems)
    in_image = f"{templates.image if templates else ''}\0{job.file}".encode()
    submission = Submission(
        spec=job,
        fingerprint=fingerprint(
            job, code if code and job.bundle else in_image, processes=spec.processes_per_worker
        ),
        deadline=deadline,
        tenant=tenant or NO_TENANT,
        priority=parse_priority(spec.priority),
        anywhere=templates is not None and templates.anywhere,
        processes=spec.processes_per_worker,
    )
    reading.read_or_none(_check_size, submission)
    return tuple(reading.problems) or by_tenant(submission)


def read_metadata(thing: object) -> Mapping[str, Any]:
    """Raises SpecError for a bad name, or where an addition of the server is missing."""
    meta = object_of(part_of(thing, "metadata"), path="metadata")
    name = meta.get("name")
    if not isinstance(name, str) or not re.fullmatch(JOB_NAME, name):
        raise SpecError(
            "metadata.name",
            got=quoted(name),
            need=f"1 to {LONGEST_NAME} letters a to z, digits and '-', the first a letter, the last "
            "no '-': pods are named after it",
        )
    text_of(meta.get("namespace"), path="metadata.namespace", limit=63)
    read_time(meta.get("creationTimestamp"), field="metadata.creationTimestamp")
    return meta


def _unknown(name: str) -> SpecError:
    return SpecError(
        f"spec.{name[:LONGEST_NAME]}",
        got="a field that this operator does not know",
        need="one that it does",
        hint=did_you_mean(name[:LONGEST_NAME], FIELDS),
    )


def _options(reading: Reading, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `JobSpec` by name."""
    found: dict[str, Any] = {}
    for name, option_name in PLAIN_FIELDS.items():
        if name in values:
            found[option_name] = reading.read_or_none(
                read_option, f"spec.{name}", OPTIONS[option_name], values[name]
            )
    return found


def _tenant(values: Mapping[str, Any], meta: Mapping[str, Any], tenants: KnownTenants) -> str:
    tenant = values.get("tenant")
    if tenant is not None:
        name_of(tenant, NAME, path="spec.tenant")
    return tenants.chosen(tenant, str(meta.get("namespace", "")))


def _deadline(values: Mapping[str, Any], meta: Mapping[str, Any]) -> float | None:
    """Return the deadline, seconds since 1970; a duration counts from the object's creation."""
    deadline, duration = values.get("deadline"), values.get("deadlineIn")
    if deadline is not None and duration is not None:
        need = "deadline, a time, or deadlineIn, a duration, not both"
        raise SpecError("spec.deadline", got="both", need=need, hint="deadlineIn: 2h")
    if not meta or (deadline is None and duration is None):
        return None
    created = read_time(meta.get("creationTimestamp"), field="metadata.creationTimestamp")
    path = "spec.deadline" if duration is None else "spec.deadlineIn"
    if duration is None:
        moment = read_time(deadline, field=path)
    else:
        moment = created + parse_duration(text_of(duration, path=path), field=path)
    if moment <= created:
        need = "a time after its creation"
        raise SpecError(
            path, got=f"{quoted(deadline)}, which has passed", need=need, hint="deadlineIn: 2h"
        )
    if moment > created + FARTHEST_DEADLINE:
        raise SpecError(
            path,
            got=quoted(deadline or duration),
            need="a time within 10 years",
            hint="leave it out for none",
        )
    return moment


def _spec(options: dict[str, Any], spec: ElasticJobSpec) -> JobSpec:
    """Raises SpecError where options are wrong beside each other."""
    assert isinstance(spec.workers, WorkerRange)  # as it is read
    try:
        workers = spec.workers.times(spec.processes_per_worker)
        if options.get("micro_batches") == AUTOMATIC:
            options["micro_batches"] = fewest_micro_batches(workers)
        # A scheduler starts another worker where one is lost: none waits for that.
        whole = JobSpec(
            file=spec.file or "",
            command=tuple(spec.command or ()),
            bundle=spec.bundle.sha256 if spec.bundle else "",
            parameters=spec.parameters or {},
            env=spec.env or {},
            workers=workers,
            spares=0,
            **options,
        )
        check_spec(whole)
        return replace(whole, workers=spec.workers)
    except SpecError as wrong:
        raise in_the_objects_words(wrong) from None


def _is_complete(
    reading: Reading, job: JobSpec, values: Mapping[str, Any], code: bytes | None
) -> bool:
    """Check that the code of a job has the digest of its bundle."""
    if not job.bundle:
        return True
    path, name = "spec.bundle.configMap", values["bundle"]["configMap"]
    if code is None:
        need = f"a ConfigMap of that name, with the code as {CODE_KEY} in its binaryData"
        reading.problems.append(
            SpecError(path, got=f"{quoted(name)}, which is not there", need=need)
        )
        return False
    try:
        files = read_bundle(code, job.bundle)
    except EnvironmentFault as fault:
        need = "the code whose sha256 is in spec.bundle.sha256, as brim packs it"
        reading.problems.append(SpecError(path, got=str(fault), need=need))
        return False
    word = word_of(job)
    if word and not is_in(files, job):
        place = "spec.file" if job.file else "spec.command"
        hint = did_you_mean(PurePath(word).name, files)
        need = "a file of the bundle"
        reading.problems.append(SpecError(place, got=quoted(word), need=need, hint=hint))
        return False
    return True


def _check_size(submission: Submission) -> None:
    size = len(msgspec.msgpack.encode(submission))
    if size > MOST_BYTES:
        actual, need = f"{size >> 10:,} KiB", f"at most {MOST_BYTES >> 10} KiB with env and command"
        hint = "put long values into a file"
        raise SpecError(f"spec.{PARAMETERS}", got=actual, need=need, hint=hint)


def code_in(config_map: object) -> bytes | None:
    """Return the code that a ConfigMap has; None where it has none.

    Its content is checked by `read_job`.
    """
    data = part_of(part_of(config_map, "binaryData"), CODE_KEY)
    try:
        return binascii.a2b_base64(data, strict_mode=True) if isinstance(data, str) else None
    except ValueError:
        return None


def new_job(
    thing: Mapping[str, Any], submission: Submission, *, id: str, number: int
) -> ScheduledJob:
    """Return the record of a job whose ElasticJob was read for the first time.

    Args:
        id: by which the scheduler knows it.
        number: of the job, by which its place in the order of submission is known.
    """
    meta = thing["metadata"]
    return ScheduledJob(
        number=number,
        id=id,
        submission=submission,
        submitted=read_time(meta["creationTimestamp"], field="metadata.creationTimestamp"),
        key=meta["uid"],
    )


def wishes_of(thing: object, job: ScheduledJob) -> tuple[list[Wished | RangeChanged], Problems]:
    """Return the wishes of a job's object that its record lacks, as events.

    Called twice, it returns the same; once they have been handled, nothing. Of all that a spec says
    only `suspend`, `workers` and the templates of its pods can change.
    """
    reading = Reading()
    events: list[Wished | RangeChanged] = []
    if job.life.ended:
        return events, ()
    if part_of(part_of(thing, "metadata"), "deletionTimestamp") is not None:
        if job.life.wish is not Wish.CANCEL:
            events.append(Wished(job.id, Happening.CANCEL, "its object is deleted"))
        return events, ()
    spec = reading.read_or_none(object_of, part_of(thing, "spec"), path="spec") or {}
    is_held = reading.read_or_none(switch_of, spec.get("suspend"), path="spec.suspend")
    if is_held is not None and job.life.wish is (Wish.RUN if is_held else Wish.HOLD):
        happening = Happening.HOLD if is_held else Happening.RELEASE
        events.append(Wished(job.id, happening, f"spec.suspend: {str(is_held).lower()}"))
    workers = reading.read_or_none(_new_range, spec, job)
    if workers is not None and workers != job.submission.spec.workers:
        detail = f"spec.workers: {workers.minimum} to {workers.maximum}"
        events.append(RangeChanged(job.id, workers, detail))
    reading.read_or_none(read_templates, spec)  # pods are made by the last ones that could be read
    return events, tuple(reading.problems)


def idle_gpus(submission: Submission, slot: Totals) -> str:
    """Say that a job has more GPUs than processes that use one each; nothing where it has not.

    A command may well use several in one process.

    Args:
        slot: resources of each of its workers.

    >>> from fractions import Fraction
    >>> job = JobSpec(file="a.py", parameters={}, workers=WorkerRange(minimum=1, maximum=4))
    >>> idle_gpus(Submission(spec=job, fingerprint=""), {"nvidia.com/gpu": Fraction(8)})
    'each worker has 8 nvidia.com/gpu and uses 1: processesPerWorker: 8 uses all'
    """
    if not submission.spec.file or submission.opaque or submission.spec.device == "cpu":
        return ""
    for name, amount in slot.items():
        if name.endswith("/gpu") and submission.processes < amount <= MOST_PROCESSES:
            used, all_ = submission.processes, int(amount)
            return f"each worker has {all_} {name} and uses {used}: {PROCESSES}: {all_} uses all"
    return ""


def _new_range(spec: Mapping[str, Any], job: ScheduledJob) -> WorkerRange:
    """Raises SpecError where the job cannot have so many."""
    workers = read_workers(spec.get(WORKERS))
    try:
        job.submission.with_workers(workers)
    except SpecError as wrong:
        problem = in_the_objects_words(wrong)
        maximum = job.submission.spec.micro_batches // job.submission.processes
        raise SpecError(
            f"spec.{WORKERS}.max",
            got=problem.got,
            need=problem.need,
            hint=f"workers: {{max: {maximum}}}",
        ) from None
    return workers
