"""The process of an operator: it schedules while it holds its Lease, and tells how it is."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable

from brim.host.clock import SystemClock
from brim.host.process import open_many_files
from brim.kubernetes.client.access import Access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.holder import LeaseHolder
from brim.kubernetes.client.outages import Outages
from brim.kubernetes.install.manifests import NAME
from brim.kubernetes.metrics import Requests, metrics_of
from brim.kubernetes.operator import Operator
from brim.kubernetes.probes import Signs, application
from brim.kubernetes.settings import OperatorSettings
from brim.telemetry.prometheus import MetricFamily
from brim.wire.door import BACKLOG, Door, answering
from brim.wire.listening import listen_on, split_address

_QPS, _BURST = 200.0, 300  # requests a second: 20, as clients of Go have, limits everything else
_TO_END = 1  # seconds for requests that are under way when it ends


class OperatorProcess:
    """A process that schedules while it holds the Lease, and waits for it until then.

    Args:
        identity: that no other process ever has.
    """

    def __init__(self, access: Access, settings: OperatorSettings, identity: str) -> None:
        self._access, self._settings = access, settings
        self._requests = Requests()
        self._outages = Outages()
        self._operator: Operator | None = None
        self._holder = LeaseHolder(
            access,
            namespace=settings.namespace,
            name=NAME,
            identity=identity,
            answered=self._requests.answered,
            outages=self._outages,
        )

    async def run(self) -> None:
        """Schedule while the Lease is held; see `LeaseHolder.run`."""
        await self._holder.run(self._schedule)

    async def _schedule(self) -> None:
        async with ApiServer(
            self._access,
            qps=_QPS,
            burst=_BURST,
            may_write=self._holder.holds,
            answered=self._requests.answered,
            outages=self._outages,
        ) as server:
            self._operator = Operator(server, self._settings, clock=SystemClock())
            await self._operator.run()

    def signs(self) -> Signs:
        """Return its signs of life."""
        holder, operator = self._holder, self._operator
        return Signs(
            holds=holder.holds(),
            begun=operator is not None and operator.has_begun,
            unheard=holder.unheard,
            idle=holder.idle if operator is None else operator.idle,
        )

    def metrics(self) -> Iterable[MetricFamily]:
        """Return its metrics."""
        cluster = self._operator.figures() if self._operator is not None else None
        counts = self._requests.counts
        return metrics_of(holds=self._holder.holds(), requests=counts, cluster=cluster)


async def serve(
    access: Access, settings: OperatorSettings, identity: str, *, listen: str = ""
) -> None:
    """Schedule while the Lease is held, until SIGTERM: that leaves the jobs training.

    Args:
        identity: that no other process ever has.
        listen: `HOST:PORT` at which it tells how it is; empty: nowhere.
    """
    open_many_files()  # each run that is followed has a connection and files
    process = OperatorProcess(access, settings, identity)
    async with contextlib.AsyncExitStack() as stack:
        if listen:
            host, port = split_address(listen)
            listener = listen_on(host, port, backlog=BACKLOG, hint="--listen names another port")
            answers = application(process.signs, process.metrics)
            await stack.enter_async_context(answering(answers, listener, Door(), to_end=_TO_END))
        serving = asyncio.ensure_future(process.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
