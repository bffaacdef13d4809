"""The loop of examples/05-parameter-servers, which ranks films, on the ratings that it is written
for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("BRIM_TEST_DATA", ROOT.parent / "shared" / "data"))
RATINGS = DATA / "movielens" / "ml100k_data.parquet"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not RATINGS.exists(), reason=f"no {RATINGS}: set BRIM_TEST_DATA to its folder"
    ),
]


def test_two_towers_find_more_films_than_popularity_does(tmp_path: Path) -> None:
    path = tmp_path / "u.data"  # as it is published
    rows = (
        parquet.read_table(RATINGS)
        .select(["user_id", "movie_id", "rating", "timestamp"])
        .to_pylist()
    )
    path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
    loop = ROOT / "examples" / "05-parameter-servers" / "loop.py"
    done = subprocess.run(
        [sys.executable, str(loop), str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert float(said["hit rate"]) > 1.3 * float(said["by popularity"])
