"""The spec of an ElasticJob, field by field: the options of a scheduled job as Kubernetes writes them.

`globalBatchSize: 512` is `--global-batch-size 512`. Names, limits and texts are those of
`brim.domain.job.OPTIONS`; errors of the command line are told in words of the object. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from brim.domain.job import AUTOMATIC, OPTIONS
from brim.domain.options import PLACE, Kind, Option, reworded
from brim.errors import SpecError
from brim.kubernetes.client.reading import LARGEST_NUMBER, LONGEST_TEXT, quoted

LONGEST_NAME = 50  # characters of a job's name: pods are named after it, with numbers behind

# What the object says in its own way: pairs, and the range of workers.
PARAMETERS, ENV, WORKERS = "parameters", "env", "workers"
_SEPARATE = frozenset({PARAMETERS, ENV, WORKERS})


def camel(name: str) -> str:
    """Return a name as Kubernetes spells it.

    >>> camel("global_batch_size"), camel("on-nan")
    ('globalBatchSize', 'onNan')
    """
    first, *rest = re.split(r"[_-]", name)
    return first + "".join(word.capitalize() for word in rest)


# The name in the object -> that of the field of `JobSpec`, for what is written as a single value.
PLAIN_FIELDS: Mapping[str, str] = {
    camel(name): name
    for name, each in OPTIONS.items()
    if each.scheduled and name not in _SEPARATE and not each.repeated
}

# An option as it is typed -> the name in the object.
_BY_FLAG = {
    flag.removeprefix("--"): camel(name)
    for name, each in OPTIONS.items()
    for flag in each.flag.split("/")
}
_BY_FLAG |= {"tenant": "tenant", "priority": "priority", "deadline": "deadline"}
_BY_FIELD = {"FILE": "file", "bundle": "bundle.sha256"}  # what else an error may be about


def read_option(path: str, option: Option, value: object) -> Any:
    """Return the value of an option, as `JobSpec` has it.

    Args:
        path: of the field, for errors.
        value: as it stands in the object.

    Raises:
        SpecError: it cannot be.

    >>> read_option("spec.checkpointEvery", OPTIONS["checkpoint_every"], "30s").seconds
    30.0
    """
    kind = option.kind
    text = _as_typed(kind, value)
    if text is None:
        raise SpecError(path, got=quoted(value), need=needed(kind), hint=_example(path, option))
    if bool in kind.written_as:
        return value
    if isinstance(value, str) and kind.pattern and not re.fullmatch(kind.pattern, text):
        raise SpecError(path, got=quoted(value), need=needed(kind), hint=_example(path, option))
    if kind is PLACE and text and not (text.startswith("/") or "://" in text):
        raise SpecError(
            path,
            got=quoted(value),
            need="a path from the root, or a URL",
            hint=f"{path.rpartition('.')[2]}: s3://bucket/run",
        )
    try:
        found = kind.read(text, option.named)
        if found != AUTOMATIC:  # which stands for a number that follows from the workers
            option.check(found)
    except SpecError as wrong:
        raise in_the_objects_words(wrong, field=path) from None
    return found


def _as_typed(kind: Kind, value: object) -> str | None:
    """Return a value as the command line would have it; None where its type is another one."""
    if isinstance(value, bool):
        return str(value) if bool in kind.written_as else None
    if isinstance(value, str):
        return value if str in kind.written_as and len(value) <= LONGEST_TEXT else None
    if isinstance(value, float) and value.is_integer() and int in kind.written_as:
        value = int(value)
    if isinstance(value, int) and abs(value) < LARGEST_NUMBER:
        return str(value) if int in kind.written_as or float in kind.written_as else None
    is_number = isinstance(value, float) and math.isfinite(value)
    return repr(value) if is_number and float in kind.written_as else None


def needed(kind: Kind) -> str:
    """Describe the values of this kind."""
    parts = []
    if bool in kind.written_as:
        parts.append("true or false")
    if int in kind.written_as:
        parts.append(f"a whole number from {kind.minimum}")
    if float in kind.written_as:
        parts.append(f"a number above {kind.exclusive_minimum}")
    if kind.words:
        parts.append("one of " + ", ".join(kind.words))
    elif kind.pattern:
        parts.append(f"such as {kind.example}" if parts else f"a text such as {kind.example}")
    elif str in kind.written_as:
        parts.append(f"a text of at most {LONGEST_TEXT:,} characters")
    return ", or ".join(parts).replace(", or such as", ", or a text such as")


def _example(path: str, option: Option) -> str:
    words = option.kind.words or re.split(r", | or ", option.kind.example)
    return f"{path.rpartition('.')[2]}: {words[0]}" if words[0] else ""


# Errors -------------------------------------------------------------------------------------------


def in_the_objects_words(wrong: SpecError, *, field: str = "") -> SpecError:
    """Return an error about options as one about fields of an ElasticJob.

    Args:
        field: the path that it is about; empty: that of the option which it names.

    >>> print(in_the_objects_words(SpecError("--micro-batches", got="4 for up to 5 workers",
    ...     need="at least one micro-batch for each worker", hint="--micro-batches 8, or leave it out")))
    spec.microBatches: got 4 for up to 5 workers, need at least one micro-batch for each worker
      hint: microBatches: 8, or leave it out
    """
    actual, need, hint = (reworded(text, _word) for text in (wrong.got, wrong.need, wrong.hint))
    return SpecError(field or _path_of(wrong.field), got=actual, need=need, hint=hint)


def in_the_objects_text(text: str) -> str:
    """Return a sentence about options as one about fields.

    >>> in_the_objects_text("Compute so; --no-exact is somewhat faster.")
    'Compute so; exact: false is somewhat faster.'
    """
    return reworded(text, _word)


def _path_of(field: str) -> str:
    first, _, rest = field.partition(" ")
    name = _BY_FIELD.get(first) or _BY_FLAG.get(first.removeprefix("--"))
    if name is None:
        return f"spec: {field}" if field else "spec"
    inner = rest if name in (PARAMETERS, ENV) and rest and " " not in rest else ""
    return f"spec.{name}.{inner}" if inner else f"spec.{name}"


def _word(option: str, value: str | None) -> str:
    name = _BY_FLAG.get(option)
    if name is None:
        return f"--{option} {value}" if value else f"--{option}"
    if option.startswith("no-"):
        return f"{name}: false"
    if value is None:
        return name
    if name in (PARAMETERS, ENV):
        key, _, text = value.partition("=")
        return f"{name}: {{{key}: {text}}}" if text else f"{name}.{key}"
    if name == WORKERS:
        low, _, high = value.partition(":")
        return f"{name}: {{min: {low}, max: {high or low}}}"
    return f"{name}: {value}"
