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
from brim_lab.chaos.hosts import CODE, SHOW

ACCOUNT = 10001
_TOOLS = ("unshare", "mount", "setpriv")
_ENTER = f"""
set -e
{SHOW}
volume=$1 shared=$2 base=$3 checkout=$4 prefix=$5 hidden=$6
shift 6
exec 3<"$base" 4<"$checkout" 5<"$prefix"
for place in $hidden; do
    mount -t tmpfs -o mode=755 none "$place"
done
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777,size=$shared none /dev/shm
show 3 "$base"
show 4 "$checkout"
show 5 "$prefix"
exec 3<&- 4<&- 5<&-
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
    code = sys.base_prefix, *CODE
    # The account may not enter these: what it needs of them is shown in another folder of the name.
    closed = {
        str(parent)
        for each in map(Path, code)
        for parent in each.parents
        if not parent.stat().st_mode & 0o001
    }
    outer = sorted(each for each in closed if closed.isdisjoint(map(str, Path(each).parents)))
    spaces = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
    given = (str(volume), shared, *code, " ".join(outer))
    return ("unshare", *spaces, "sh", "-c", _ENTER, "sh", *given)


def first_process(unshare: int) -> int:
    """The process id out here of the first process in a container."""
    return children_of(unshare)[0]
