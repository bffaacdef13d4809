"""Connections of callers that are not known yet: there are few, and the oldest makes way for the next.

They count from the moment at which the kernel hands them over, so also while they say nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Stranger = TypeVar("Stranger")


def first_of_crowd(hosts: Mapping[Stranger, str]) -> Stranger:
    """Return the first caller of the host with the most.

    Args:
        hosts: by stranger, the oldest first.

    >>> first_of_crowd({1: "10.0.0.7", 2: "10.0.0.8", 3: "10.0.0.8"})
    2
    """
    crowd, _ = Counter(hosts.values()).most_common(1)[0]
    return next(stranger for stranger, host in hosts.items() if host == crowd)


class Strangers:
    """The connections of one listener with unidentified callers.

    Where there are too many, one of the host that has the most makes way: strangers on one host lock
    out nobody on another.

    Args:
        limit: of them at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hosts: dict[asyncio.Transport, str] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._hosts)

    def admit(self, transport: asyncio.Transport) -> None:
        """Count a connection in; another one is cut off for it where there is no room."""
        if len(self._hosts) >= self._limit:
            oldest = first_of_crowd(self._hosts)
            self.forget(oldest)
            oldest.abort()
        peer = transport.get_extra_info("peername") or ("",)
        self._hosts[transport] = str(peer[0])

    def forget(self, transport: asyncio.Transport) -> None:
        """Count a connection no more: its owner is known, or it is gone."""
        self._hosts.pop(transport, None)
