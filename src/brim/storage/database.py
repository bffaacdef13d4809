"""The scheduler's database: one SQLite file, and the only SQL there is."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from brim.errors import EnvironmentFault

__all__ = ["CycleRow", "Database"]

_FORMAT = 3
_CYCLES_KEPT = 20_000
_CYCLE_BYTES_KEPT = 256 * 2**20  # a cycle of many jobs is large
_FORGET_EVERY = 100  # cycles: what is kept is counted then, which takes too long for each of them

_TABLES = """
create table jobs (number integer primary key, id text unique not null, record blob not null) strict;
create table history (
    number integer primary key, at real not null, job text not null, event text not null,
    before integer not null, after integer not null, reason text not null, detail text not null
) strict;
create index history_by_job on history (job, number);
create table cycles (
    number integer primary key, at real not null, policy text not null, content blob not null, memory blob not null
) strict;
create table measurements (
    fingerprint text not null, workers integer not null, steps real not null, seconds real not null,
    primary key (fingerprint, workers)
) strict;
create table amounts (fingerprint text primary key, steps_per_epoch integer not null) strict;
create table settings (name text primary key, value blob not null) strict;
"""

_CYCLES = "select number, policy, content, memory from cycles"

# The newest are kept: as many as there is room for, and one more, so that there is always a last one.
_FORGET_CYCLES = """
delete from cycles where number <= :oldest or number < (
    select max(number) from (
        select number, sum(length(content) + length(memory)) over (order by number desc) as bytes from cycles
    ) where bytes > :most
)
"""

HistoryRow = tuple[float, str, str, int, int, str, str]


class CycleRow(NamedTuple):
    """A cycle as it is kept; they are numbered from 1, and the memory is what it left to the next."""

    number: int
    policy: str
    content: bytes
    memory: bytes


class Database:
    """Rows in, rows out; each call is one transaction, on disk when it returns, and so is each `together`.

    Args:
        path: the file; made if it is missing.

    Raises:
        EnvironmentFault: it cannot be opened, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._sql = sqlite3.connect(path, isolation_level=None)
            self._sql.execute("pragma journal_mode = wal")
            self._sql.execute("pragma synchronous = full")
            self._prepare(path)
        except sqlite3.Error as error:
            raise EnvironmentFault(f"cannot open {path}: {error}") from error

    def _prepare(self, path: Path) -> None:
        (format,) = self._sql.execute("pragma user_version").fetchone()
        if format == 0:
            self._sql.executescript(f"begin; {_TABLES} pragma user_version = {_FORMAT}; commit;")
        elif format != _FORMAT:
            raise EnvironmentFault(
                f"{path} has format {format}, this version of brim reads {_FORMAT}\n"
                f"  hint: brim down by the version that wrote it, then begin anew: mv {path.parent} {path.parent}.old"
            )

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is written within is kept as a whole or not at all; nobody may wait for anything within."""
        if self._sql.in_transaction:
            yield  # it belongs to something larger
            return
        self._sql.execute("begin")
        try:
            yield
        except BaseException:
            self._sql.execute("rollback")
            raise
        self._sql.execute("commit")

    # Jobs --------------------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[bytes]:
        """The records of all jobs, by order of submission."""
        for (record,) in self._sql.execute("select record from jobs order by number"):
            yield record

    def next_number(self) -> int:
        """The number of the next job, from 1."""
        (last,) = self._sql.execute("select coalesce(max(number), 0) from jobs").fetchone()
        return int(last) + 1

    def put_job(self, number: int, id: str, record: bytes) -> None:
        self._sql.execute("insert or replace into jobs values (?, ?, ?)", (number, id, record))

    # History -----------------------------------------------------------------------------------------------

    def add_history(self, row: HistoryRow) -> None:
        names = "at, job, event, before, after, reason, detail"
        self._sql.execute(f"insert into history ({names}) values (?, ?, ?, ?, ?, ?, ?)", row)

    def history(self, job: str) -> list[HistoryRow]:
        """What happened to a job: at, job, event, before, after, reason, detail.

        Estimates, which were once written there every 15 s, are left out: nobody reads them.
        """
        names = "at, job, event, before, after, reason, detail"
        query = f"select {names} from history where job = ? and event != 'estimate' order by number"
        return self._sql.execute(query, (job,)).fetchall()

    # Cycles ------------------------------------------------------------------------------------------------

    def add_cycle(self, at: float, policy: str, content: bytes, memory: bytes) -> None:
        """Keep a cycle, and forget the oldest beyond what is kept.

        Args:
            memory: what it leaves to the next one.
        """
        names = "at, policy, content, memory"
        done = self._sql.execute(
            f"insert into cycles ({names}) values (?, ?, ?, ?)", (at, policy, content, memory)
        )
        number = done.lastrowid or 0
        if number % _FORGET_EVERY == 0:
            limits = {"oldest": number - _CYCLES_KEPT, "most": _CYCLE_BYTES_KEPT}
            self._sql.execute(_FORGET_CYCLES, limits)

    def cycles(self) -> Iterator[CycleRow]:
        """Every cycle that is kept, in order."""
        yield from map(CycleRow._make, self._sql.execute(f"{_CYCLES} order by number"))

    def cycle_after(self, at: float) -> CycleRow | None:
        """The first cycle after that time."""
        row = self._sql.execute(f"{_CYCLES} where at > ? order by number limit 1", (at,)).fetchone()
        return CycleRow(*row) if row else None

    def last_cycle(self) -> CycleRow | None:
        row = self._sql.execute(f"{_CYCLES} order by number desc limit 1").fetchone()
        return CycleRow(*row) if row else None

    # What jobs taught --------------------------------------------------------------------------------------

    def put_measurements(self, fingerprint: str, totals: dict[int, tuple[float, float]]) -> None:
        rows = [(fingerprint, workers, *total) for workers, total in totals.items()]
        with self.together():
            self._sql.executemany("insert or replace into measurements values (?, ?, ?, ?)", rows)

    def measurements(self, fingerprint: str) -> dict[int, tuple[float, float]]:
        """(steps, seconds) by number of workers."""
        query = "select workers, steps, seconds from measurements where fingerprint = ? order by workers"
        return {n: (steps, seconds) for n, steps, seconds in self._sql.execute(query, (fingerprint,))}

    def put_amount(self, fingerprint: str, steps_per_epoch: int) -> None:
        self._sql.execute("insert or replace into amounts values (?, ?)", (fingerprint, steps_per_epoch))

    def amount(self, fingerprint: str) -> int | None:
        """Steps of an epoch, where a job with this fingerprint has said so."""
        query = "select steps_per_epoch from amounts where fingerprint = ?"
        row = self._sql.execute(query, (fingerprint,)).fetchone()
        return int(row[0]) if row else None

    # Settings ----------------------------------------------------------------------------------------------

    def put(self, name: str, value: bytes) -> None:
        self._sql.execute("insert or replace into settings values (?, ?)", (name, value))

    def get(self, name: str) -> bytes | None:
        row = self._sql.execute("select value from settings where name = ?", (name,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        self._sql.close()
