"""Protocols that edges implement.

Roles are handed such objects, and import no edge.
"""

from __future__ import annotations

from typing import Protocol

from brim.domain.schedule import Decision, Snapshot

__all__ = ["Backend", "Clock"]


class Clock(Protocol):
    """Reads time.

    `now` is monotonic seconds and orders events; `wall` is seconds since 1970, for people.

    `wall` is never set. `set_by` says by how much the host's clock, by which people go, has been
    set since.
    """

    def now(self) -> float: ...

    def wall(self) -> float: ...

    def set_by(self) -> float: ...


class Backend(Protocol):
    """A cluster, simulated or real: it reports its state, and carries out decisions."""

    async def wait(self, deadline: float | None) -> bool:
        """Wait until there is something to decide.

        At the latest until `deadline` on the snapshot's clock.

        Returns:
            False where nothing will ever happen any more.
        """
        ...

    async def observe(self) -> Snapshot:
        """Return the cluster's present state, the input of a policy."""
        ...

    async def apply(self, decision: Decision) -> None:
        """Carry out a decision.

        A decision is a desired state: applying it again changes nothing.
        """
        ...
