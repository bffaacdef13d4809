"""The lives of a cluster's scheduler, one after the other in one process.

Where a scheduler cannot remember any more what it decides, its life ends as if it had been killed: what is on disk is
what is so, and its jobs train on. Until the next life can begin, nothing is decided, people can ask and are told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial

import msgspec

from brim.errors import EnvironmentFault, StorageFault
from brim.interfaces import Clock
from brim.scheduler.loop import Scheduler
from brim.scheduler.waiting import Waiting
from brim.storage.database import Alarm
from brim.wire.cluster import ClusterView

__all__ = ["Lives"]

_AGAIN = 1.0  # seconds between two attempts to go on
_GONE = "the state directory was moved or deleted under its scheduler, which ends with all that it started"
_SHARE = 0.1  # of a processor's time, that attempts take at most


class Lives:
    """A scheduler that goes on when it can.

    Args:
        begin: opens what is on disk, and says what is to be called where that fails; raises StorageFault where it
            cannot be read.
        is_there: whether the state directory is still the one that this process has the lock of.

    Attributes:
        now: the present scheduler, for questions. While it holds, nothing else may be asked of it.
        problem: why it holds; empty while it schedules.
        is_over: nobody has to wait for anything any more.
        waiting: those who wait for news of jobs.
    """

    def __init__(
        self, begin: Callable[[Alarm], Scheduler], *, is_there: Callable[[], bool], clock: Clock
    ) -> None:
        self._begin, self._clock = begin, clock
        self.is_there = is_there
        self._scheduling: asyncio.Task[None] | None = None
        self._ended: Scheduler | None = None
        self._count = 0
        self.problem = ""
        self.is_over = False
        self.waiting = Waiting()
        self.now = self._open()

    async def run(self) -> None:
        """Schedule until it is told to end.

        Raises:
            EnvironmentFault: its state directory is gone.
        """
        held = ""
        try:
            while True:
                self.problem = self.now.damage
                if not self.problem:
                    await self._schedule(held)
                if not self.problem:
                    return
                held = await self._hold()
        finally:
            self.is_over = True
            self.waiting.ring_all()

    @property
    def to_change(self) -> Scheduler:
        """The present scheduler, for changes. Raises StorageFault while it holds."""
        if self.problem:
            raise StorageFault(self._held())
        return self.now

    def cluster(self) -> ClusterView:
        """The cluster now, and what is wrong with it."""
        view = self.now.cluster()
        problems = [self._held() if self.problem else "", view.problem]
        return msgspec.structs.replace(view, problem="; ".join(filter(None, problems)))

    def _held(self) -> str:
        return f"the scheduler decides nothing for now: {self.problem}; jobs train on, and it tries again"

    async def _schedule(self, held: str) -> None:
        self._scheduling = asyncio.create_task(self.now.run(held))
        try:
            await self._scheduling
        except (StorageFault, asyncio.CancelledError):
            me = asyncio.current_task()
            if not self.problem or (me is not None and me.cancelling()):
                raise
        finally:
            self._scheduling = None
            if self._ended is not None:
                self._ended.close()
                self._ended = None

    def _open(self) -> Scheduler:
        self._count += 1
        life = self._begin(partial(self._alarm, self._count))
        life.tell(self.waiting.ring)
        return life

    def _alarm(self, life: int, fault: StorageFault) -> None:
        """The present life is over: nobody is to see what it could not write down any more."""
        if life != self._count or self.problem or self._scheduling is None:
            return
        self.problem = str(fault)
        with contextlib.suppress(StorageFault):
            self._ended, self.now = self.now, self._open()
        self._scheduling.cancel()

    async def _hold(self) -> str:
        """Wait until another life can begin; in words, for how long and why."""
        began, first = self._clock.now(), self.problem
        _say(self._held())
        spent = 0.0
        while True:
            if not self.is_there():
                raise EnvironmentFault(_GONE)
            await asyncio.sleep(max(_AGAIN, spent / _SHARE))
            tried = self._clock.now()
            self.problem = self._attempt()
            spent = self._clock.now() - tried
            if not self.problem:
                break
        held = f"it held for {self._clock.now() - began:.0f} s: {first}"
        _say(f"the scheduler goes on; {held}")
        return held

    def _attempt(self) -> str:
        """Begin the next life; why it cannot begin, or nothing."""
        try:
            life = self._open()
        except StorageFault as fault:
            return str(fault)
        problem = life.damage or _unproven(life)
        if problem:
            life.close()
            return problem
        self.now.close()
        self.now = life
        self.waiting.ring_all()
        return ""


def _unproven(life: Scheduler) -> str:
    try:
        life.prove()
    except StorageFault as fault:
        return str(fault)
    return ""


def _say(text: str) -> None:
    """In the scheduler's log, which may be on the disk that is full."""
    with contextlib.suppress(OSError):
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}", file=sys.stderr, flush=True)  # noqa: T201
