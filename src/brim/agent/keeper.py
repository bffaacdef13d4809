"""Keeps the master of a job alive.

The keeper starts a master, and another one whenever the master dies before the job has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from brim.agent.births import Process, StartProcess, start_anew
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.host.process import work_of
from brim.host.shortage import words_of_shortage
from brim.storage.contact import remove_contact
from brim.storage.files import open_log

_MOST_DEATHS = 10  # in a row, none of which this agent heard a word from
_LONGEST_WAIT = 2.0  # seconds between two starts
_STUCK = 300.0  # seconds in which a master that starts does nothing at all
_TO_END = 20.0  # seconds that a master may take to end once the job has


class Keeper:
    """The keeper of one master, whose first life it starts at once.

    Args:
        arguments: of `python -m brim.master`; the same for every life.
        run_dir: of the job; the output of each life goes to a log in it.
        start: how its first life is started; this process may fork no more once it runs an event
            loop.
        keep: descriptors that each life has.
    """

    def __init__(
        self,
        arguments: list[str],
        run_dir: Path,
        start: StartProcess = start_anew,
        keep: Sequence[int] = (),
    ) -> None:
        self._arguments, self._keep_descriptors = arguments, keep
        self._run_dir, self._log = run_dir, run_dir / "logs" / "master.log"
        self._begin(start)
        self._deaths = 0
        self._ending = False
        self.ended = asyncio.Event()  # there is no master any more, and there will be none

    def _begin(self, start: StartProcess) -> None:
        # Its standard input is ours: a pipe that closes with the process that wanted the job.
        with open_log(self._log) as log:
            self._process: Process = start(
                "brim.master",
                self._arguments,
                stdin=0,
                output=log.fileno(),
                keep=self._keep_descriptors,
            )
        self._started_at, self._is_heard = monotonic(), False
        self._work, self._worked = work_of(self._process.pid), self._started_at

    async def run(self) -> None:
        """Keep a master until one ends by itself, without an error.

        Raises:
            EnvironmentFault: masters die as soon as they are started.
        """
        try:
            await self._keep()
        finally:
            with contextlib.suppress(OSError):  # one that was killed at its end has left it
                remove_contact(self._run_dir, keeper=os.getpid())
            self.ended.set()

    async def _keep(self) -> None:
        while True:
            if await asyncio.to_thread(self._process.wait) == 0 or self._ending:
                return
            await self._replace()

    async def _replace(self) -> None:
        """Start another master; where none can be started, that counts as its death."""
        problem = ""
        while not self._ending:
            self._deaths += 1
            if self._deaths > _MOST_DEATHS:
                words = f", the last time before it began: {problem}" if problem else ""
                raise EnvironmentFault(
                    f"the master died {self._deaths} times in a row{words}: see {self._log}"
                )
            await asyncio.sleep(min(_LONGEST_WAIT, 0.05 * (2 ** (self._deaths - 1) - 1)))
            try:
                self._begin(start_anew)
                return
            except OSError as error:
                problem = words_of_shortage(error) or str(error)

    def on_first_word(self) -> None:
        """The master has said the first word on a connection."""
        self._deaths, self._is_heard = 0, True

    def mind_silence(self) -> None:
        """End a master that has fallen silent; another one takes over.

        One that was never heard is starting, which a busy host takes long for: it is waited for
        while it lives, unless it is stuck.
        """
        now, work = monotonic(), work_of(self._process.pid)
        if work != self._work:
            self._work, self._worked = work, now
        if self._is_heard or now - self._worked > _STUCK:
            self._process.kill()
        else:
            duration = now - self._started_at
            print(  # noqa: T201 into the agent's log
                f"the master has been starting for {duration:.0f} s: see {self._log}",
                file=sys.stderr,
            )

    async def end(self) -> None:
        """See the master off: the job has ended, or this agent gives up."""
        self._ending = True
        try:
            async with asyncio.timeout(_TO_END):
                await self.ended.wait()
        except TimeoutError:
            self._process.kill()
            await self.ended.wait()
