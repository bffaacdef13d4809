"""The command to type on another host to join a run that listens for agents."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from brim.wire.listening import joined_address, split_address

_ALL_INTERFACES = ("0.0.0.0", "::", "")


def invitation(address: str, *, token: str) -> str:
    """Return the command that joins a run whose master listens at this address."""
    host, port = split_address(address)
    # An address that means "every interface" here means nothing there.
    location = joined_address(socket.gethostname() if host in _ALL_INTERFACES else host, port)
    return f"join from another host: BRIM_TOKEN={token} brim agent {location}"


class Invitation:
    """Waits for a run's master to say where it listens; make it before the run is started.

    Args:
        run_dir: the run's directory; a contact that an earlier, killed master left in it is not
            believed.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "master.json"
        self._stale = self._read()
        self._was_shown = False

    def text(self) -> str | None:
        """The command to type, once, as soon as it is known."""
        contact = None if self._was_shown else self._read()
        if contact is None or contact == self._stale:
            return None
        self._was_shown = True
        return invitation(str(contact["address"]), token=str(contact["token"]))

    def _read(self) -> dict[str, Any] | None:
        try:
            contact: dict[str, Any] = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        return contact
