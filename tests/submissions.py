"""Submissions for tests of the scheduler: their training files are never read."""

from __future__ import annotations

from typing import Any

from brim.domain.job import JobSpec, WorkerRange
from brim.domain.submission import Submission


def submission(workers: str = "1:4", *, deadline: float | None = None, **fields: Any) -> Submission:
    """A job of a model called `m`, unless `fingerprint` says otherwise."""
    spec = JobSpec(
        file="m.py",
        parameters={},
        workers=WorkerRange.parse(workers),
        epochs=fields.pop("epochs", 1),
    )
    return Submission(**{"spec": spec, "fingerprint": "m", "deadline": deadline, **fields})
