"""The files of a run that are kept where others find them when its hosts are gone. Pure.

What is about processes that are alive (locks, the journal, how to reach a master and its token) is
not among them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from brim.domain.job import JobSpec

PART = 1 << 20  # bytes: a file that grows is kept elsewhere in parts of this size
CHECKPOINTS = "checkpoints"
JOB = "job.json"
LIVENESS_FILE = "kept"  # in a store alone: when the run was last added to; removed at its end
_GROWING = re.compile(r"(events|steps)\.jsonl|logs/[A-Za-z0-9_.-]+\.log")
_WHOLE = re.compile(
    rf"(job|columns)\.json|{LIVENESS_FILE}|code(-changed)?\.tar|report\.html|quarantine/[^/\0]{{1,200}}"
)
_OF_A_CHECKPOINT = re.compile(rf"{CHECKPOINTS}/[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+")
_PART_NAME = re.compile(r"(?P<name>.+)/part-(?P<number>\d{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file of a run.

    Args:
        name: relative to the run's directory.
        size: bytes.
        version: another one wherever the content of a file that does not grow may be another;
            empty where that is not known.
        begin: bytes at its front that are there no more: logs are kept within a limit.
    """

    name: str
    size: int
    version: str = ""
    begin: int = 0


def place_of(runs: str, name: str) -> str:
    """Return the place of a run below that of all runs.

    >>> place_of("s3://bucket/runs/", "flights-1")
    's3://bucket/runs/flights-1'
    """
    return f"{runs.rstrip('/')}/{name}"


def kept_spec(spec: JobSpec, name: str) -> JobSpec:
    """Return the spec of a run of this name: where runs are kept, its checkpoints are, too."""
    if not spec.runs or spec.checkpoints:
        return spec
    return replace(spec, checkpoints=f"{place_of(spec.runs, name)}/{CHECKPOINTS}")


def grows(name: str) -> bool:
    """Return whether a file only ever gets longer.

    >>> grows("steps.jsonl"), grows("job.json")
    (True, False)
    """
    return _GROWING.fullmatch(name) is not None


def is_kept(name: str, *, checkpoints: bool = False) -> bool:
    """Return whether a name is that of a file that is kept.

    A name that leads out of the directory is none.

    Args:
        checkpoints: whether those count, which may be large, and may have another place.

    >>> is_kept("logs/w1.log"), is_kept("master.json"), is_kept("quarantine/../../x")
    (True, False, False)
    >>> names = ["step-00000040/manifest.json", "frozen/w1-0a.safetensors", "tables/w1-0b.safetensors"]
    >>> all(is_kept(f"checkpoints/{name}", checkpoints=True) for name in names)
    True
    """
    if any(part in ("", ".", "..") for part in name.split("/")):
        return False
    kinds = (_GROWING, _WHOLE, *((_OF_A_CHECKPOINT,) if checkpoints else ()))
    return any(kind.fullmatch(name) for kind in kinds)


def part_name(name: str, number: int) -> str:
    """Return the name under which a part of a file that grows is kept.

    >>> part_name("steps.jsonl", 3), whole_and_part("steps.jsonl/part-00000003")
    ('steps.jsonl/part-00000003', ('steps.jsonl', 3))
    """
    return f"{name}/part-{number:08d}"


def whole_and_part(name: str) -> tuple[str, int] | None:
    """Return the file and the number of a part's name; None where it is none."""
    found = _PART_NAME.fullmatch(name)
    return (found["name"], int(found["number"])) if found else None
