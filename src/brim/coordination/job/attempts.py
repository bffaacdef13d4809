"""Handles hosts whose workers die early: wait before the next start, then give up. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

_FREE = 2  # quick deaths that no start waits for: anybody may be unlucky twice
_MAX_START_DELAY = 8.0  # seconds that a start may wait

EXIT_STATUS = "exit status"  # how the reason begins where a worker's process ended itself


@dataclass(slots=True, kw_only=True)
class Attempts:
    """The quick deaths in a row on each agent.

    A worker that dies before it has taken part in so many steps dies quickly; one that lives longer
    clears its agent. Workers that were started before the last death counted were part of that
    attempt: a cause that kills eight workers at one blow counts once.

    Args:
        young: steps of the job that a worker must have taken part in to count as one that lives.
        limit: quick deaths in a row after which an agent is given no more workers.

    >>> attempts = Attempts(limit=4)
    >>> for number in (1, 2, 3):
    ...     told = attempts.died("a1", number, steps=0, newest=number)
    >>> attempts.delay("a1"), attempts.given_up("a1"), attempts.died("a1", 4, steps=7, newest=4)
    (2.0, False, True)
    """

    young: int = 20
    limit: int = 6
    _deaths: dict[str, int] = field(default_factory=dict)
    _counted_up_to: dict[str, int] = field(
        default_factory=dict
    )  # agent -> newest worker at its last death

    def died(self, agent: str, number: int, *, steps: int, newest: int) -> bool:
        """A worker died.

        Args:
            number: of the worker; later ones have larger numbers.
            steps: that it took part in.
            newest: the number of the last worker that was started.

        Returns:
            Whether this was one too many.
        """
        if steps >= self.young:
            self._deaths.pop(
                agent, None
            )  # where one lived long another may: the host deserves a try
            return False
        if number <= self._counted_up_to.get(agent, 0):
            return False
        self._counted_up_to[agent] = newest
        self._deaths[agent] = self._deaths.get(agent, 0) + 1
        return self._deaths[agent] == self.limit

    def stepped(self, agent: str, steps: int) -> None:
        """A worker has now taken part in so many steps."""
        if steps == self.young:
            self._deaths.pop(agent, None)

    def forgive(self) -> None:
        """Give every agent another try."""
        self._deaths.clear()

    def delay(self, agent: str) -> float:
        """Seconds that the next start on this agent waits.

        0 at first, then 1, 2, 4, 8, 8 and so on.
        """
        beyond = self._deaths.get(agent, 0) - _FREE
        return 0.0 if beyond < 0 else min(_MAX_START_DELAY, 2.0**beyond)

    def given_up(self, agent: str) -> bool:
        return self._deaths.get(agent, 0) >= self.limit
