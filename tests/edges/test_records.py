"""Records of a run are read back whole, even after torn writes, and every view of them follows."""

from __future__ import annotations

import errno
import math
import os
import re
import threading
import time
from pathlib import Path

import pytest

from brim.domain.accounting import throughput, time_breakdown
from brim.domain.step_records import STEP_PHASES, lasting
from brim.errors import EnvironmentFault, InternalError
from brim.host.clock import SystemClock, VirtualClock
from brim.report.run import render_report
from brim.runs.outcome import facts_of, summary_of
from brim.storage.files import is_locked, lock, write_whole
from brim.telemetry.events import Warned
from brim.telemetry.history import RunHistory, RunReader, describe_event
from brim.telemetry.ledger import audit_run
from brim.telemetry.record_files import RecordFile, follow_events, follow_steps
from pages import assert_loads_nothing, checked
from recorded_run import RecordedRun, RecordLog, eventful, spec


def read(run_dir: Path) -> RunHistory:
    reader = RunReader(run_dir)
    reader.poll()
    return reader.history


@pytest.fixture
def log(tmp_path: Path) -> RecordLog:
    return RecordLog(tmp_path / "events.jsonl", clock=VirtualClock(7.0))


def test_whole_lines_are_read_once(log: RecordLog, tmp_path: Path) -> None:
    reader = follow_events(tmp_path)
    log.append("warning", message="one")
    assert reader.poll() == [Warned(at=7.0, message="one")]
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"at": 8, "kind": "warn')
        file.flush()
        assert reader.poll() == []
        file.write(b'ing", "message": "two"}\n')
    assert [event.message for event in reader.poll()] == ["two"]


def test_oversized_records_leave_nothing(
    log: RecordLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:9], place))
    with pytest.raises(OSError, match="wrote 9 of"):
        log.append("warning", message="the disk is full")
    monkeypatch.undo()
    log.append("warning", message="there is space again")
    (event,) = follow_events(tmp_path).poll()
    assert event.message == "there is space again"


def test_a_dead_writers_torn_line_is_cut(log: RecordLog, tmp_path: Path) -> None:
    log.append("warning", message="before")
    reader = follow_events(tmp_path)
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"at": 8, "kind": "warn' + b"x" * 100_000)
    assert [event.message for event in reader.poll()] == ["before"]
    RecordLog(tmp_path / "events.jsonl", clock=VirtualClock(9.0)).append("warning", message="after")
    assert [event.message for event in reader.poll()] == ["after"]
    assert reader.skipped == 0


def test_an_existing_line_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        file = RecordFile(path)
        file.put(0, b"one\n")
        file.put(4, b"two\n")
    with pytest.raises(InternalError, match="another record at byte 4"):
        RecordFile(path).put(4, b"three\n")
    with pytest.raises(EnvironmentFault, match="lost lines: it has 8 bytes"):
        RecordFile(path).put(9, b"three\n")
    assert path.read_text() == "one\ntwo\n"
    assert RecordFile(path).put(4, b"two\n", b"three\n", b"four\n") == 2
    assert path.read_text() == "one\ntwo\nthree\nfour\n"


def test_records_of_another_version_are_passed_over(log: RecordLog, tmp_path: Path) -> None:
    log.append("invented_later", message="?")
    log.append("warning", message="known", more="fields")
    assert [event.message for event in follow_events(tmp_path).poll()] == ["known"]


def test_a_nan_loss_is_none(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec())
    run.log.append_step(round=1, step=1, epoch=0, loss=math.nan, samples=1, parts=[], seconds={})
    assert follow_steps(tmp_path).poll()[0].loss is None


def test_missing_runs_have_no_records(tmp_path: Path) -> None:
    assert RunReader(tmp_path / "later").poll() == []


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    write_whole(path, b"first")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_writers_go_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scheduler.json"
    with monkeypatch.context() as killed:
        killed.setattr(os, "unlink", lambda name: None)
        killed.setattr(os, "replace", lambda *names: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_whole(path, b"half")
    assert len(list(tmp_path.iterdir())) == 1
    write_whole(path, b"first")
    assert len(list(tmp_path.iterdir())) == 2  # others may be at it
    write_whole(path, b"second", is_sole_writer=True)
    assert list(tmp_path.iterdir()) == [path]


def test_testing_a_lock_hinders_nobody(tmp_path: Path) -> None:
    path, looking = tmp_path / "lock", True

    def look() -> None:
        while looking:
            is_locked(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(300):
            lock_file = lock(path)
            assert lock_file is not None
            os.close(lock_file)
    finally:
        looking = False
        for looker in lookers:
            looker.join()
    lock_file = lock(path)
    assert lock_file is not None
    assert is_locked(path)
    assert lock(path) is None
    os.close(lock_file)
    assert not is_locked(path)


def test_an_unreadable_lock_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    assert not is_locked(path / "of-a-file")
    path.touch()
    assert not is_locked(path / "of-a-file")

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("brim.storage.files.os.open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        is_locked(path)


def test_the_history_knows_workers_and_progress(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin()
    run.train(3)
    run.lose(1)
    run.train(2)
    run.restore(4)
    history = read(tmp_path)
    assert history.step == 4
    assert history.round is not None
    assert history.round.workers == ["w0", "w2", "w3", "w4"]
    assert (history.workers["w1"].state, history.workers["w1"].reason) == ("lost", "signal 9")
    assert history.workers["w4"].rank == 3
    assert history.samples_per_second() > 0


def test_the_report_is_one_page_that_loads_nothing(tmp_path: Path) -> None:
    eventful(tmp_path, samples=8192, epochs=2)
    page = render_report(read(tmp_path))
    assert_loads_nothing(page)


def test_the_report_tells_what_happened(tmp_path: Path) -> None:
    eventful(tmp_path, samples=8192, epochs=2)
    page = render_report(read(tmp_path))
    for words in (
        "flights.py", "0.7712", "exact", "ab" * 32, "kill rank 1 at step 6 (w1)", "w1 lost (signal "
                                                                                  "9)",
        "add 2 at step 12", "w3 left (SIGTERM)", "Where the time went", "24 ms",
        "Loss, throughput and world size",
    ):  # fmt: skip
        assert words in page


def test_useful_time_states_its_conditions(tmp_path: Path) -> None:
    """Redone steps are no useful time; the failure rate and the size of the state stand beside it."""
    eventful(tmp_path, samples=8192, epochs=2)
    history = read(tmp_path)
    page = render_report(history)
    found = re.search(
        r"useful time.{0,80}?([\d.]+) %.{0,80}?ETTR; ([\d,.e+]+) lost workers", page, re.S
    )
    assert found is not None
    total = sum(session.end - session.start for session in history.sessions)
    lasted = lasting(history.steps, history.restores)
    seconds = sum(sum(step.seconds[phase] for phase in STEP_PHASES) for step in lasted)
    assert float(found[1]) == pytest.approx(100 * seconds / total, abs=0.06)
    assert float(found[2].replace(",", "")) == pytest.approx(3600 / total, rel=0.01)
    assert "of state" in page


def test_the_report_shows_changing_learning_rates(
    tmp_path: Path,
) -> None:
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin()
    run.train(2)  # by an earlier version
    assert read(tmp_path).steps[-1].lr is None
    run.lr = 0.5
    run.train(2)
    assert read(tmp_path).steps[-1].learning_rates() == {"lr": 0.5}
    assert "learning rate" not in render_report(read(tmp_path))
    run.lr = [0.5, 0.25, math.nan]
    run.train(1)
    assert read(tmp_path).steps[-1].learning_rates() == {"lr/0": 0.5, "lr/1": 0.25}
    assert "learning rate" not in render_report(read(tmp_path))
    run.lr = [0.1, 0.25, 0.0]
    run.train(2)
    page = render_report(read(tmp_path))
    assert "Loss, throughput, world size and learning rate" in page
    assert_loads_nothing(page)


def test_status_and_report_show_the_traffic_of_tables(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(delay=2), samples=2048, step_seconds=0.5)
    run.begin(tables=[{"name": "items.weight", "rows": 5_000, "dim": 16, "bytes": 1 << 20}])
    run.tables = {"items.weight": [300, 200, [[7, 40], [3, 12]]]}
    run.train(1)
    run.tables = {"items.weight": [100, 50]}
    run.train(3)
    history = read(tmp_path)
    seconds = history.steps[-1].at - history.steps[0].at
    assert history.table_rates()["items.weight"] == pytest.approx((300 / seconds, 150 / seconds))
    assert history.hottest("items.weight") == ((7, 40), (3, 12))
    (table,) = facts_of(history)["tables"]
    assert table["rows"] == 5_000
    assert table["hottest"] == [{"id": 7, "lookups": 40}, {"id": 3, "lookups": 12}]
    page = render_report(history)
    for words in ("items.weight", "5,000", "1 MiB", "7 (40), 3 (12)", "Rows change 2 steps late"):
        assert words in page


def test_servers_are_told_apart_from_workers(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin(workers=3)
    run.share_out([4, 4, 0], "w3 serves")
    run.train(3)
    history = read(tmp_path)
    facts = facts_of(history)
    assert (facts["world_size"], facts["servers"]) == (2, 1)
    assert [worker["serves"] for worker in facts["workers"]] == [False, False, True]
    assert summary_of(history, tmp_path)["servers"] == [0, 1]
    page = render_report(history)
    assert "and up to 1 server" in page
    assert "2 + 1 ps" in page
    assert f"{run.workers[2]} (server)" in page
    assert history.round is not None
    assert "round 2: 2 workers and 1 server from step" in describe_event(history.round, history)


def test_the_report_escapes_what_a_run_says(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(file="<script>alert(1)</script>.py"), samples=1024)
    run.begin()
    run.train(1)
    run.events.append("failed", who="user", message="<b>", trace="<i>")
    tags = checked(render_report(read(tmp_path))).tags
    assert not {"b>", "i>"} & set(tags)
    assert tags.count("script") == 1  # that of the page itself


def test_a_barely_begun_run_has_a_report(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec())
    run.events.append(
        "run_started",
        run="r",
        steps=4,
        steps_per_epoch=2,
        spec={},
        file="",
        command=["python", "loop.py"],
    )
    assert "unfinished" in render_report(read(tmp_path))
    run.begin()
    run.train(1)
    assert "python loop.py" not in render_report(read(tmp_path))


@pytest.mark.parametrize("killed", [False, True])
def test_resumed_runs_show_no_gap(killed: bool, tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin()
    run.train(4)
    if not killed:
        run.end("suspended")
    run.clock.advance(36_000)
    run.start_worker()
    run.begin(workers=0)
    run.restore(4)
    run.train_to_end()
    run.end()
    history = read(tmp_path)
    assert sum(session.end - session.start for session in history.sessions) < 60
    assert "restored step 4" in render_report(history)


@pytest.mark.parametrize("jump", [-36_000.0, -3.0, 36_000.0])
@pytest.mark.parametrize("mid_life", [False, True])
def test_a_clock_that_was_set_spoils_no_record(jump: float, mid_life: bool, tmp_path: Path) -> None:
    """Between two lives of a run, or within one where the records of a host that was set are among
    them.
    """
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin()
    run.train(6)
    now = run.clock.now() + jump
    second_life = RecordedRun(
        tmp_path, spec(), samples=2048, start=now, step=run.step, workers=run.workers
    )
    if mid_life:
        second_life.began = now
    else:
        second_life.begin(workers=2)
        second_life.restore(4)
    second_life.train_to_end()
    second_life.end()
    history = read(tmp_path)
    assert audit_run(tmp_path, history).exact
    assert history.step == run.steps
    assert all(session.end >= session.start for session in history.sessions)
    parts = time_breakdown(history.sessions, history.steps, history.restores, re_forming=0.0)
    assert min(parts.values()) >= 0
    assert all(
        rate >= 0 for _, rate in throughput(history.steps, start=run.start, end=now, buckets=9)
    )
    assert not re.search(r"-\d[\d.,]* (s|ms)\b", render_report(history))


@pytest.mark.parametrize(
    ("order", "order_size", "counted"),
    [
        ("shuffled", 0, "samples"),
        ("shuffled", 5000, "samples"),
        ("sequential", 0, "samples"),
        ("stream", 0, "contents"),
        ("sampler", 9, "positions"),
    ],
)
def test_the_ledger_uses_the_recorded_order(
    order: str, order_size: int, counted: str, tmp_path: Path
) -> None:
    run = RecordedRun(tmp_path, spec(), order=order, order_size=order_size)
    run.begin()
    run.train_to_end()
    run.end()
    ledger = audit_run(tmp_path, read(tmp_path))
    assert (ledger.exact, ledger.counted) == (True, counted)


@pytest.mark.parametrize("pretended", ["shuffled", "sequential"])
def test_the_ledger_finds_a_differing_order(pretended: str, tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), order=pretended)
    run.begin()
    run.order = "sampler"
    run.train_to_end()
    ledger = audit_run(tmp_path, read(tmp_path))
    assert not ledger.exact
    assert ledger.epochs[0].mismatched == 64


def test_the_ledger_finds_drawn_but_unapplied_samples(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), order="sampler")
    run.begin()
    run.train(run.steps_per_epoch + 3)
    ledger = audit_run(tmp_path, read(tmp_path))
    assert not ledger.exact
    assert [epoch.missing for epoch in ledger.epochs] == [0, 4096 - 3 * 512]


def test_corrected_clocks_spoil_no_ledger(tmp_path: Path) -> None:
    """The first resume had a clock far ahead, so it seems to have come after everything else."""
    run = RecordedRun(tmp_path, spec(), samples=2048)
    run.begin()
    run.train(6)
    now = run.clock.now()
    for start, step in ((now + 36_000.0, 6), (now, 6)):
        second_life = RecordedRun(
            tmp_path, spec(), samples=2048, start=start, step=6, workers=run.workers
        )
        second_life.begin(workers=2)
        second_life.restore(step)
        assert read(tmp_path).step == step
    second_life.train_to_end()
    second_life.end()
    history = read(tmp_path)
    assert audit_run(tmp_path, history).exact
    assert history.step == run.steps


def test_the_process_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    wall_before = clock.wall()
    assert wall_before == pytest.approx(time.time(), abs=5)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert wall_before <= clock.wall() < wall_before + 60


def test_only_the_wall_clock_counts_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, read = SystemClock(), time.clock_gettime
    wall, now = clock.wall(), clock.now()
    monkeypatch.setattr(
        time, "clock_gettime", lambda id: read(id) + 28_800.0 * (id == time.CLOCK_BOOTTIME)
    )
    assert wall + 28_800.0 <= clock.wall() < wall + 28_860.0
    assert now <= clock.now() < now + 60.0


def test_a_resumed_runs_worker_is_present_again(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "events.jsonl", clock=VirtualClock(7.0))
    for state in ("started", "ready", "active", "left", "started"):
        log.append("worker", worker="w1", state=state, pid=1, agent="a1", rank=None, reason="")
    assert read(tmp_path).workers["w1"].until is None
