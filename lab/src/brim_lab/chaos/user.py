"""The user of a cluster that is being broken: asks until each request is acknowledged."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from brim.client import Client
from brim.domain.cluster import ClusterSpec
from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import SystemClock
from brim.storage.contact import SCHEDULER_LOCK
from brim.storage.files import is_locked
from brim.wire.cluster import JobView
from brim_lab.chaos.deeds import Deed, DeedKind, describe_deed
from brim_lab.chaos.judging import Acknowledged, Span
from brim_lab.chaos.results import Job
from brim_lab.driver import Driver

_POLL_INTERVAL = 0.1
_TO_GO_DOWN = 60.0


@dataclass
class User:
    """The owner of everything; each deed has a thread of its own.

    Args:
        state: of the scheduler.
        cluster: what `apply` starts from.
        driver: of commands.

    Attributes:
        short: spans of time in which the scheduler said that nodes are gone.
    """

    job: Job
    state: Path
    cluster: Callable[[Deed], ClusterSpec]
    driver: Driver
    acknowledged: list[Acknowledged] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    views: dict[str, JobView] = field(default_factory=dict)
    short: list[Span] = field(default_factory=list)
    going_down: bool = False
    _clock: SystemClock = field(default_factory=SystemClock)
    _fine: float | None = 0.0  # when nothing was wrong; None where something is
    _closed: bool = False
    _asking: dict[Future[None], Deed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="user")
        self._watching = self._threads.submit(self._watch)

    def busy(self) -> bool:
        """Return whether a request is not acknowledged yet; raise what a thread raised."""
        for future in [future for future in self._asking if future.done()]:
            del self._asking[future]
            future.result()
        return bool(self._asking)

    @property
    def pending(self) -> str:
        """The requests that are not acknowledged yet."""
        return "; ".join(map(describe_deed, self._asking.values()))

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown()

    def ask(self, deed: Deed, index: int = 0) -> None:
        """Begin to ask for it.

        Args:
            index: of the job that is submitted, from 1.
        """
        work = {
            DeedKind.SUBMIT: self._submit,
            DeedKind.SUBMIT_BY: self._submit,
            DeedKind.SUSPEND: self._suspend,
            DeedKind.RESIZE: self._resize,
            DeedKind.CANCEL: self._cancel,
            DeedKind.APPLY: self._apply,
            DeedKind.DOWN: self._down,
        }[deed.kind]
        self._asking[self._threads.submit(work, deed, index)] = deed

    def has_ended(self, job: str) -> bool:
        return job in self.views and self.views[job].has_ended

    def _watch(self) -> None:
        while not self._closed:
            with contextlib.suppress(EnvironmentFault):
                client = Client(self.state)
                self.views = {view.job: view for view in client.jobs()}
                self._notice(client.cluster().problem)
            time.sleep(2 * _POLL_INTERVAL)

    def _notice(self, problem: str) -> None:
        now = self._clock.wall()
        if problem and self._fine is not None:
            self.short.append((self._fine, now))
        elif problem:
            self.short[-1] = self.short[-1][0], now
        self._fine = None if problem else now

    def _until_yes(self, deed: Deed, job: str, call: Callable[[Client], object]) -> bool:
        """Ask until it is acknowledged; False where the job has ended before."""
        while not self._closed:
            try:
                client = Client(self.state)
                if job and client.job(job).has_ended:
                    return False
                call(client)
            except EnvironmentFault:
                time.sleep(_POLL_INTERVAL)
                continue
            self.acknowledged.append(Acknowledged(deed, job))
            return True
        return False

    def _submit(self, deed: Deed, index: int) -> None:
        words = ["submit", str(Path(self.job.file).resolve()), "--json", "--state", str(self.state)]
        words += ["--workers", str(deed.workers), "--tenant", deed.tenant]
        words += [*self.job.options, "--epochs", str(deed.epochs), "--key", f"job {index}"]
        if deed.due:
            words += ["--deadline", f"{deed.due}s"]
        while not self._closed:
            done = self.driver.call(*words, timeout=None, codes=())
            if done.returncode in (0, 3):
                job = json.loads(done.stdout)["job"]
                self.acknowledged.append(Acknowledged(deed, job))
                self.ids[index] = job
                return
            if done.returncode == 2:
                raise InternalError(f"brim {' '.join(words)}: {done.stderr}")
            time.sleep(_POLL_INTERVAL)

    def _suspend(self, deed: Deed, _: int) -> None:
        job = self.ids[deed.job]
        if self._until_yes(deed, job, lambda client: client.suspend(job)):
            time.sleep(deed.seconds)
            self._until_yes(deed, job, lambda client: client.resume(job))

    def _resize(self, deed: Deed, _: int) -> None:
        job, workers = self.ids[deed.job], deed.workers
        assert workers is not None
        self._until_yes(deed, job, lambda client: client.resize(job, workers))

    def _cancel(self, deed: Deed, _: int) -> None:
        job = self.ids[deed.job]
        self._until_yes(deed, job, lambda client: client.cancel(job))

    def _apply(self, deed: Deed, _: int) -> None:
        self._until_yes(deed, "", lambda client: client.apply(self.cluster(deed)))

    def _down(self, deed: Deed, _: int) -> None:
        self.going_down = True
        if self._until_yes(deed, "", lambda client: client.down()):
            end = time.monotonic() + _TO_GO_DOWN
            while is_locked(self.state / SCHEDULER_LOCK) and time.monotonic() < end:
                time.sleep(_POLL_INTERVAL / 2)
        self.going_down = False
