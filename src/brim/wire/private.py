"""Unix sockets in folders of our own.

No other user of this host can call there, or listen there in our place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.account import acting_uid

_DESCRIPTORS = Path("/proc/self/fd")


def control_folder(run_dir: Path) -> Path:
    """Return the folder of a run in which its master is called."""
    return run_dir / "control"


def make_private(folder: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there must be such a folder.

    Raises:
        EnvironmentFault: it cannot be made, or is somebody else's.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error}") from error
    PrivateFolder(folder).close()
    return folder


class PrivateFolder:
    """A folder that is held open, so that it cannot be exchanged.

    Args:
        folder: where the sockets are.
        called: a socket in it is only called. Root may call those of every user: a scheduler asks
            the masters of tenants.

    Raises:
        EnvironmentFault: there is none, or another user can enter it.
    """

    def __init__(self, folder: Path, *, called: bool = False) -> None:
        self._folder = folder
        try:
            self._descriptor = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError as error:
            raise EnvironmentFault(f"cannot open {folder}: {error.strerror}") from error
        found = os.fstat(self._descriptor)
        is_ours = acting_uid() == found.st_uid or (called and acting_uid() == 0)
        if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
            self.close()
            raise EnvironmentFault(
                f"{folder} must belong to the user of this process, with mode 0700: another user "
                "may listen in it"
            )

    def path(self, name: str) -> str:
        """Return a path of a socket in it that is short enough for one, wherever the folder is."""
        if _DESCRIPTORS.exists():
            return f"{_DESCRIPTORS}/{self._descriptor}/{name}"
        return str(self._folder / name)

    def close(self) -> None:
        """Let go of it; paths that `path` gave are of no use any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
