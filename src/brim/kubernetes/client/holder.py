"""Holds a Lease of Kubernetes while something is done that one process alone may do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import msgspec

from brim.errors import EnvironmentFault, ProtocolError, SpecError
from brim.host.clock import SystemClock, monotonic, wall
from brim.kubernetes.client.access import Access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.lease import (
    Candidate,
    LeaseSeen,
    LeaseTerms,
    LookAtLease,
    WaitForLease,
    WriteLease,
)
from brim.kubernetes.client.outages import Outages
from brim.kubernetes.client.own_thread import OwnThread
from brim.kubernetes.client.refusals import Conflict, NotFound
from brim.kubernetes.client.resources import Resource
from brim.kubernetes.client.times import read_time

_RELEASED = 1  # seconds that a released Lease says it lasts, as client-go writes
_SIGN, _SILENCE = 1.0, 60.0  # seconds between two signs of life, and without one
_log = logging.getLogger(__name__)


class LeaseLost(EnvironmentFault):
    """The Lease could not be renewed in time, or another process has it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class _LeaseMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(msgspec.Struct, frozen=True, rename="camel"):
    """A Lease as the API server has it."""

    metadata: _LeaseMetadata
    spec: _LeaseSpec | None = None
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"

    def seen(self) -> LeaseSeen:
        """Return it as the rules know it."""
        spec = self.spec or _LeaseSpec()
        return LeaseSeen(
            version=self.metadata.resource_version,
            holder=spec.holder_identity or "",
            duration=float(spec.lease_duration_seconds or 0),
            transitions=spec.lease_transitions or 0,
            acquired=spec.acquire_time or "",
            renewed=spec.renew_time or "",
        )


LEASES = Resource("coordination.k8s.io/v1", "leases", LeaseObject)


class LeaseHolder:
    """Waits for a Lease, holds it while work is done, and releases it.

    It calls the API server from a thread of its own, by connections of its own. So renewals never
    wait behind other requests, nor for an event loop that has much to do. One that stands still for
    a minute holds it no longer.

    Args:
        access: to the API server.
        namespace: of the Lease.
        name: of the Lease. Nobody may delete it while it is held: another process could make it.
        identity: that no other process ever has, such as a pod's name and uid.
        terms: the times.
        now: seconds of a clock that nobody sets and that goes on while the host sleeps, as other
            hosts do; None: that of this host.
        answered: see `ApiServer`.
        outages: of the server. They begin where the Lease is got, with the time since it was
            renewed last; then they are told of the renewals.
    """

    def __init__(
        self,
        access: Access,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: LeaseTerms | None = None,
        now: Callable[[], float] | None = None,
        answered: Callable[[str, int], None] = lambda verb, code: None,
        outages: Outages | None = None,
    ) -> None:
        self._outages = outages or Outages()
        self._last_renewal = ""  # by whoever held it before
        self._access, self._namespace, self._name = access, namespace, name
        self._identity, self._terms = identity, terms or LeaseTerms()
        self._candidate = Candidate(identity, self._terms)
        self._server: ApiServer | None = None
        self._now = now or SystemClock().wall
        self._answered = answered
        self._acted = self._heard_at = self._turned = self._now()
        self._is_over = False  # the work has ended

    @property
    def idle(self) -> float:
        """The seconds since it last asked for the Lease, or waited to."""
        return self._now() - self._acted

    @property
    def unheard(self) -> float:
        """The seconds since the API server last named the Lease's holder."""
        return self._now() - self._heard_at

    @property
    def holder(self) -> str:
        """The identity of the holder as it was last seen; empty: none."""
        return self._candidate.holder

    def holds(self) -> bool:
        """Return whether the Lease is held at this moment.

        To be asked before each write, as `ApiServer` does by `may_write`: a process that was
        stopped for a while goes on where it was, and holds the Lease no longer.
        """
        return self._candidate.holds(self._now())

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, then do the work; release the Lease once it has ended.

        Raises:
            LeaseLost: it was lost, and the work was cancelled. It should end the process: what the
                work has begun and not ended is unknown.
        """
        acquired, self._is_over = asyncio.Event(), False
        turning = asyncio.create_task(self._turn())
        keeper = OwnThread(lambda thread: self._hold(thread, acquired), name="brim-lease")
        waiting = asyncio.create_task(acquired.wait())
        try:
            await asyncio.wait((waiting, keeper.ended), return_when=asyncio.FIRST_COMPLETED)
            if acquired.is_set():
                _log.info("the Lease %s/%s is held", self._namespace, self._name)
                self._outages.begin(monotonic(), before=_seconds_since(self._last_renewal))
                await self._work(work, keeper)
        finally:
            keeper.cancel()
            await asyncio.wait((keeper.ended,))
            turning.cancel()
            waiting.cancel()
        if not keeper.ended.cancelled():
            keeper.ended.result()  # it was lost

    async def _work(self, work: Callable[[], Awaitable[None]], keeper: OwnThread) -> None:
        """Do the work while the Lease is held."""
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait((working, keeper.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            await asyncio.wait((working, keeper.ended), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # the Lease was lost, and others may have it soon
                to_end = self._terms.duration - self._terms.renew_within
                await asyncio.wait((working,), timeout=to_end)
            self._is_over = working.done()
            if not self._is_over:
                _log.critical("what the holder alone may do has not ended: end this process")
        if not keeper.ended.done():
            working.result()

    async def _turn(self) -> None:
        """Give signs of life, while the event loop of the work turns."""
        while True:
            self._turned = self._now()
            await asyncio.sleep(_SIGN)

    # In a thread of its own -----------------------------------------------------------------------

    async def _hold(self, thread: OwnThread, acquired: asyncio.Event) -> None:
        """Get the Lease, and keep it until cancelled; then release it where the work has ended."""
        timeout = self._terms.renew_within / 2
        async with ApiServer(
            self._access,
            timeout=timeout,
            answered=partial(thread.tell, self._answered),
            outages=ThreadOutages(thread, self._outages),
        ) as server:
            self._server = server
            await self._acquire()
            thread.tell(acquired.set)
            try:
                await self._keep()
            finally:
                if self._is_over and self.holds():
                    with contextlib.suppress(EnvironmentFault, ProtocolError):
                        await self._release()

    async def _acquire(self) -> None:
        last_holder = ""
        while not self.holds():
            if self.holder not in ("", last_holder):
                last_holder = self.holder
                _log.info("%s holds the Lease %s/%s", last_holder, self._namespace, self._name)
            await self._act()

    async def _keep(self) -> None:
        """Renew the Lease until it is lost."""
        while self.holds():
            silence = self._now() - self._turned
            if silence > _SILENCE:
                raise self._lost(f"nothing has been done for {silence:.0f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._candidate.holds_until - self._now()):
                    await self._act()
        own_identity = self.holder
        if own_identity not in ("", self._identity):
            raise self._lost(f"{own_identity} has it")
        raise self._lost(f"it was not renewed in {self._terms.renew_within:g} s")

    def _lost(self, reason: str) -> LeaseLost:
        return LeaseLost(f"the Lease {self._namespace}/{self._name} was lost: {reason}")

    async def _release(self) -> None:
        assert self._server is not None
        lease = await self._server.get(LEASES, self._name, namespace=self._namespace)
        if write := self._candidate.release(lease.seen()):
            await self._written(write)

    async def _act(self) -> None:
        """Obey the rules, once."""
        self._acted = self._now()
        match self._candidate.step(self._now()):
            case WaitForLease(wait_end):
                await asyncio.sleep(max(0.0, wait_end - self._now()))
            case LookAtLease():
                await self._look()
            case WriteLease() as write:
                await self._write(write)

    async def _look(self) -> None:
        assert self._server is not None
        try:
            lease = await self._server.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            self._heard_at = self._now()
            self._candidate.looked(self._heard_at, None)
        except (EnvironmentFault, ProtocolError) as error:
            self._say(error)
            self._candidate.failed(self._now(), changed=False)
        else:
            self._heard_at = self._now()
            self._candidate.looked(self._heard_at, lease.seen())
            if not self.holds():
                self._last_renewal = lease.seen().renewed

    async def _write(self, write: WriteLease) -> None:
        sent = self._now()
        try:
            lease = await self._written(write)
        except (Conflict, NotFound):
            self._candidate.failed(self._now(), changed=True)
        except (EnvironmentFault, ProtocolError) as error:
            self._say(error)
            self._candidate.failed(self._now(), changed=False)
        else:
            self._heard_at = self._now()
            self._candidate.written(sent, lease.seen())

    async def _written(self, write: WriteLease) -> LeaseObject:
        assert self._server is not None
        now = datetime.fromtimestamp(wall(), UTC).isoformat(timespec="microseconds")
        now = now.replace("+00:00", "Z")
        duration = math.ceil(self._terms.duration) if write.holder else _RELEASED
        lease = LeaseObject(
            _LeaseMetadata(self._name, self._namespace, write.version),
            _LeaseSpec(
                holder_identity=write.holder,
                lease_duration_seconds=duration,
                acquire_time=write.acquired or now,
                renew_time=now,
                lease_transitions=write.transitions,
            ),
        )
        if not write.version:
            return await self._server.create(LEASES, lease, namespace=self._namespace)
        return await self._server.replace(LEASES, self._name, lease, namespace=self._namespace)

    def _say(self, error: Exception) -> None:
        _log.warning("the Lease %s/%s: %s", self._namespace, self._name, error)


class ThreadOutages(Outages):
    """Outages of which another thread is told."""

    def __init__(self, thread: OwnThread, outages: Outages) -> None:
        super().__init__()
        self._thread, self._outages = thread, outages

    def answered(self, now: float) -> None:
        self._thread.tell(self._outages.answered, now)

    def unanswered(self, sent: float) -> None:
        self._thread.tell(self._outages.unanswered, sent)


def _seconds_since(renewed: str) -> float:
    """Return the seconds since a renewal, as far as the clocks of hosts agree; 0: of none."""
    try:
        return max(0.0, wall() - read_time(renewed, field="spec.renewTime"))
    except SpecError:
        return 0.0
