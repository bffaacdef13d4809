"""The clock of a state directory's schedulers.

The next scheduler goes on by it, so that a promise is kept by one clock.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from brim.decoding import UNDECODABLE
from brim.host.clock import SystemClock
from brim.storage.files import write_whole

_FILE = "clock.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _StoredClock(msgspec.Struct, frozen=True, kw_only=True):
    boot: str
    offset: float


def own_clock(state_dir: Path, *, keep: bool = False) -> SystemClock:
    """The clock of the directory's last scheduler, where the host has not been restarted since.

    Else the host's.

    Args:
        keep: the next scheduler is to go on by it; only the present one may say so.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return SystemClock()  # nobody can tell what the seconds of an earlier life mean
    with contextlib.suppress(OSError, *UNDECODABLE):
        kept_clock = msgspec.json.decode((state_dir / _FILE).read_bytes(), type=_StoredClock)
        if kept_clock.boot == boot:
            return SystemClock(offset=kept_clock.offset)
    clock = SystemClock()
    if keep:
        with contextlib.suppress(
            OSError
        ):  # a full disk: the next one reads the host's, as this one does
            content = msgspec.json.encode(_StoredClock(boot=boot, offset=clock.offset))
            write_whole(state_dir / _FILE, content, mode=0o600, is_sole_writer=True)
    return clock
