"""Containers as Kubernetes restricts them, made of namespaces.

The command is the first process, of an account without a name, a home or a capability. It can write
to its temporary directory and to one volume alone, where anybody may write, and the name of its host
leads nowhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from brim.host.process import children_of
from e2e.reachable import reachable

ACCOUNT = 10001
_TOOLS = ("unshare", "mount", "setpriv")
_SPACES = ("--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")


def can_restrict() -> bool:
    """Whether this process may make such containers."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS)


def restricted(volume: Path, *, shared: str = "64k", temporary: bool = True) -> tuple[str, ...]:
    """The words in front of a command that runs in such a container.

    Args:
        volume: that it can write to; all accounts can reach its path.
        shared: size of /dev/shm.
        temporary: it can write to /tmp; else to no folder for temporary files.
    """
    volume.mkdir(exist_ok=True)
    volume.chmod(0o777)
    hide = f"""
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777,size={shared} none /dev/shm
"""
    close = """
mount -o remount,ro /tmp
for place in /var/tmp /usr/tmp; do
    [ ! -d $place ] || mount -t tmpfs -o ro none $place
done
"""
    script = f"""
mount --bind "{volume}" "{volume}"
mount -o remount,bind,ro /
echo nowhere > /proc/sys/kernel/hostname
{"" if temporary else close}
cd /
unset HOME XDG_CACHE_HOME XDG_RUNTIME_DIR
export TMPDIR=/tmp
exec setpriv --reuid {ACCOUNT} --regid {ACCOUNT} --clear-groups --inh-caps=-all \\
    --bounding-set=-all --no-new-privs "$@"
"""
    return reachable(spaces=_SPACES, hide=hide, last_command=script)


def first_process(unshare: int) -> int:
    """The process id out here of the first process in a container."""
    return children_of(unshare)[0]
