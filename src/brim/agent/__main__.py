"""PLACEHOLDER, replaced by the runtime's module when it is merged: the agent of a node."""

from __future__ import annotations

from brim.errors import EnvironmentFault

__all__ = ["join"]


def join(master: str, *, token: str) -> int:
    raise EnvironmentFault(f"this build has no agent to join {master}")
