"""The process of an operator: it schedules while it holds its Lease."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from brim.clock import SystemClock
from brim.kubernetes.access import Access
from brim.kubernetes.api_server import ApiServer
from brim.kubernetes.holder import LeaseHolder
from brim.kubernetes.manifests import NAME
from brim.kubernetes.operator import Operator, OperatorSettings

_QPS, _BURST = 200.0, 300  # requests a second: 20, as clients of Go have, limits everything else


async def serve(access: Access, settings: OperatorSettings, identity: str) -> None:
    """Schedule while the Lease is held, until SIGTERM: that leaves the jobs training.

    Args:
        identity: that no other process ever has.
    """
    holder = LeaseHolder(access, namespace=settings.namespace, name=NAME, identity=identity)

    async def work() -> None:
        async with ApiServer(access, qps=_QPS, burst=_BURST, may_write=holder.holds) as server:
            await Operator(server, settings, clock=SystemClock()).run()

    serving = asyncio.ensure_future(holder.run(work))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
