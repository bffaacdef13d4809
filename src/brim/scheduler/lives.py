"""The lives of a cluster's scheduler, one after the other in one process.

Where a scheduler cannot remember any more what it decides, its life ends as if it had been killed:
what is on disk is what is so, and its jobs train on. Until the next life can begin, nothing is
decided, people can ask and are told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from brim.errors import EnvironmentFault, StorageFault
from brim.interfaces import Clock
from brim.scheduler.loop import Scheduler
from brim.scheduler.views import times_of
from brim.scheduler.waiting import Waiting
from brim.storage.database import Alarm
from brim.wire.cluster import ClusterView

_log = logging.getLogger(__name__)
_RETRY_INTERVAL = 1.0  # seconds between two attempts to go on
_SCHEDULER_GONE = (
    "the state directory was moved or deleted under its scheduler, which ends with all that it "
    "started"
)
_SHARE = 0.1  # of a processor's time, that attempts take at most
_NO_TIMES = times_of(())
_UNKNOWN = ClusterView(
    policy="",
    devices=0,
    headroom=0,
    held=0,
    nodes={},
    unfinished=0,
    cycles=_NO_TIMES,
    looks=_NO_TIMES,
)


class Lives:
    """A scheduler that goes on when it can.

    What is on disk may be unreadable from the start: then there is no scheduler yet, and callers
    are told why.

    Args:
        begin: opens what is on disk, and says what is to be called where that fails; raises
            StorageFault where it cannot be read.
        is_there: whether the state directory is still the one that this process has the lock of.

    Attributes:
        problem: why it holds; empty while it schedules.
        is_over: nobody has to wait for anything any more.
        waiting: those who wait for news of jobs.
        leaves: it was told to end while it held. Its jobs train on: nobody could write down that
            they were paused.
        kills: all processes of its jobs are to be ended then.
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
        self.is_over = self.leaves = self.kills = False
        self.waiting = Waiting()
        self._leaving = asyncio.Event()  # that it leaves
        self._life: Scheduler | None = None
        try:
            self._life = self._open()
        except StorageFault as fault:
            self.problem = str(fault)

    async def run(self) -> None:
        """Schedule until it is told to end.

        Raises:
            EnvironmentFault: its state directory is gone.
        """
        held_note = ""
        try:
            while True:
                if self._life is not None:
                    self.problem = self._life.damage
                if self._life is not None and not self.problem:
                    await self._schedule(self._life, held_note)
                if not self.problem:
                    return
                held_note = await self._hold()
                if self.leaves:
                    return
        finally:
            self.is_over = True
            self.waiting.ring_all()

    @property
    def now(self) -> Scheduler:
        """The present scheduler, for questions. While it holds, nothing else may be asked of it.

        Raises:
            StorageFault: there is none yet.
        """
        if self._life is None:
            raise StorageFault(self._held_reason())
        return self._life

    @property
    def to_change(self) -> Scheduler:
        """The present scheduler, for changes. Raises StorageFault while it holds."""
        if self.problem:
            raise StorageFault(self._held_reason())
        return self.now

    def cluster(self) -> ClusterView:
        """The cluster now, and its problems."""
        view = self._life.cluster() if self._life is not None else _UNKNOWN
        problems = [self._held_reason() if self.problem else "", view.problem]
        problem = "; ".join(filter(None, problems))
        return msgspec.structs.replace(view, problem=problem, holds=bool(self.problem))

    def down(self, *, kill: bool, actor: str) -> None:
        """Suspend every job and end; while it holds, end alone, and write nothing.

        Args:
            kill: end the processes of jobs at once, also while it holds.
            actor: the caller.
        """
        if not self.problem:
            self.now.down(kill=kill, actor=actor)
            return
        _log.warning("the scheduler ends while it holds, by %s", actor)
        self.leaves, self.kills = True, kill
        self._leaving.set()

    def close(self) -> None:
        """Close the scheduler: nothing more is asked of it."""
        if self._life is not None:
            self._life.close()

    def _held_reason(self) -> str:
        return (
            f"the scheduler decides nothing for now: {self.problem}; jobs train on, and it "
            "tries again"
        )

    async def _schedule(self, life: Scheduler, held_note: str) -> None:
        self._scheduling = asyncio.create_task(life.run(held_note))
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
        """The present life is over: its unwritten changes must stay invisible."""
        if life != self._count or self.problem or self._scheduling is None:
            return
        self.problem = str(fault)
        with contextlib.suppress(EnvironmentFault):
            self._ended, self._life = self._life, self._open()
        self._scheduling.cancel()

    async def _hold(self) -> str:
        """Wait until another life can begin, or none is wanted; in words, for how long and why."""
        started, first = self._clock.now(), self.problem
        _log.error("%s", self._held_reason())  # at this level: it answers why nothing is scheduled
        spent = 0.0
        while True:
            if not self.is_there():
                raise EnvironmentFault(_SCHEDULER_GONE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(_RETRY_INTERVAL, spent / _SHARE)):
                    await self._leaving.wait()
                return ""
            tried = self._clock.now()
            self.problem = self._attempt()
            spent = self._clock.now() - tried
            if not self.problem:
                break
        held_note = f"it held for {self._clock.now() - started:.0f} s: {first}"
        _log.warning("the scheduler goes on; %s", held_note)
        return held_note

    def _attempt(self) -> str:
        """Begin the next life; why it cannot begin, or nothing."""
        try:
            life = self._open()
        except (
            EnvironmentFault
        ) as fault:  # also where somebody has put the file of a newer version there
            problem, *_ = str(fault).splitlines()
            return problem
        problem = life.damage or _unproven(life)
        if problem:
            life.close()
            return problem
        self.close()
        self._life = life
        self.waiting.ring_all()
        return ""


def _unproven(life: Scheduler) -> str:
    try:
        life.prove()
    except StorageFault as fault:
        return str(fault)
    return ""
