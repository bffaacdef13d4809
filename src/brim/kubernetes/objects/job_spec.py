"""The spec of an ElasticJob, but for the options of jobs and the templates of its pods. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from brim.domain.job import WorkerRange
from brim.domain.options import LARGEST_COUNT
from brim.domain.quantities import DURATION_PATTERN
from brim.domain.workload import Priority
from brim.errors import SpecError
from brim.kubernetes.client.declared import (
    RULES,
    Int32,
    Name,
    Pairs,
    Short,
    Text,
    Words,
    keywords,
    matching,
    read_by,
    rule,
    unread,
)
from brim.kubernetes.client.reading import MOST_WORDS, NAME, object_of, quoted, whole_of
from brim.kubernetes.objects.templates import MOST_PROCESSES

PRIORITIES = tuple(each.name.lower() for each in Priority)
CODE_KEY = "code.tar"  # of the ConfigMap of a job's code
DIGEST = "[0-9a-f]{64}"
_Bound = Annotated[Int32, Meta(ge=1, le=LARGEST_COUNT)]


def read_workers(value: object, *, path: str = "spec.workers") -> WorkerRange:
    """Return the range of workers that `spec.workers` says.

    Raises:
        SpecError: it says none.

    >>> str(read_workers({"max": 4}))
    '1:4'
    """
    parts = object_of(value, path=path)
    if set(parts) - {"min", "max"} or parts.get("max") is None:
        need = "the most workers that it may have, as max, and the fewest, as min"
        hint = "workers: {min: 1, max: 4}"
        raise SpecError(path, got=quoted(value), need=need, hint=hint)
    maximum = whole_of(parts["max"], path=f"{path}.max", minimum=1, maximum=LARGEST_COUNT)
    fewest = 1 if parts.get("min") is None else parts["min"]
    minimum = whole_of(fewest, path=f"{path}.min", minimum=1, maximum=LARGEST_COUNT)
    if minimum > maximum:
        raise SpecError(
            f"{path}.min", got=str(minimum), need=f"at most {path}.max, which is {maximum}"
        )
    return WorkerRange(minimum=minimum, maximum=maximum)


class WorkerBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of workers that the job may have: it starts with the fewest, and grows.

    The number does not change the result.

    Args:
        min: the fewest; with fewer it has none.
        max: the most; kubectl scale changes it.
    """

    min: _Bound = 1
    max: _Bound


class CodeBundle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The code of the job, where it is not in the image.

    Args:
        config_map: the name of a ConfigMap that has the code as code.tar in its binaryData.
        sha256: the sha256 of the code.
    """

    config_map: Name
    sha256: Annotated[
        str,
        Meta(min_length=1, max_length=64, pattern=f"^{DIGEST}$"),
        Meta(extra={"need": "the sha256 of the code, as 64 hexadecimal digits"}),
    ]


class ElasticJobSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The job that is wanted.

    Args:
        file: the training file that the workers run: by its name in the bundle, or its path
            in the image. Either this or command.
        command: the command that runs a training loop, word by word: [python, loop.py].
            Either this or file.
        parameters: parameters that the file reads with brim.param, by name.
        env: variables of the workers' environment. The run's records keep them.
        deadline: the time by which the job is to be done: 2026-12-01T08:00:00Z.
        deadline_in: the deadline as a duration from the creation of the object: 2h.
        tenant: the tenant whose devices the job uses. [default: the one that lists this
            namespace]
        priority: the job's rank among others of its tenant.
        suspend: hold the job: it writes a checkpoint and has no workers until this is
            false.
        processes_per_worker: the processes that train in each worker's pod, and share its
            slot and its memory. To the run each of them is a worker.
    """

    file: Words | None = None
    command: Annotated[list[Text], Meta(min_length=1, max_length=MOST_WORDS)] | None = None
    bundle: CodeBundle | None = None
    parameters: Pairs | None = None
    env: Pairs | None = None
    workers: Annotated[
        WorkerBounds,
        Meta(
            extra_json_schema={
                RULES: [rule("self.min <= self.max", "need min <= max", at=".min")],
            },
            extra={"read": read_workers},
        ),
    ]
    deadline: Annotated[Short | None, keywords(format="date-time"), read_by(unread)] = None
    deadline_in: Annotated[
        Short | None,
        keywords(
            **{RULES: [matching(DURATION_PATTERN, "a duration above 0, such as 10m or 1h30m")]}
        ),
        read_by(unread),
    ] = None
    tenant: Annotated[Annotated[Name, Meta(pattern=f"^{NAME}$")] | None, read_by(unread)] = None
    priority: Annotated[str, keywords(enum=list(PRIORITIES))] = PRIORITIES[0]
    suspend: bool = False
    processes_per_worker: Annotated[Int32, Meta(ge=1, le=MOST_PROCESSES)] = 1
