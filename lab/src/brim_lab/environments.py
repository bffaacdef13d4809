"""Python environments with packages that brim does not depend on, made by uv for a test or a benchmark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from brim.errors import EnvironmentFault

TO_INSTALL = 900.0  # seconds


def python_with(packages: Sequence[str], folder: Path) -> str:
    """Return the Python of a new environment.

    Args:
        packages: that it has, with their versions.
        folder: of the environment.

    Raises:
        EnvironmentFault: there is no uv, or the packages cannot be had.
    """
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        raise EnvironmentFault("uv is not installed")
    python = str(folder / "bin" / "python")
    for words in (
        ("venv", "--python", sys.executable, str(folder)),
        ("pip", "install", "--python", python, *packages),
    ):
        done = subprocess.run(
            [uv, *words], capture_output=True, text=True, timeout=TO_INSTALL, check=False
        )
        if done.returncode:
            raise EnvironmentFault(f"uv {words[0]}: {done.stderr.strip()[-500:]}")
    return python
