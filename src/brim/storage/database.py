"""The scheduler's database: one SQLite file, and the only SQL there is."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from brim.errors import StorageFault
from brim.host.log import LogLine
from brim.storage.migrations import FORMAT, check_format, format_of

_log = logging.getLogger(__name__)
_BAD = frozenset({"failed", "forced", "out of memory"})  # of what can happen to a job
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
create table bundles (sha256 text primary key, content blob not null) strict;
create table notifications (
    number integer primary key, at real not null, channel text not null, tenant text not null, job text not null,
    attempts integer not null, content blob not null
) strict;
create index notifications_by_channel on notifications (channel, tenant);
create table usage (
    month text not null, tenant text not null, user text not null, job text not null, used real not null,
    primary key (month, tenant, user, job)
) strict;
create table lending (
    month text not null, tenant text not null, owned real not null, borrowed real not null, lent real not null,
    primary key (month, tenant)
) strict;
create table leavings (job text primary key, user text not null) strict;
create table numbers (last integer not null) strict;
insert into numbers values (0);
"""

_ADD = "on conflict do update set used = used + excluded.used"
_ADD_UP_USAGE = (
    "insert into usage select month, tenant, user, '', used from usage where job = ? " + _ADD
)
_HISTORY = "at, job, event, before, after, reason, detail"
_CYCLES = "select number, policy, content, memory from cycles"

# The newest are kept: as many as there is room for, and one more, so that there is always a last
# one.
_FORGET_CYCLES = """
delete from cycles where number <= :oldest or number < (
    select max(number) from (
        select number, sum(length(content) + length(memory)) over (order by number desc) as bytes from cycles
    ) where bytes > :most
)
"""

# What a few cycles need. Below that nothing is written any more: a log that is full would fail in
# the middle of things, and the processes of jobs could not be started either.
_ROOM_BYTES = 4 << 20
_LOCK_TIMEOUT = (
    0.2  # seconds that another process may keep the file locked; nothing else is done meanwhile
)

LAST_NUMBER = "select max(last, coalesce((select max(number) from jobs), 0)) from numbers"
_GIVEN_BACK = 1_000  # pages

HistoryRow = tuple[float, str, str, int, int, str, str]
NotificationRow = tuple[float, str, str, str, bytes]  # time, channel, tenant, job, content
Alarm = Callable[[StorageFault], None]
"""Called where a database fails, before the failure is reported otherwise."""


class CycleRow(NamedTuple):
    """A cycle as it is kept.

    Cycles are numbered from 1, and `memory` is what it left to the next.
    """

    number: int
    policy: str
    content: bytes
    memory: bytes


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """Lessons of jobs, the latest first.

    Args:
        measurements: (fingerprint, workers, steps, seconds).
        amounts: (fingerprint, steps of an epoch).
    """

    measurements: list[tuple[str, int, float, float]]
    amounts: list[tuple[str, int]]


class Database:
    """The database of a scheduler: rows in, rows out.

    Each call, and each `together`, is one transaction, on disk when it returns.

    Args:
        path: the file.
        create: whether it is made if it is missing.
        copy: of what is kept elsewhere: nobody waits for the disk, and a host that loses its power
            may lose the last transactions, whole ones.
        alarm: hears of every fault first, since who caused it may not pass it on.

    Attributes:
        times_taught: how often jobs have taught something since it was opened.

    Raises:
        StorageFault: it cannot be opened. All methods raise it too, where they cannot read, or must
            not write: because the disk is almost full, or the file is not the one of that path any
            more.
        EnvironmentFault: it is of another format, see `brim.storage.migrations`.
    """

    def __init__(
        self, path: Path, *, create: bool = True, copy: bool = False, alarm: Alarm | None = None
    ) -> None:
        self._path, self._alarm = path, alarm
        self.times_taught = 0
        uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
        try:
            self._sql = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT)
            if format_of(self._sql) == 0:
                self._sql.execute(
                    "pragma auto_vacuum = incremental"
                )  # what is forgotten takes no room
            self._sql.execute("pragma journal_mode = wal")
            self._sql.execute(f"pragma synchronous = {'normal' if copy else 'full'}")
            self._prepare(path)
            self._file = _identity(path)
        except (sqlite3.Error, OSError) as error:
            raise StorageFault(f"cannot open {path}: {error}") from error

    def _prepare(self, path: Path) -> None:
        format = format_of(self._sql)
        if format == 0:
            self._sql.executescript(f"begin; {_TABLES} pragma user_version = {FORMAT}; commit;")
        else:
            check_format(path, format)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep the writes within as a whole, or not at all.

        The caller may not wait for anything within.
        """
        if self._sql.in_transaction:
            yield  # it belongs to something larger
            return
        with self._sound():
            self._check()
            self._sql.execute("begin")
        try:
            yield
            with self._sound():
                self._sql.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has ended it already
                self._sql.execute("rollback")
            raise

    def prove(self) -> None:
        """Write something, to find out whether that is possible."""
        self.put("proof", b"")

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """Turn errors of SQLite into a StorageFault, and tell the alarm first."""
        try:
            yield
        except sqlite3.ProgrammingError:  # ours
            raise
        except StorageFault as fault:
            self._tell(fault)
            raise
        except (sqlite3.Error, OSError) as error:
            storage_fault = StorageFault(f"{self._path}: {error}")
            self._tell(storage_fault)
            raise storage_fault from error

    def _tell(self, fault: StorageFault) -> None:
        if self._alarm is not None:
            self._alarm(fault)

    def _check(self) -> None:
        """Raises StorageFault where nothing may be written.

        SQLite itself would go on with a file that was removed.
        """
        try:
            is_same_file = _identity(self._path) == self._file
        except FileNotFoundError:
            is_same_file = False
        if not is_same_file:
            raise StorageFault(f"{self._path} was removed or replaced")
        disk = os.statvfs(self._path)
        room = disk.f_bavail * disk.f_frsize
        if room < _ROOM_BYTES:
            need = f"{_ROOM_BYTES >> 20} MiB are needed"
            raise StorageFault(
                f"the disk of {self._path} is full: {room / 2**20:.1f} MiB are free, {need}"
            )

    def _write(self, statement: str, values: Any) -> int:
        """The number of the row that was added."""
        with self._sound():
            if not self._sql.in_transaction:
                self._check()
            return self._sql.execute(statement, values).lastrowid or 0

    def _rows(self, statement: str, values: Any = ()) -> list[Any]:
        with self._sound():
            return self._sql.execute(statement, values).fetchall()

    def _row(self, statement: str, values: Any = ()) -> Any:
        """The only row, or None."""
        with self._sound():
            return self._sql.execute(statement, values).fetchone()

    # Jobs -----------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[tuple[int, str, bytes]]:
        """The numbers and ids of all jobs, and their records, by order of submission."""
        with self._sound():
            yield from self._sql.execute("select number, id, record from jobs order by number")

    def next_number(self) -> int:
        """Return the number of the next job, from 1.

        The number of a forgotten job is not given again.
        """
        (last,) = self._row(LAST_NUMBER)
        return int(last) + 1

    def reserve_numbers(self, last: int) -> None:
        """Give no job a number up to this one."""
        self._write("update numbers set last = max(last, ?)", (last,))

    def put_job(self, number: int, id: str, record: bytes) -> None:
        self._write("insert or replace into jobs values (?, ?, ?)", (number, id, record))

    def forget_job(self, id: str, user: str) -> None:
        """Remove a job and its story.

        `leavings` lists its run directory, which is `user`'s, from now on.
        """
        with self.transaction():
            self._write(f"update numbers set last = ({LAST_NUMBER})", ())
            self._write("insert or replace into leavings values (?, ?)", (id, user))
            self._write(_ADD_UP_USAGE, (id,))
            self._write("delete from usage where job = ?", (id,))
            self._write("delete from history where job = ?", (id,))
            self._write("delete from jobs where id = ?", (id,))

    def leavings(self) -> dict[str, str]:
        """Return the forgotten jobs whose run directories may still be there.

        With each comes its account.
        """
        return dict(self._rows("select job, user from leavings order by job"))

    def cleared(self, id: str) -> None:
        """The run directory of a job that was forgotten is gone."""
        self._write("delete from leavings where job = ?", (id,))
        self.give_back()

    def give_back(self) -> None:
        """Give some of the forgotten jobs' room back to the disk.

        Little of it at a time, since no other caller is answered meanwhile.
        """
        free = self._row("pragma freelist_count")[0]
        if not free:
            return
        with self._sound():
            # `execute` frees a single page
            self._sql.executescript(f"pragma incremental_vacuum({_GIVEN_BACK})")
            if free <= _GIVEN_BACK:  # what was in the log beside the file goes as well
                self._sql.execute("pragma wal_checkpoint(truncate)")

    # History --------------------------------------------------------------------------------------

    def add_history(self, row: HistoryRow) -> None:
        """Add a line to the story of a job or of the cluster itself, and log it."""
        self._write(f"insert into history ({_HISTORY}) values (?, ?, ?, ?, ?, ?, ?)", row)
        _, job, event, previous_count, new_count, reason, detail = row
        level = logging.WARNING if event in _BAD else logging.INFO
        changed = (
            {"before": previous_count, "after": new_count} if previous_count != new_count else {}
        )
        _log.log(level, LogLine(event, job=job, **changed, reason=reason, detail=detail))

    def history(self, job: str) -> list[HistoryRow]:
        """Return a job's events: at, job, event, before, after, reason, detail.

        Estimates, which were once written there every 15 s, are left out: they are never read.
        """
        query = (
            f"select {_HISTORY} from history where job = ? and event != 'estimate' order by number"
        )
        return self._rows(query, (job,))

    def histories(self) -> Iterator[HistoryRow]:
        """Yield the events of all jobs as `history` does, in order."""
        with self._sound():
            yield from self._sql.execute(
                f"select {_HISTORY} from history where event != 'estimate' order by number"
            )

    def history_after(self, number: int, limit: int) -> list[tuple[int, HistoryRow]]:
        """Return events of all jobs behind a number, each with its own: the newest, in order.

        Args:
            limit: at most so many.
        """
        query = (
            f"select number, {_HISTORY} from history where number > ? and event != 'estimate' "
            "order by number desc limit ?"
        )
        return [(row[0], row[1:]) for row in reversed(self._rows(query, (number, limit)))]

    # Notifications --------------------------------------------------------------------------------

    def add_notification(self, row: NotificationRow, limit: int) -> None:
        """Keep a notification until it is sent.

        Args:
            limit: the most that wait of a tenant for a channel: the oldest beyond it are dropped.
        """
        names = "at, channel, tenant, job, content, attempts"
        self._write(f"insert into notifications ({names}) values (?, ?, ?, ?, ?, 0)", row)
        of_tenant = "select number from notifications where channel = ? and tenant = ?"
        values = (*row[1:3], limit)
        self._write(
            f"delete from notifications where number in ({of_tenant} order by number desc limit -1 "
            "offset ?)",
            values,
        )

    def notifications(self, channel: str, limit: int) -> list[tuple[int, float, str, bytes]]:
        """Return (number, time, job, content) of those that wait for a channel.

        Those that failed least come first, the oldest of them before.
        """
        query = (
            "select number, at, job, content from notifications where channel = ? "
            "order by attempts, number limit ?"
        )
        return self._rows(query, (channel, limit))

    def waiting_notifications(self) -> dict[str, int]:
        """Return how many wait, by channel."""
        return dict(self._rows("select channel, count(*) from notifications group by channel"))

    def notification_failed(self, number: int) -> None:
        self._write("update notifications set attempts = attempts + 1 where number = ?", (number,))

    def drop_notification(self, number: int) -> None:
        self._write("delete from notifications where number = ?", (number,))

    def drop_notifications(self, channel: str) -> None:
        """Drop all that wait for a channel."""
        self._write("delete from notifications where channel = ?", (channel,))

    # Usage ----------------------------------------------------------------------------------------

    def add_usage(
        self,
        used: Iterable[tuple[str, str, str, str, float]],
        shares: Iterable[tuple[str, str, float, float, float]],
    ) -> None:
        """Add device-seconds.

        Args:
            used: month, tenant, account, job, seconds.
            shares: month, tenant, and what it owned, borrowed and lent.
        """
        with self.transaction():
            for row in used:
                self._write(f"insert into usage values (?, ?, ?, ?, ?) {_ADD}", row)
            for share in shares:
                self._write(
                    "insert into lending values (?, ?, ?, ?, ?) on conflict do update set owned = "
                    "owned + excluded.owned, borrowed = borrowed + excluded.borrowed, lent = lent + "
                    "excluded.lent",
                    share,
                )

    def usage(self, month: str) -> list[tuple[str, str, str, float]]:
        """Return (tenant, account, job, device-seconds) of a month; an empty job: forgotten ones."""
        query = (
            "select tenant, user, job, used from usage where month = ? order by tenant, user, job"
        )
        return self._rows(query, (month,))

    def shares(self, month: str) -> dict[str, tuple[float, float, float]]:
        """Return the device-seconds of a month that each tenant owned, borrowed and lent."""
        query = "select tenant, owned, borrowed, lent from lending where month = ?"
        return {tenant: tuple(rest) for tenant, *rest in self._rows(query, (month,))}

    def first_month(self) -> str:
        """Return the first month with usage; empty: there is none."""
        (month,) = self._row(
            "select min(month) from (select month from usage union all select month from lending)"
        )
        return month or ""

    def used_in_all(self) -> dict[str, float]:
        """Return the device-seconds of each tenant, of all months."""
        return dict(self._rows("select tenant, sum(used) from usage group by tenant"))

    # Code -----------------------------------------------------------------------------------------

    def put_bundle(self, sha256: str, content: bytes) -> None:
        """Keep the code of jobs."""
        self._write("insert or ignore into bundles values (?, ?)", (sha256, content))

    def bundle(self, sha256: str) -> bytes | None:
        row = self._row("select content from bundles where sha256 = ?", (sha256,))
        return row[0] if row else None

    def bundles(self) -> dict[str, int]:
        """The bytes of all bundles, by their sha256."""
        return dict(self._rows("select sha256, length(content) from bundles"))

    def forget_bundle(self, sha256: str) -> None:
        self._write("delete from bundles where sha256 = ?", (sha256,))

    # Cycles ---------------------------------------------------------------------------------------

    def add_cycle(self, timestamp: float, policy: str, content: bytes, memory: bytes) -> None:
        """Keep a cycle, and forget the oldest beyond the limit.

        Args:
            memory: for the next one.
        """
        names = "at, policy, content, memory"
        number = self._write(
            f"insert into cycles ({names}) values (?, ?, ?, ?)",
            (timestamp, policy, content, memory),
        )
        if number % _FORGET_EVERY == 0:
            limits = {"oldest": number - _CYCLES_KEPT, "most": _CYCLE_BYTES_KEPT}
            self._write(_FORGET_CYCLES, limits)

    def cycles(self) -> Iterator[CycleRow]:
        """Every cycle that is kept, in order."""
        with self._sound():
            yield from map(CycleRow._make, self._sql.execute(f"{_CYCLES} order by number"))

    def cycle_after(self, moment: float) -> CycleRow | None:
        """The first cycle after that time."""
        row = self._row(f"{_CYCLES} where at > ? order by number limit 1", (moment,))
        return CycleRow(*row) if row else None

    def last_cycle_number(self) -> int:
        """The number of the last cycle; 0 before the first."""
        row = self._row("select max(number) from cycles")
        return int(row[0] or 0) if row else 0

    def last_cycle(self) -> CycleRow | None:
        row = self._row(f"{_CYCLES} order by number desc limit 1")
        return CycleRow(*row) if row else None

    # What jobs taught -----------------------------------------------------------------------------

    def put_measurements(self, fingerprint: str, totals: dict[int, tuple[float, float]]) -> None:
        rows = [(fingerprint, workers, *total) for workers, total in totals.items()]
        self._put_lessons("insert or replace into measurements values (?, ?, ?, ?)", rows)

    def measurements(self, fingerprint: str) -> dict[int, tuple[float, float]]:
        """(steps, seconds) by number of workers."""
        query = (
            "select workers, steps, seconds from measurements where fingerprint = ? order by "
            "workers"
        )
        return {n: (steps, seconds) for n, steps, seconds in self._rows(query, (fingerprint,))}

    def put_amount(self, fingerprint: str, steps_per_epoch: int) -> None:
        row = fingerprint, steps_per_epoch
        self._put_lessons("insert or replace into amounts values (?, ?)", [row])

    def amount(self, fingerprint: str) -> int | None:
        """Steps of an epoch, where a job with this fingerprint has said so."""
        query = "select steps_per_epoch from amounts where fingerprint = ?"
        row = self._row(query, (fingerprint,))
        return int(row[0]) if row else None

    def lessons(self, limit: int) -> Taught:
        """Return the latest lessons, at most so many rows of each kind."""
        newest = "order by rowid desc limit ?"
        return Taught(
            measurements=self._rows(f"select * from measurements {newest}", (limit,)),
            amounts=self._rows(f"select * from amounts {newest}", (limit,)),
        )

    def add_lessons(self, lessons: Taught) -> None:
        """Take in another database's lessons, where this one knows nothing."""
        for table, rows in (
            ("measurements values (?, ?, ?, ?)", lessons.measurements),
            ("amounts values (?, ?)", lessons.amounts),
        ):
            self._put_lessons(f"insert or ignore into {table}", reversed(rows))

    def _put_lessons(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self.transaction(), self._sound():
            self._sql.executemany(statement, rows)
        self.times_taught += 1

    # Settings -------------------------------------------------------------------------------------

    def put(self, name: str, value: bytes) -> None:
        self._write("insert or replace into settings values (?, ?)", (name, value))

    def get(self, name: str) -> bytes | None:
        row = self._row("select value from settings where name = ?", (name,))
        return row[0] if row else None

    def close(self) -> None:
        self._sql.close()


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
