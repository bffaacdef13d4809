"""A scheduler's reading of the records of a job, however long it has been training."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from brim.backends import watching
from brim.backends.watching import RunWatch
from brim.runs.outcome import facts_of
from brim.telemetry import record_files
from brim.telemetry.history import read_history
from brim.telemetry.record_files import EVENTS, LineReader, follow_steps
from recorded_run import RecordedRun, spec


def watched(run_dir: Path) -> RunWatch:
    watch = RunWatch(run_dir)
    watch.poll()
    return watch


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    """Of three workers at first, then of two."""
    run = RecordedRun(tmp_path, spec(epochs=100), samples=2048)
    run.begin(workers=3)
    run.train(60)
    run.leave(2)
    run.train(140)
    return run


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes in no more than some thirty steps."""
    monkeypatch.setattr(watching, "_READ_BYTES", 20_000)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each look at a file has made of it, from now on."""
    counts = []
    poll = LineReader.poll_numbered

    def count(
        reader: LineReader[object], *, at_once: int | None = None
    ) -> list[tuple[int, object]]:
        found = poll(reader, at_once=at_once)
        counts.append(len(found))
        return found

    monkeypatch.setattr(LineReader, "poll_numbered", count)
    return counts


@pytest.mark.usefixtures("little")
def test_looks_cost_the_same_for_long_jobs(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = follow_steps(run.run_dir).poll()
    counts = counted(monkeypatch)
    watch = watched(run.run_dir)
    assert 10 < counts[-1] < 100
    assert (watch.step, watch.first_step, watch.last_step) == (200, whole[0].at, whole[-1].at)
    assert list(watch.measured.rates) == [2]
    assert watch.by_agent == {"a0": 2}
    run.train(5)
    watch.poll()
    assert (counts[-1], watch.step) == (5, 205)


@pytest.mark.usefixtures("little")
def test_omitted_steps_make_no_step_slow(run: RecordedRun) -> None:
    watch = watched(run.run_dir)
    run.train(200)  # nobody looks for a while
    watch.poll()
    whole = follow_steps(run.run_dir).poll()
    times = [b.at - a.at for a, b in pairwise(whole[60:])]
    assert watch.step == 400
    assert min(times) < 1 / watch.measured.rates[2] < max(times)


@pytest.mark.usefixtures("little")
def test_a_resumed_long_job_starts_at_its_restore(run: RecordedRun) -> None:
    watch = watched(run.run_dir)
    watch.begin(run.clock.now())
    assert (watch.step, watch.reached, watch.last_step) == (200, None, None)
    run.begin(workers=0)
    run.restore(150)
    watch.poll()
    assert watch.step == 150
    run.train(3)
    watch.poll()
    assert watch.step == 153
    assert watch.reached is not None
    assert (watch.reached.workers, watch.reached.step) == (2, 151)
    assert watched(run.run_dir).step == 153


@pytest.mark.parametrize("at_most", [1, 1000, 20_000, 1 << 20])
def test_first_and_last_new_records_are_read(at_most: int, run: RecordedRun) -> None:
    whole, torn = follow_steps(run.run_dir).poll(), b'{"at": 1, "rou'
    path, reader = run.run_dir / "steps.jsonl", follow_steps(run.run_dir, at_most=at_most)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(torn)
    found = reader.poll()
    if at_most > size:
        assert found == whole
    else:
        assert len(found) < 100
        assert found == [whole[0], *whole[201 - len(found) :]]
    os.truncate(path, size)
    run.train(1)
    assert [record.step for record in reader.poll()] == [201]


def test_who_was_lost_since_memory_ran_out(run: RecordedRun) -> None:
    for worker, reason in (
        ("w1", "out of memory: it had 5 GiB of the 4 GiB that --memory gives a worker"),
        ("w2", "signal 9, while this host was out of memory; it had 3 GiB"),
        ("w3", "signal 9"),
    ):
        run.events.append(
            "worker", worker=worker, state="lost", pid=0, agent="a0", rank=None, reason=reason
        )
    assert watched(run.run_dir).out_of_memory == [
        "w1: it had 5 GiB of the 4 GiB that --memory gives a worker",
        "w2: signal 9, while this host was out of memory; it had 3 GiB",
    ]


def test_endless_workers_are_reported_briefly(run: RecordedRun) -> None:
    """The owner of a run's records may write anything into them: a scheduler keeps little of it."""
    for number in range(1_000):
        run.events.append(
            "worker",
            worker=f"w{number}",
            state="lost",
            pid=0,
            agent="a0",
            rank=None,
            reason="out of memory: " + "x" * 1_000,
        )
    descriptions = watched(run.run_dir).out_of_memory
    assert len(descriptions) == 20
    assert descriptions[-1].startswith("w19: xxx")
    assert {len(description) for description in descriptions} == {200}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("round", {"round": 9, "world_size": 1, "workers": ["w0"], "step": 10**30}),
        ("run_started", {"run": "r", "steps": 10**30, "steps_per_epoch": 1, "spec": {}}),
        ("worker", {"worker": "w7", "state": "active", "agent": "a0", "pid": -1}),
        ("worker", {"worker": "w7", "state": "active", "agent": "a0", "pid": 10**30}),
        ("run_ended", {"summary": {"exit": "done", "steps": 10**30}}),
    ],
)
def test_unusable_numbers_are_rejected(
    run: RecordedRun, kind: str, fields: dict[str, object]
) -> None:
    """They would end the scheduler of everybody, which writes them down, or all processes."""
    seen_before = watched(run.run_dir)
    with (run.run_dir / EVENTS).open("a") as events:
        events.write(json.dumps({"kind": kind, "at": 1.0, **fields}) + "\n")
    watch = watched(run.run_dir)
    assert (watch.step, watch.steps) == (seen_before.step, seen_before.steps)
    is_over = kind == "run_ended"
    assert watch.workers == ({} if is_over else seen_before.workers)
    assert watch.summary == ({"exit": "done"} if is_over else {})


@pytest.mark.parametrize("jump", [-36_000.0, 0.0, 36_000.0])
@pytest.mark.usefixtures("little")
def test_schedulers_and_readers_agree_despite_clocks(jump: float, tmp_path: Path) -> None:
    first = RecordedRun(tmp_path, spec(epochs=20), samples=2048)
    first.begin()
    first.train(60)
    second = RecordedRun(
        tmp_path, first.spec, samples=2048, start=first.clock.now() + jump, step=first.step
    )
    second.started_before = 100
    second.begin(workers=2)
    second.restore(35)
    assert (read_history(tmp_path).step, watched(tmp_path).step) == (35, 35)
    second.train(10)
    history = read_history(tmp_path)
    watch = watched(tmp_path)
    assert (history.step, watch.step) == (45, 45)
    assert [life.worker for life in history.present] == list(watch.workers) == ["w0", "w1"]


def test_workers_of_earlier_lives_are_superseded(tmp_path: Path) -> None:
    """Their end is not recorded where their agent was killed with them."""
    first = RecordedRun(tmp_path, spec(), samples=2048)
    first.begin(workers=4)
    first.train(3)
    second = RecordedRun(tmp_path, spec(), samples=2048, start=first.clock.now() + 5.0, step=3)
    second.started_before = 100
    second.begin(workers=2)
    history = read_history(tmp_path)
    assert [fact["worker"] for fact in facts_of(history)["workers"]] == ["w0", "w1"]
    assert {life.worker: life.until for life in history.workers.values()} == {
        "w0": None,
        "w1": None,
        "w2": second.start + 1.4,
        "w3": second.start + 1.4,
    }


def test_omitted_lines_are_counted_per_look(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = follow_steps(run.run_dir).poll_numbered()
    monkeypatch.setattr(record_files, "_BLOCK", 2_000)
    monkeypatch.setattr(record_files, "_COUNTED", 10_000)
    reader = follow_steps(run.run_dir, at_most=5_000)
    looks = [reader.poll_numbered(at_once=5_000)]
    while reader.has_more:
        looks.append(reader.poll_numbered(at_once=5_000))
    assert len(looks) > 5
    assert all(len(look) == 1 for look in looks[:-2])
    assert all(look_text in whole for look in looks for look_text in look)
    assert looks[-1][-1] == whole[-1]
    assert reader.lines == 200
