"""Processes that read and collate micro-batches beside the step.

They die with the worker that started them.

Not torch's DataLoader: it answers the death of a process by an exception in the midst of whatever
the training loop does, a commit too; it waits up to five seconds for each process that is busy when
it is closed; and what was asked for in a round that is over would be read to the end. Reading gives
the same wherever and however often it is done, so here a dead process is replaced and asked again.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from brim.data.parcels import receive, send
from brim.errors import BrimError, EnvironmentFault, SpecError, UserCodeError
from brim.host.clock import monotonic
from brim.host.inherited import inherited_by_forks
from brim.host.process import be_called, die_with_parent, named_threads, work_of
from brim.user_code.tracebacks import trace_of

_POLL_INTERVAL = 0.2  # seconds between looks at something else while nothing comes
_TO_COMPUTE = 10.0  # seconds without any computation after which a process that reads seems stuck
_TRIES = 3  # processes that die over one micro-batch before its reader is given up

Work = TypeVar("Work")
_fork = multiprocessing.get_context("fork")


class Loaders(Generic[Work]):
    """Processes, started when something is read first, that are asked in turn.

    Args:
        load: reads one piece of work; runs in the processes, which have what this process had when
            they started.
        depth: pieces of work that each process may be ahead.
        start: called in each process with its number before it reads.
        shard_of: the number of the process that is to read a piece of work, modulo their count; None
            asks them in turn.
        find_cause: finds out why processes die over a piece of work.
        warn: told of a process that seems to wait for a thread that it was forked without.
    """

    def __init__(
        self,
        load: Callable[[Work], Any],
        *,
        depth: int,
        start: Callable[[int], None],
        shard_of: Callable[[Work], int] | None = None,
        find_cause: Callable[[Work, Callable[[], None]], BrimError | None] = lambda *_: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._depth, self._shard_of, self._find_cause = depth, shard_of, find_cause
        self._warn = warn
        self._load, self._start = load, start
        self._reading = _fork.RawValue(
            "q", 0
        )  # which call of `read` is the latest; shared with the processes
        self._loaders: list[_Loader[Work]] = []

    def read(
        self, works: Iterator[Work], *, count: int, meanwhile: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Work, Any]]:
        """Each piece of work with its loaded data, in order.

        Unread items of an earlier call are dropped.

        Args:
            works: what to read; taken some way ahead of what is given out.
            count: processes, from 1.
            meanwhile: called now and then while nothing comes; may raise.

        Raises:
            UserCodeError: reading raised, in a process; with the traceback there.
            BrimError: one of brim's own was raised there.
            EnvironmentFault: processes died three times over one piece of work, and no cause is
                found in it.
        """
        self._resize(count)
        self._reading.value += 1
        busy: deque[_Loader[Work]] = deque()
        turns = itertools.count()

        def ask() -> None:
            for work in itertools.islice(works, count * self._depth - len(busy)):
                turn = next(turns) if self._shard_of is None else self._shard_of(work)
                busy.append(self._loaders[turn % count])
                busy[-1].ask(self._reading.value, work)

        ask()
        while busy:
            work, answer = busy.popleft().answer(meanwhile)
            if isinstance(answer, BrimError):
                raise answer
            ask()
            yield work, answer

    def close(self) -> None:
        """End the processes, busy or not."""
        self._resize(0)

    def _resize(self, count: int) -> None:
        while len(self._loaders) > count:
            self._loaders.pop().end()
        for number in range(len(self._loaders), count):
            self._loaders.append(
                _Loader(
                    number, self._load, self._start, self._reading, self._find_cause, self._warn
                )
            )


class _Loader(Generic[Work]):
    """One process, and its unanswered requests."""

    def __init__(
        self,
        number: int,
        load: Callable[[Work], Any],
        start: Callable[[int], None],
        reading: Any,
        find_cause: Callable[[Work, Callable[[], None]], BrimError | None],
        warn: Callable[[str], None],
    ) -> None:
        self._find_cause, self._warn = find_cause, warn
        self._work, self._computed_at = "", 0.0
        self._number, self._load, self._start, self._reading = number, load, start, reading
        self._unanswered: deque[tuple[int, Work]] = deque()
        self._deaths = 0
        self._begin()

    def _begin(self) -> None:
        self._inherited = inherited_by_forks()
        self._threads = named_threads()
        if self._inherited.unforkable:
            raise SpecError(
                f"LMDB environment of {self._inherited.unforkable}",
                got="one that locks, open before the processes that read are forked",
                need="one without locks, or one that each of these opens for itself",
                hint="lmdb.open(path, readonly=True, lock=False), or --loaders 0",
            )
        self._connection, child_end = _fork.Pipe()
        self._process = _fork.Process(
            target=self._serve, args=(child_end, os.getpid()), daemon=True
        )
        with (
            warnings.catch_warnings()
        ):  # of forking beside threads: the child touches nothing that they might hold
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        child_end.close()

    def ask(self, reading: int, work: Work) -> None:
        self._unanswered.append((reading, work))
        self._send(reading, work)

    def _send(self, reading: int, work: Work) -> None:
        try:
            self._connection.send((reading, work))
        except OSError:
            return  # its death is answered where the answer is missing

    def answer(self, tick: Callable[[], None]) -> tuple[Work, Any]:
        """The next answer to a request of this reading."""
        while True:
            while not wait([self._connection, self._process.sentinel], timeout=_POLL_INTERVAL):
                self._look_for_work()
                tick()
            self._work = ""
            try:
                answer = receive(self._connection)
            except (EOFError, OSError):
                self._replace(tick)
                continue
            self._deaths = 0
            reading, work = self._unanswered.popleft()
            if reading == self._reading.value:
                return work, answer

    def _look_for_work(self) -> None:
        """Warn, once, if the process seems to wait for a thread that it was forked without.

        polars, for one, hands its work to threads, and waits for them without an end.
        """
        work = work_of(self._process.pid or 0)
        if work != self._work:
            self._work, self._computed_at = work, monotonic()
        elif self._threads and monotonic() - self._computed_at > _TO_COMPUTE:
            self._warn(
                f"a process that reads data has computed nothing for {_TO_COMPUTE:.0f} s, and was "
                f"forked beside threads that it does not have ({', '.join(self._threads)}): a "
                "library that hands its work to them waits for ever; --loaders 0 (num_workers=0) "
                "reads in the step, or let the library do its first work in __getitem__"
            )
            self._threads = []

    def _replace(self, tick: Callable[[], None]) -> None:
        self._process.join()
        self._deaths += 1
        cause = self._find_cause(self._unanswered[0][1], tick) if self._deaths > 1 else None
        if cause is not None:
            raise cause
        if self._deaths == _TRIES:
            raise EnvironmentFault(
                f"a process that reads data died {_TRIES} times over one micro-batch "
                f"({self._how_it_died()}); "
                "--loaders 0 reads in the step",
                retryable=True,
            )
        self.end()
        unanswered = [
            (reading, work) for reading, work in self._unanswered if reading == self._reading.value
        ]
        self._unanswered = deque(unanswered)
        self._begin()
        for reading, work in unanswered:
            self._send(reading, work)

    def _how_it_died(self) -> str:
        status = self._process.exitcode or 0
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    # In the process -------------------------------------------------------------------------------

    def _serve(self, connection: Connection, parent: int) -> None:
        """Answer requests until the worker is gone."""
        die_with_parent(parent)
        be_called(f"brim-loader-{self._number}")
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which the worker hears too
        self._connection.close()
        self._inherited.make_own()
        torch.set_num_threads(1)
        requests: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        threading.Thread(target=_hear, args=(connection, requests), daemon=True).start()
        failure = self._try_to(lambda: self._start(self._number))
        while True:
            reading, work = requests.get()
            if reading != self._reading.value:
                send(connection, None)  # nobody waits for it any more
                continue
            answer = failure or self._try_to(lambda: self._load(work))  # noqa: B023 - called at once
            unsent = self._try_to(lambda: send(connection, answer))  # noqa: B023
            if unsent is not None:
                send(connection, unsent)

    @staticmethod
    def _try_to(function: Callable[[], Any]) -> Any:
        """Call a function; return its result, or its exception as a value."""
        try:
            return function()
        except BrimError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the user's, who is told in the worker
            return UserCodeError(trace_of(error))


def _hear(connection: Connection, requests: queue.SimpleQueue[Any]) -> None:
    """Take requests at once.

    So the worker never waits to ask while this process waits to answer.
    """
    while True:
        try:
            requests.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # the worker is gone
