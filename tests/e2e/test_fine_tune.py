"""The example of fine-tuning: a base model with all weights, then an adapter through a death and a join."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tiers import LONG

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "09-fine-tune"
TO_END = 240.0  # seconds
pytestmark = [
    pytest.mark.e2e,
    LONG,
    pytest.mark.skipif(find_spec("peft") is None, reason="no package peft"),
]


def call(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=TO_END
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest_of(adapter: Path) -> str:
    return hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_adapters_are_equal_through_death_and_join(tmp_path: Path) -> None:
    call(tmp_path, str(EXAMPLE / "base.py"))
    options = ("--workers", "3", "--faults", "kill rank 1 at step 30; add 1 at step 40", "--json")
    said = call(
        tmp_path,
        *("-m", "brim", "run", *options, "--", sys.executable, str(EXAMPLE / "adapt.py"), "shared"),
    )
    assert "loss before" in call(tmp_path, str(EXAMPLE / "adapt.py"), "alone")
    summary = json.loads(said.splitlines()[-1])
    assert set(summary["world_sizes"]) >= {3, 4}
    assert digest_of(tmp_path / "shared") == digest_of(tmp_path / "alone")
    assert not (tmp_path / "shared" / "model.safetensors").exists()
