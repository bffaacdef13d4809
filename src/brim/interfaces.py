"""What the roles are handed rather than import: the Protocols that edges implement."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """Reads time. `now` is monotonic seconds and orders events; `wall` is seconds since 1970, for people."""

    def now(self) -> float: ...

    def wall(self) -> float: ...
