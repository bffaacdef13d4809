"""The user of a cluster that is being broken: asks until each request is acknowledged."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from brim.client import Client
from brim.domain.cluster import ClusterSpec
from brim.domain.quantities import format_duration
from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import SystemClock
from brim.storage.contact import SCHEDULER_LOCK
from brim.storage.files import is_locked
from brim.wire.cluster import JobView
from brim.wire.listening import take_port
from brim_lab.chaos import answering
from brim_lab.chaos.deeds import Deed, DeedKind, describe_deed
from brim_lab.chaos.judging import Acknowledged, Span
from brim_lab.chaos.load import ServiceLoad
from brim_lab.chaos.results import Job
from brim_lab.driver import Driver

_POLL_INTERVAL = 0.1
_TO_GO_DOWN = 60.0
PER_REPLICA = 10  # requests a second that one replica of a service takes
_SERVICE_GRACE = 2.0  # seconds
_PORTS = range(20_000, 30_000)  # that the kernel gives to nobody by itself


@dataclass
class User:
    """The owner of everything; each deed has a thread of its own.

    Args:
        state: of the scheduler.
        cluster: what `apply` starts from.
        driver: of commands.

    Attributes:
        short: spans of time in which the scheduler said that nodes are gone.
        loads: of services, by the index of their submission.
        pauses: of services, when each was suspended and when it was resumed, by the same index.
        downs: when the scheduler was told to go down, and had heard it.
    """

    job: Job
    state: Path
    cluster: Callable[[Deed], ClusterSpec]
    driver: Driver
    acknowledged: list[Acknowledged] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    views: dict[str, JobView] = field(default_factory=dict)
    short: list[Span] = field(default_factory=list)
    loads: dict[int, ServiceLoad] = field(default_factory=dict)
    pauses: dict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    downs: list[float] = field(default_factory=list)
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
        for load in self.loads.values():
            load.close(patience=0.0)
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
            DeedKind.SERVE: self._serve,
            DeedKind.ASK: self._ask,
            DeedKind.RESTART: self._restart,
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
        words = [str(Path(self.job.file).resolve()), "--workers", str(deed.workers)]
        words += [*self.job.options, "--epochs", str(deed.epochs)]
        if deed.due:
            words += ["--deadline", f"{deed.due}s"]
        self._hand_in(deed, index, *words)

    def _serve(self, deed: Deed, index: int) -> None:
        """Submit a service, and begin to ask it."""
        with _free_port() as listener:
            port: int = listener.getsockname()[1]
        lines = {
            "name": "web",
            "command": [sys.executable, answering.__file__],
            "port": port,
            "replicas": str(deed.workers),
            "per-replica": PER_REPLICA,
            "health": answering.HEALTH,
            "grace": format_duration(_SERVICE_GRACE),
            "notice": "1s",
        }
        file = self.state.parent / f"service-{index}.yaml"
        file.write_text(json.dumps(lines) + "\n")  # JSON is YAML
        if self._hand_in(deed, index, "--service", str(file)):
            self.loads[index] = ServiceLoad(port, self._clock)

    def _hand_in(self, deed: Deed, index: int, *options: str) -> bool:
        """Submit a job until it is acknowledged; False where nobody waits for that any more."""
        words = ["submit", *options, "--json", "--state", str(self.state)]
        words += ["--tenant", deed.tenant, "--key", f"job {index}"]
        while not self._closed:
            done = self.driver.call(*words, timeout=None, codes=())
            if done.returncode in (0, 3):
                job = json.loads(done.stdout)["job"]
                self.acknowledged.append(Acknowledged(deed, job))
                self.ids[index] = job
                return True
            if done.returncode == 2:
                raise InternalError(f"brim {' '.join(words)}: {done.stderr}")
            time.sleep(_POLL_INTERVAL)
        return False

    def _ask(self, deed: Deed, _: int) -> None:
        self.loads[deed.job].rate = deed.rate

    def _restart(self, deed: Deed, _: int) -> None:
        job = self.ids[deed.job]
        self._until_yes(deed, job, lambda client: client.restart(job))

    def _suspend(self, deed: Deed, _: int) -> None:
        job, begin = self.ids[deed.job], self._clock.wall()
        if self._until_yes(deed, job, lambda client: client.suspend(job)):
            time.sleep(deed.seconds)
            self._until_yes(deed, job, lambda client: client.resume(job))
            self.pauses[deed.job].append((begin, self._clock.wall()))

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
            self.downs.append(self._clock.wall())
            end = time.monotonic() + _TO_GO_DOWN
            while is_locked(self.state / SCHEDULER_LOCK) and time.monotonic() < end:
                time.sleep(_POLL_INTERVAL / 2)
        self.going_down = False


def _free_port() -> socket.socket:
    """Listen on a port that no other process has, and that is given to none while nobody listens."""
    start = secrets.randbelow(len(_PORTS))  # several trials may be under way
    for port in (*_PORTS[start:], *_PORTS[:start]):
        with contextlib.suppress(OSError):
            return take_port("127.0.0.1", port)
    raise EnvironmentFault(f"all ports of {_PORTS.start}-{_PORTS.stop - 1} are taken")
