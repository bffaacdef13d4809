"""The loop of examples/05-parameter-servers, which ranks films."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import DEADLINE
from example_data import write_ratings

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_two_towers_find_more_films_than_popularity_does(tmp_path: Path) -> None:
    path = tmp_path / "u.data"
    write_ratings(path)
    loop = ROOT / "examples" / "05-parameter-servers" / "loop.py"
    done = subprocess.run(
        [sys.executable, str(loop), str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    results = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert float(results["hit rate"]) > 1.3 * float(results["by popularity"])
