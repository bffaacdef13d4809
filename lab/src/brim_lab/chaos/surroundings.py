"""Where a trial happens: a scratch directory, an environment, and a mark that all its processes
carry.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path

from brim_lab.chaos.processes import Marked


class Surroundings:
    """Of one trial; nothing of it is left once `close` returns.

    Args:
        directory: keeps what torch makes and keeps for itself.
    """

    def __init__(self, directory: Path) -> None:
        self.scratch = Path(
            tempfile.mkdtemp(prefix="brim-chaos-")
        )  # short, as a socket's path must be
        self.marked = Marked(uuid.uuid4().hex)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BRIM_")},
            **self.marked.environment,
            "TMPDIR": str(self.scratch),
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "torch"),  # torch's own, made and kept by it
        }

    def close(self) -> None:
        self.marked.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)
