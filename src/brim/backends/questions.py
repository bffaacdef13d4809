"""Asks the processes of many jobs at once: who does not answer holds up nobody else's look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from brim.coordination.reconcile import Action, Force, Resize, Start, Suspend
from brim.interfaces import Clock

_PATIENCE = 0.1  # seconds that a look waits for answers; who takes longer is heard at a later one


class Questions:
    """At most one question to a job's processes at a time; force does not wait for an answer.

    Args:
        perform: asks, bounds the wait for the answer, and writes down what came of it.
        clock: of the cluster.
    """

    def __init__(self, perform: Callable[[Action], Awaitable[None]], clock: Clock) -> None:
        self._perform, self._clock = perform, clock
        self._asked: dict[str, float] = {}
        self._open: dict[tuple[str, bool], tuple[Action, asyncio.Task[None]]] = {}

    def close(self) -> None:
        """Nobody hears answers any more."""
        for _, task in self._open.values():
            task.cancel()
        self._open.clear()

    def open(self, job: str) -> Action | None:
        """What was asked of a job and is not answered yet."""
        action, _ = self._open.get((job, False), (None, None))
        return action

    def unanswered(self, job: str) -> float | None:
        """When a job's master was first asked what it has not answered yet; None where it has
        answered.
        """
        return self._asked.get(job)

    def answered(self, job: str) -> float | None:
        """Its master has answered: when it was first asked."""
        return self._asked.pop(job, None)

    async def ask(self, actions: Iterable[Action]) -> None:
        """Ask all of them, but for jobs that owe an answer, and take the answers that come at once.

        Raises:
            Exception: what `perform` raised, now or since the last call.
        """
        self._take_answers()
        actions = list(actions)
        self._remember(actions)
        asked = []
        for action in actions:
            key = action.job, isinstance(action, Force)
            if (
                isinstance(action, Start)
                and key in self._open
                and not isinstance(self._open[key][0], Start)
            ):
                self._open.pop(key)[1].cancel()  # the processes that were asked have ended
            if key not in self._open:
                self._open[key] = action, asyncio.create_task(self._ask(action))
                asked.append(self._open[key][1])
        if asked:  # who owed an answer before is waited for no longer
            await asyncio.wait(asked, timeout=_PATIENCE)
        self._take_answers()

    def _remember(self, actions: Sequence[Action]) -> None:
        """Since when who is asked has not answered; who starts anew, or is to do nothing more, owes
        no answer.
        """
        now = self._clock.wall()
        put = {action.job for action in actions if isinstance(action, Resize | Suspend)}
        forced = {action.job for action in actions if isinstance(action, Force)}
        begun = {action.job for action in actions if isinstance(action, Start)}
        still = {job for job in self._asked if job in forced or self.open(job)} - begun
        self._asked = {job: self._asked.get(job, now) for job in put | still}

    def _take_answers(self) -> None:
        for key, (_, task) in list(self._open.items()):
            if task.done():
                del self._open[key]
                task.result()

    async def _ask(self, action: Action) -> None:
        await self._perform(action)
