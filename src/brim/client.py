"""PLACEHOLDER, replaced by the runtime's module when it is merged: ask a run that is alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault

__all__ = ["resize", "status", "stop"]


def status(run_dir: Path) -> dict[str, Any]:
    raise EnvironmentFault(f"{run_dir} is not running")


def resize(run_dir: Path, workers: int) -> dict[str, Any]:
    raise EnvironmentFault(f"{run_dir} is not running")


def stop(run_dir: Path) -> dict[str, Any]:
    raise EnvironmentFault(f"{run_dir} is not running")
