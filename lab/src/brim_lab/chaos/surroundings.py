"""The scratch directory of a trial, and a driver that leaves nothing anywhere else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from brim_lab.driver import Driver


class Surroundings:
    """The surroundings of one trial; nothing of them is left once `close` returns.

    Args:
        directory: that commands are typed in; it keeps what torch makes and keeps for itself.
        variables: of the environment.
    """

    def __init__(self, directory: Path, **variables: str) -> None:
        self.scratch = Path(
            tempfile.mkdtemp(prefix="brim-chaos-")
        )  # short, as a socket's path must be
        self.driver = Driver(
            directory,
            TMPDIR=str(self.scratch),
            TORCHINDUCTOR_CACHE_DIR=str(directory / "torch"),  # torch's own, made and kept by it
            **variables,
        )

    def close(self) -> None:
        self.driver.end()
        shutil.rmtree(self.scratch, ignore_errors=True)
