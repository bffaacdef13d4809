"""A logger has each step that counts once, with the values that count, whichever process is
killed at any moment.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.step_records import lasting
from brim.errors import EnvironmentFault
from brim.loggers import Entry, LoggedRun
from brim.loggers import follower as follower_module
from brim.loggers.follower import Follower, recorded_loggers
from brim.loggers.named import make_logger
from brim.telemetry.events import Restored, ValuesLogged
from brim.telemetry.history import RunHistory, read_history
from recorded_run import RecordedRun, spec


class Killed(Exception):
    """Stands for kill -9: nothing of the process runs behind it."""


class Notebook:
    """A logger that can take back.

    Its pages outlive it; `lives` says how many calls it gets before it is killed.

    A part of the unflushed data gets lost with it.
    """

    def __init__(self, pages: list[Entry], lives: int, rng: random.Random) -> None:
        self.pages, self.left, self.rng = pages, lives, rng
        self.unflushed: list[Entry] = []

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.pages += self.unflushed[: self.rng.randint(0, len(self.unflushed))]
            raise Killed

    def begin(self, run: LoggedRun) -> None:
        self._count()
        assert run.id

    def rewind(self, step: int) -> None:
        self._count()
        self.pages[:] = [entry for entry in self.pages if entry.step <= step]

    def log(self, entry: Entry) -> None:
        self.unflushed.append(entry)
        self._count()

    def flush(self) -> None:
        self.pages += self.unflushed
        self.unflushed = []
        self._count()

    def end(self, exit: str) -> None:
        self._count()
        self.exit = exit


class Forgetful(Notebook):
    """One that reports its true content, and lost half of the flushed data."""

    def begin(self, run: LoggedRun) -> int:  # type: ignore[override]
        del self.pages[len(self.pages) // 2 :]
        super().begin(run)
        return max((entry.step for entry in self.pages), default=0) - 1


def expected(history: RunHistory) -> dict[tuple[int, str], float]:
    """By (step, name), the values of the records in the end."""
    want = {
        (step.step, "train/loss"): step.loss or 0.0
        for step in lasting(history.steps, history.restores)
    }
    for values in logged(history):
        want |= {
            (values.step, name): value for name, value in values.values.items() if value is not None
        }
    for event in history.epochs.values():
        want |= {
            (event.step, f"test/{name}"): value
            for name, value in event.metrics.items()
            if value is not None
        }
    return want


def logged(history: RunHistory) -> list[ValuesLogged]:
    """The values that the script logged in steps that no restore undid later."""
    lasting_values: list[ValuesLogged] = []
    for event in history.events:
        if isinstance(event, ValuesLogged):
            lasting_values.append(event)
        elif isinstance(event, Restored):
            lasting_values = [values for values in lasting_values if values.step <= event.step]
    return lasting_values


def got(pages: list[Entry]) -> dict[tuple[int, str], float]:
    """The same of a logger's content, which must have nothing twice."""
    found: dict[tuple[int, str], float] = {}
    for entry in pages:
        for name, value in entry.values.items():
            if name == "train/loss" or name.startswith(("test/", "mine")):
                assert (entry.step, name) not in found, (
                    f"{name} of step {entry.step} is there twice"
                )
                found[entry.step, name] = value
    return found


def live(run: RecordedRun, rng: random.Random) -> None:
    """A bit of a run's life: steps, and now and then a return to an earlier one."""
    run.train(min(rng.randint(0, 7), run.steps - run.step))
    if rng.random() < 0.4:
        run.events.append(
            "logged", epoch=0, step=run.step, values={f"mine{rng.getrandbits(48)}": rng.random()}
        )
    if rng.random() < 0.3 and run.step < run.steps:
        run.restore(rng.randint(0, run.step))
    if rng.random() < 0.1:
        run.end("suspended")
        run.clock._now -= 5.0  # the clock of another life may be behind
        run.begin(2)
        run.restore(rng.randint(0, run.step))


@pytest.fixture(autouse=True, scope="module", params=[700, 1 << 20], ids=["bit by bit", "at once"])
def _read_so_much(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower_module, "_READ_BYTES", request.param)
        patch.setattr(os, "fsync", lambda _: None)  # no power cuts here: twenty times faster
        yield


@pytest.mark.parametrize("kind", [Notebook, Forgetful])
@given(seed=st.integers(0, 10**6))
def test_each_step_arrives_once_through_kills_and_restores(
    tmp_path_factory: pytest.TempPathFactory, kind: type[Notebook], seed: int
) -> None:
    rng = random.Random(seed)
    run = RecordedRun(tmp_path_factory.mktemp("run"), spec(epochs=3), samples=2560)
    pages: list[Entry] = []
    run.begin()
    follower = None
    while run.step < run.steps:
        live(run, rng)
        if run.step == run.steps:
            break
        follower = follower or Follower(
            run.run_dir, "mine", lambda: kind(pages, rng.choice([0, 1, 2, 5, 20, 80]), rng)
        )
        try:
            for _ in range(rng.randint(0, 2)):
                follower.poll()
        except Killed:
            abandon(follower)
            follower = None
    run.end()
    if follower:
        abandon(follower)
    last = kind(pages, 10**6, rng)
    follower = Follower(run.run_dir, "mine", lambda: last)
    follower.poll()
    follower.close()
    history = read_history(run.run_dir)
    assert got(pages) == expected(history)
    assert last.exit == "done"


def abandon(follower: Follower) -> None:
    """The kernel's acts for the dead."""
    os.close(follower._lock)


@pytest.mark.parametrize("calls", range(16))
def test_metrics_that_come_behind_their_step_arrive_once(tmp_path: Path, calls: int) -> None:
    """Evaluation takes a while: the step of an epoch's end is told long before its metrics are."""
    run = RecordedRun(tmp_path, spec(epochs=1))
    run.begin()
    pages: list[Entry] = []
    first = Follower(tmp_path, "mine", lambda: Notebook(pages, calls, random.Random(calls)))
    try:
        for _ in range(run.steps):
            run._commit()
        first.poll()
        run._end_epoch()
        first.poll()
        run.end()
        first.close()
    except Killed:
        abandon(first)
    if not read_history(tmp_path).epochs:
        run._end_epoch()
    history = read_history(tmp_path)
    second = Follower(tmp_path, "mine", lambda: Notebook(pages, 99, random.Random(0)))
    second.poll()
    second.close()
    assert got(pages) == expected(history)


def test_what_was_told_is_not_told_again(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(epochs=1))
    run.begin()
    run.train_to_end()
    run.end()
    for expect in (True, False):
        pages: list[Entry] = []
        follower = Follower(tmp_path, "mine", partial(Notebook, pages, 10**6, random.Random(0)))
        follower.poll()
        follower.close()
        assert bool(pages) == expect
    assert recorded_loggers(tmp_path) == ["mine"]


def test_two_processes_cannot_tell_one_logger(tmp_path: Path) -> None:
    first = Follower(tmp_path, "mine", lambda: Notebook([], 9, random.Random(0)))
    with pytest.raises(EnvironmentFault, match=r"another process sends .* to mine already"):
        Follower(tmp_path, "mine", lambda: Notebook([], 9, random.Random(0)))
    first.close()


def test_an_entry_has_what_the_step_says(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(epochs=1))
    run.begin(3)
    run.train(1)
    run.lr = 0.5
    run.train(1)
    run.lr = [0.5, 0.1]
    run.train(1)
    pages: list[Entry] = []
    follower = Follower(tmp_path, "mine", lambda: Notebook(pages, 99, random.Random(0)))
    assert follower.poll() == 3
    follower.close()
    (entry, *later_entries) = pages
    values: Mapping[str, Any] = entry.values
    assert set(values) == {"train/loss", "train/workers", "train/epoch", "train/samples_per_second"}
    assert (entry.step, values["train/workers"], values["train/epoch"]) == (1, 3.0, 1.0)
    rates = [
        {name: entry_later.values[name] for name in entry_later.values.keys() - values.keys()}
        for entry_later in later_entries
    ]
    assert rates == [{"train/lr": 0.5}, {"train/lr/0": 0.5, "train/lr/1": 0.1}]


def test_the_logger_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "loggers.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    file = tmp_path / "mylogger.py"
    file.write_text(code)
    run = RecordedRun(tmp_path / "run", spec(epochs=1))
    run.begin()
    run.train(3)
    for back in (0, 1):
        run.restore(run.step - back)
        run.train(2)
        follower = Follower(run.run_dir, "mine", lambda: make_logger(f"{file}:Lines"))
        follower.poll()
        follower.close()
    entries_told = [
        json.loads(line) for line in (run.run_dir / "lines.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in entries_told] == [1, 2, 3, 4, 5, 6]
    history = read_history(run.run_dir)
    want = [step.loss for step in lasting(history.steps, history.restores)]
    assert [line["train/loss"] for line in entries_told] == want
