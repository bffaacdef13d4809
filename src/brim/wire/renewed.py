"""A certificate of a server that runs for longer than a certificate is good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from brim.host.clock import wall
from brim.wire.authority import Authority
from brim.wire.identity import LIFETIME, Identity, open_context, show

_LOOKS = 100  # at the clock, in half a certificate's life

_log = logging.getLogger(__name__)


class RenewedCertificate:
    """The certificate that a server shows to callers without one.

    Args:
        authority: issues it.
        role: of the server.
        addresses: names and addresses of this host, for callers that go by these.
        lifetime: seconds for which each one is good; after half of them there is another.
        now: reads the host's clock, by which certificates are judged, and which may be set.
    """

    def __init__(
        self,
        authority: Authority,
        role: str,
        *,
        addresses: tuple[str, ...] = (),
        lifetime: float = LIFETIME,
        now: Callable[[], float] = wall,
    ) -> None:
        self._authority, self._role, self._addresses = authority, role, addresses
        self._lifetime, self._now = lifetime, now
        self._renewed_at = now()
        self.context = open_context(self._issued())

    async def keep(self) -> None:
        """Renew it in time, for ever: handshakes that begin later see the new one."""
        while True:
            await asyncio.sleep(self._lifetime / 2 / _LOOKS)
            if not 0.0 <= self._now() - self._renewed_at < self._lifetime / 2:
                try:
                    self._renew()
                except OSError as error:
                    _log.warning("the certificate for clients was not renewed: %s", error)

    def _renew(self) -> None:
        renewal_start = self._now()
        show(self.context, self._issued())
        self._renewed_at = renewal_start

    def _issued(self) -> Identity:
        return self._authority.issue(self._role, addresses=self._addresses, for_s=self._lifetime)
