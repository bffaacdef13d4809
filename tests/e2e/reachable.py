"""Commands that an account may run although it cannot enter the folder that brim's code lies in, such as
a checkout in root's home: there is another folder of that name, in a namespace of mounts, with the
code alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from brim_lab.chaos.hosts import CODE, SHOW

_CODE = (sys.base_prefix, *CODE)


def reachable(
    *, spaces: tuple[str, ...] = (), hide: str = "", last_command: str = ""
) -> tuple[str, ...]:
    """The words in front of such a command; none where all accounts reach the code anyway.

    Args:
        spaces: further namespaces of it, as options of unshare.
        hide: lines of a shell that mount other things over folders in which the code may lie.
        last_command: lines that come once it is reachable.
    """
    closed = {
        str(parent)
        for closed_folder in map(Path, _CODE)
        for parent in closed_folder.parents
        if not parent.stat().st_mode & 0o001
    }
    outer = sorted(folder for folder in closed if closed.isdisjoint(map(str, Path(folder).parents)))
    if not (outer or spaces):
        return ()
    script = f"""
set -e
{SHOW}
base=$1 checkout=$2 prefix=$3 closed=$4
shift 4
exec 3<"$base" 4<"$checkout" 5<"$prefix"
for place in $closed; do
    mount -t tmpfs -o mode=755 none "$place"
done
{hide}
show 3 "$base"
show 4 "$checkout"
show 5 "$prefix"
exec 3<&- 4<&- 5<&-
{last_command or 'exec "$@"'}
"""
    return ("unshare", "--mount", *spaces, "sh", "-c", script, "sh", *_CODE, " ".join(outer))


def can_be_reachable() -> bool:
    """Whether this process may have namespaces of mounts."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0
