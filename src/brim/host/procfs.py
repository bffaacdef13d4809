"""Files below `/proc`, in which the kernel tells of processes.

Names and paths in them need not be text.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_proc(path: str) -> str:
    """Return the content of a file below `/proc`.

    Other bytes in it are kept as Python keeps them in file names: `os.fsencode` gives them back.

    Raises:
        OSError: there is none, the process has ended, or it is another account's.
    """
    return os.fsdecode(Path(path).read_bytes())
