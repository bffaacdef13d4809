"""The software that computes in this process."""

from __future__ import annotations

import platform

import torch

import brim


def versions() -> dict[str, str]:
    """Return the versions of the software that computes here."""
    return {
        "brim": brim.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
