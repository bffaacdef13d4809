"""`brim up` by today's code on the files of schedulers of earlier versions."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from brim.storage.migrations import FORMAT
from e2e.running import DIGITS, leftovers, until
from e2e.test_scheduler import Home
from edges.test_migrations import database_of, format_of
from tiers import long_after

pytestmark = pytest.mark.e2e


def moved(path: Path, folder: Path) -> None:
    """Let the jobs of a database have been submitted from a folder of this host."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        for number, content in sql.execute("select number, record from jobs").fetchall():
            record = msgspec.msgpack.decode(content)
            record["submission"]["spec"]["directory"] = str(folder)
            sql.execute(
                "update jobs set record = ? where number = ?",
                (msgspec.msgpack.encode(record), number),
            )


@pytest.mark.parametrize("format", long_after(1, [1, FORMAT - 1]))
def test_a_scheduler_reads_databases_of_earlier_versions(format: int, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.state.mkdir(mode=0o700)
    path = database_of(format, home.state)
    moved(path, tmp_path)
    shutil.copy(DIGITS, tmp_path / "digits.py")
    home.brim("up")
    assert f"a copy of the old file is in {path}.format-{format}" in home.err
    listing = home.brim("jobs", "--all")
    assert [line.split()[0] for line in listing.splitlines()[1:]] == [
        f"digits-{k}" for k in range(1, 5)
    ]
    assert "running" in home.brim("explain", "digits-1")
    assert home.job("digits-2").promised
    home.brim("cancel", "digits-2")
    assert home.finished("digits-4")["exit"] == "done"
    assert (
        home.brim("submit", "digits.py", "--tenant", "ads", "--epochs", "1").strip() == "digits-5"
    )
    assert home.finished("digits-5")["exit"] == "done"
    home.brim("report", "--cluster")
    home.brim("down")
    until(lambda: not leftovers(home.state), "the end of all")
    assert format_of(path) == FORMAT
