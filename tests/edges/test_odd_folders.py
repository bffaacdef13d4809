"""Processes of brim run no code from the folder that they start in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from brim.host.process import run_module
from tiers import long_after

pytestmark = pytest.mark.cold
SHADOWS = ("http", "json", "asyncio", "msgspec", "torch", "grpc", "brim", "logging", "random")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a user has files that are called as modules are."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was run')")
    return tmp_path


@pytest.mark.parametrize(
    "module", long_after(2, ["brim.backends.up", "brim.agent", "brim.master", "brim.node"])
)
def test_process_imports_nothing_from_its_folder(folder: Path, module: str) -> None:
    done = subprocess.run(
        run_module(module, "--help"), cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout
