"""Data of any kind: the same weights for any number of workers and of processes that read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.running import DEADLINE, FILES, ledger, started
from tiers import long_after

pytestmark = pytest.mark.e2e

LOOP = str(FILES / "own_data.py")
FAULTS = "kill rank 1 at step 10; add 1 at step 20; term rank 0 at step 30"


def run(directory: Path, kind: str, *options: str) -> dict[str, Any]:
    with started(directory, "run", *options, "--", sys.executable, LOOP, kind) as job:
        summary = job.finish()
        assert job.process.returncode == 0, job.err
    return summary


def digest_alone(kind: str) -> str:
    """The digest of the script by itself."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BRIM_")}
    done = subprocess.run(
        [sys.executable, LOOP, kind],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=DEADLINE,
    )
    return done.stdout.split()[-1]


@pytest.mark.parametrize(
    ("kind", "loaders", "counted"),
    long_after(
        1, [("stream", "1", "contents"), ("loader", "0", "samples"), ("weighted", "1", "positions")]
    ),
)
def test_any_data_gives_equal_weights_through_deaths(
    kind: str, loaders: str, counted: str, tmp_path: Path
) -> None:
    options = ("--workers", "3", "--faults", FAULTS)
    summary = run(tmp_path / "run", kind, *options, "--loaders", loaders)
    assert summary["weights_sha256"] == digest_alone(kind)
    proof = ledger(tmp_path / "run")
    assert (proof["exact"], proof["counted"], len(proof["epochs"])) == (True, counted, 4)
