"""Kills a master at one of its writes, once a run.

Python imports this by itself where it is on its path.

`DOOM=17:5:/path/of/marker` stands for: write 5 bytes of the 17th write (from 0), then die of
SIGKILL. A master writes its journal and its records with `os.pwrite`, and replaces files with
`os.replace`; both count.
"""

import os
import signal
import sys

if "DOOM" in os.environ and "brim.master" in sys.orig_argv:
    last, some, marker = os.environ["DOOM"].split(":", 2)
    writes = 0

    def _is_due() -> bool:
        global writes
        writes += 1
        if os.environ["DOOM"].startswith("count:"):
            with open(marker, "w") as file:
                file.write(str(writes))
            return False
        return writes == int(last) + 1 and not os.path.exists(marker)

    def _die() -> None:
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

    def _pwrite(file, data, place, write=os.pwrite):  # type: ignore[no-untyped-def]
        due = _is_due()
        if due:
            write(file, data[: int(some)], place)
            _die()
        return write(file, data, place)

    def _replace(source, target, replace=os.replace):  # type: ignore[no-untyped-def]
        if _is_due():
            _die()
        return replace(source, target)

    os.pwrite, os.replace = _pwrite, _replace
