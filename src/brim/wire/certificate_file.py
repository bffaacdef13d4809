"""A certificate that a file holds, which its owner renews."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

from brim.errors import EnvironmentFault

_POLL_INTERVAL = 2.0  # seconds between two looks at the files

_log = logging.getLogger(__name__)


class CertificateFile:
    """Certificate of a server, for clients that know it by an authority of theirs.

    Args:
        path: its certificate, with those of the authorities that signed it behind it; PEM.
        key: the certificate's; None: in the same file.

    Attributes:
        context: of TLS.

    Raises:
        EnvironmentFault: they cannot be read, or are none.
    """

    def __init__(self, path: Path, key: Path | None) -> None:
        self._path, self._key = path, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.num_tickets = 0  # each connection is verified: a certificate may expire
        self._load()
        self._seen = self._stamps()

    async def keep(self) -> None:
        """Show another certificate once there is one, for ever: handshakes that begin later see it."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            try:
                if (seen := self._stamps()) != self._seen:
                    self._seen = seen
                    self._load()
            except (EnvironmentFault, OSError) as error:
                _log.warning("the certificate for clients is still the one of before: %s", error)

    def _load(self) -> None:
        """Raises EnvironmentFault; the previous certificate is shown on, then."""
        try:
            # A context that takes half of it shows nothing: see first whether all of it is good.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(self._path, self._key, password=_nobody_to_ask)
        except OSError as error:  # of ssl as well
            reason = error.strerror or str(error)
            if isinstance(error, ssl.SSLError):
                reason = "no certificate with its key, in PEM and not encrypted"
            paths = str(self._path) if self._key is None else f"{self._path} and {self._key}"
            raise EnvironmentFault(f"cannot use the certificate in {paths}: {reason}") from error

    def _stamps(self) -> list[tuple[int, int]]:
        """Return marks that tell files from earlier ones; raises OSError."""
        found = [os.stat(path) for path in (self._path, self._key) if path is not None]
        return [(status.st_mtime_ns, status.st_ino) for status in found]


def _nobody_to_ask() -> str:
    """Return no password: `ssl` would ask for one on the terminal."""
    return ""
