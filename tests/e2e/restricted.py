"""Containers as Kubernetes restricts them, made of namespaces.

The command is the first process, of an account without a name, a home or a capability. It can write
to its temporary directory and to one volume alone, where anybody may write, and the name of its host
leads nowhere.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from brim.process import children_of

ACCOUNT = 10001
_TOOLS = ("unshare", "mount", "setpriv")
_ENTER = f"""
set -e
hidden=$1 base=$2 volume=$3 shared=$4
shift 4
if [ -n "$hidden" ]; then
    mkdir -p "$volume.base"
    mount --bind "$base" "$volume.base"
    mount -t tmpfs -o mode=755 none "$hidden"
    mkdir -p "$base"
    mount --bind "$volume.base" "$base"
fi
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777,size=$shared none /dev/shm
mount --bind "$volume" "$volume"
mount -o remount,bind,ro /
echo nowhere > /proc/sys/kernel/hostname
cd /
unset HOME XDG_CACHE_HOME XDG_RUNTIME_DIR
export TMPDIR=/tmp
exec setpriv --reuid {ACCOUNT} --regid {ACCOUNT} --clear-groups --inh-caps=-all \\
    --bounding-set=-all --no-new-privs "$@"
"""


def can_restrict() -> bool:
    """Whether this process may make such containers."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS)


def restricted(volume: Path, *, shared: str = "64k") -> tuple[str, ...]:
    """The words in front of a command that runs in such a container.

    Args:
        volume: that it can write to; all accounts can reach its path.
        shared: size of /dev/shm.
    """
    volume.mkdir(exist_ok=True)
    volume.chmod(0o777)
    base = Path(sys.base_prefix)
    closed = [each for each in reversed(base.parents) if not each.stat().st_mode & 0o001]
    spaces = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
    hidden = str(closed[0]) if closed else ""
    return ("unshare", *spaces, "sh", "-c", _ENTER, "sh", hidden, str(base), str(volume), shared)


def first_process(unshare: int) -> int:
    """The process id out here of the first process in a container."""
    return children_of(unshare)[0]
