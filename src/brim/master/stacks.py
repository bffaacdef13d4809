"""One look at the Python stacks of a job's workers: which agents still have to answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

_TO_SHOW = 3.0  # seconds that agents have: each gives a worker one, and may be at something else
_MOST_CHARACTERS = 8_000  # of one stack
_MOST_IN_ALL = 500_000


class StackTaking:
    """A question for stacks to these agents, and the answers to it.

    Args:
        agents: that were asked.
        begin: when, on the monotonic clock.
    """

    def __init__(self, agents: Iterable[str], *, begin: float) -> None:
        self.begin = begin
        self._missing = set(agents)
        self._stacks: dict[str, str] = {}
        self._all = asyncio.Event()
        if not self._missing:
            self._all.set()

    def take(self, agent: str, stacks: Mapping[str, str]) -> None:
        """Take in the answer of an agent; a second one is of no effect."""
        if agent not in self._missing:
            return
        self._missing.discard(agent)
        self._stacks |= stacks
        if not self._missing:
            self._all.set()

    async def stacks_of(self, workers: Iterable[str]) -> dict[str, str]:
        """Return the stacks of workers once all agents have answered, or had their time.

        Empty for a worker that did not answer, or whose stack is beyond what one answer can hold.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TO_SHOW):
                await self._all.wait()
        found, room = {}, _MOST_IN_ALL
        for worker in workers:
            stack = self._stacks.get(worker, "")[:_MOST_CHARACTERS]
            found[worker] = stack if len(stack) <= room else ""
            room -= len(found[worker])
        return found
