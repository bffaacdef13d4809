"""A scheduler's database of an earlier format becomes one of today's, step by step.

Each step takes the file from one format to the next, in one transaction with the number of the
format: one that is killed leaves a file that the next attempt continues from. A step is history,
and stays as it is: it must not use today's decoders, which change. Before the first step a copy of the
file is kept beside it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault, StorageFault
from brim.storage.files import drafts_beside, sync_directory

FORMAT = 7
_LOCK_TIMEOUT = (
    0.2  # seconds that another process may keep the file locked, where there is nothing to do
)
_PAGES = 2_000  # that are copied between two reports
Progress = Callable[[float], None]
"""Called with the part of the work that is done, from 0 to 1."""


def kept_copy(path: Path, format: int) -> Path:
    """Return the path of the copy that is kept of the file before its migration from a format."""
    return path.with_name(f"{path.name}.format-{format}")


def format_of(sql: sqlite3.Connection) -> int:
    """0 where nothing was written yet."""
    (format,) = sql.execute("pragma user_version").fetchone()
    return int(format)


def check_format(path: Path, format: int) -> None:
    """Raises EnvironmentFault where this version cannot read a format."""
    if format > FORMAT:
        raise EnvironmentFault(
            f"{path} has format {format}, which a newer version of brim wrote; this one reads up "
            f"to {FORMAT}\n"
            f"  hint: use the newer version, or a copy from before: ls {path}.format-*"
        )
    if format < FORMAT:
        raise EnvironmentFault(
            f"{path} has format {format}, this version of brim reads {FORMAT}\n"
            f"  hint: brim up migrates it, and keeps a copy"
        )


def migrate(path: Path) -> Path | None:
    """Bring a database to today's format.

    Only who has the lock of the state directory may do so: an earlier version may be using the
    file.

    Returns:
        Where the file is kept as it was before; None where there was nothing to do.

    Raises:
        StorageFault: it cannot be read or written, or what is in it is not what that format says.
        EnvironmentFault: a newer version wrote it.
    """
    if not path.is_file():
        return None
    try:
        with contextlib.closing(
            sqlite3.connect(path, isolation_level=None, timeout=_LOCK_TIMEOUT)
        ) as sql:
            format = format_of(sql)
    except sqlite3.Error as error:
        raise StorageFault(f"cannot open {path}: {error}") from error
    if format > FORMAT:
        check_format(path, format)
    if format in (0, FORMAT):
        return None
    copy_path = kept_copy(path, format)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
            copy_database(sql, copy_path)
            sql.execute("pragma synchronous = full")
            sql.execute("pragma auto_vacuum = incremental")
            sql.execute("vacuum")
            for step in range(format, FORMAT):
                _take(sql, step)
    except (
        sqlite3.Error,
        OSError,
        zlib.error,
        LookupError,
        TypeError,
        AttributeError,
        *UNDECODABLE,
    ) as error:
        raise StorageFault(f"cannot migrate {path}: {error}") from error
    return copy_path


def _take(sql: sqlite3.Connection, step: int) -> None:
    sql.execute("begin immediate")
    try:
        _STEPS[step](sql)
        sql.execute(f"pragma user_version = {step + 1}")
        sql.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            sql.execute("rollback")
        raise


def copy_database(sql: sqlite3.Connection, path: Path, progress: Progress = lambda _: None) -> None:
    """Copy a database as it is at one moment, while others may write to it.

    The copy is there whole or not at all.

    Raises:
        sqlite3.Error, OSError: it cannot be read, or the disk does not take it.
    """
    with drafts_beside(path) as folder:
        draft = folder / path.name
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            _copy(sql, copy, progress)
            copy.execute("pragma journal_mode = delete")  # all of it is in this file
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)


def _copy(sql: sqlite3.Connection, copy: sqlite3.Connection, progress: Progress) -> None:
    # The pages of one snapshot: else each write of a scheduler would make the copy begin again.
    sql.execute("begin")
    try:
        sql.execute("select count(*) from sqlite_master").fetchone()
        sql.backup(
            copy,
            pages=_PAGES,
            progress=lambda _, pages_left, all: progress(1.0 - pages_left / max(1, all)),
        )
    finally:
        sql.execute("rollback")


# The steps ----------------------------------------------------------------------------------------


def _every_cycle_has_its_memory(sql: sqlite3.Connection) -> None:
    """1 to 2: each cycle has its memory for the next.

    Before, only the last one did, in a setting.
    """
    last = sql.execute("select value from settings where name = 'memory'").fetchone()
    policy_row = sql.execute("select policy from cycles order by number desc limit 1").fetchone()
    # What other policies remembered only saved them work, and nobody can read it any more.
    empty_memory = _packed({"policies": [], "blocks": {}})
    memory = last[0] if last and policy_row == ("brim",) else empty_memory
    sql.execute("alter table cycles rename to old_cycles")
    sql.execute(
        "create table cycles (number integer primary key, at real not null, policy text not null,"
        " content blob not null, memory blob not null) strict"
    )
    # What the others left cannot be told any more.
    sql.execute(
        "insert into cycles select number, at, policy, content,"
        " case when number = (select max(number) from old_cycles) then ? else ? end from "
        "old_cycles",
        (memory, empty_memory),
    )
    sql.execute("drop table old_cycles")
    sql.execute("delete from settings where name = 'memory'")


def _workers_have_nodes(sql: sqlite3.Connection) -> None:
    """2 to 3: workers are counted by node; before, all were on the cluster's first."""
    described = sql.execute("select value from settings where name = 'cluster'").fetchone()
    node = msgspec.json.decode(described[0])["cluster"]["nodes"][0]["id"] if described else ""
    _rewrite(sql, "jobs", "record", lambda record: _on_node(record, node))
    _rewrite(sql, "cycles", "content", _cycle_with_nodes)


def _on_node(content: bytes, node: str) -> bytes:
    record = msgspec.msgpack.decode(content)
    for now, old_field in (("plan", "workers"), ("told", "target"), ("coming", "coming")):
        count = record.pop(old_field, 0)
        if isinstance(count, int):
            record[now] = {node: count} if count else {}
    record.setdefault("home", node if record.get("launches") else "")
    return _packed(record)


def _cycle_with_nodes(content: bytes) -> bytes:
    cycle = msgspec.json.decode(zlib.decompress(content))
    for job in cycle["saw"]["jobs"]:
        job.setdefault("nodes", {})
        if "curve" in job["job"]:
            job["curve"], job["stepped"] = job["job"].pop("curve"), False
    cycle["decided"].setdefault("nodes", {})
    return zlib.compress(msgspec.json.encode(cycle))


def _plans_are_part_of_what_is_remembered(sql: sqlite3.Connection) -> None:
    """3 to 4: policy brim remembers more than plans.

    Jobs can be forgotten, and their numbers are given once.
    """
    _rewrite(sql, "cycles", "memory", _memory_with_plans, condition="policy = 'brim'")
    sql.execute("create table leavings (job text primary key, user text not null) strict")
    numbers = "select coalesce(max(number), 0) from jobs"
    sql.execute("create table numbers (last integer not null) strict")
    sql.execute(f"insert into numbers values (({numbers}))")


def _memory_with_plans(content: bytes) -> bytes:
    memory = msgspec.msgpack.decode(content)
    for row in memory["policies"]:
        if row[2] and "plans" not in row[2]:  # no job has such a name: each ends with its number
            row[2] = {"plans": row[2]}
    return _packed(memory)


def _records_have_parts(sql: sqlite3.Connection) -> None:
    """4 to 5: the knowledge of a job is a few values with names in place of 38 fields."""
    _rewrite(sql, "jobs", "record", _record_with_parts)


_PARTS = {
    "judgement": {
        "standing": "standing",
        "promised": "promised",
        "reason": "verdict",
        "detail": "detail",
        "finish": "estimate",
        "earliest": "earliest",
    },
    "allocation": {
        name: name for name in ("plan", "told", "coming", "home", "changed", "ready", "asked")
    },
    "progress": {name: name for name in ("step", "steps", "started", "attained")},
    "starts": {
        name: name for name in ("launches", "setbacks", "vain", "not_before", "out_of_memory")
    },
    "estimates": {"last": "expected", "first": "first", "half": "half", "saved": "foretold"},
}


def _record_with_parts(content: bytes) -> bytes:
    record = msgspec.msgpack.decode(content)
    if not record.pop("judged", False):  # it is judged where it has a standing
        record["standing"] = 0
    for part, names in _PARTS.items():
        found = {now: record.pop(old) for now, old in names.items() if old in record}
        if found:
            record[part] = found
    return _packed(record)


def _rewrite(
    sql: sqlite3.Connection,
    table: str,
    column: str,
    change: Callable[[bytes], bytes],
    condition: str = "true",
) -> None:
    numbers = sql.execute(f"select number from {table} where {condition}").fetchall()
    for (number,) in numbers:  # one at a time: a journal may have 256 MiB
        (content,) = sql.execute(
            f"select {column} from {table} where number = ?", (number,)
        ).fetchone()
        sql.execute(f"update {table} set {column} = ? where number = ?", (change(content), number))


def _packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def _code_is_kept(sql: sqlite3.Connection) -> None:
    """5 to 6: the code of jobs is kept; earlier submissions run their files in place."""
    sql.execute("create table bundles (sha256 text primary key, content blob not null) strict")


def _people_are_notified(sql: sqlite3.Connection) -> None:
    """6 to 7: notifications wait until they are sent, and usage is counted by month."""
    sql.execute(
        "create table notifications (number integer primary key, at real not null, channel text not "
        "null, tenant text not null, job text not null, attempts integer not null, content blob not "
        "null) strict"
    )
    sql.execute("create index notifications_by_channel on notifications (channel, tenant)")
    sql.execute(
        "create table usage (month text not null, tenant text not null, user text not null, job text "
        "not null, used real not null, primary key (month, tenant, user, job)) strict"
    )
    sql.execute(
        "create table lending (month text not null, tenant text not null, owned real not null, borrowed "
        "real not null, lent real not null, primary key (month, tenant)) strict"
    )


_STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _every_cycle_has_its_memory,
    2: _workers_have_nodes,
    3: _plans_are_part_of_what_is_remembered,
    4: _records_have_parts,
    5: _code_is_kept,
    6: _people_are_notified,
}
