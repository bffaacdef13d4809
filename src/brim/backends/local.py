"""PLACEHOLDER, replaced by the runtime's module when it is merged: a job's processes on this host."""

from __future__ import annotations

from pathlib import Path

from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault

__all__ = ["LocalRun", "start"]


class LocalRun:
    def poll(self) -> int | None:
        return 1

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


def start(spec: JobSpec, run_dir: Path, *, resume: bool, listen: str | None) -> LocalRun:
    raise EnvironmentFault("this build has no runtime")
