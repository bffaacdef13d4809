"""Runs the rows of `table.py`, and checks their fates: exact, or refused with words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from brim.domain.checkpointing import Interval
from brim.domain.faults import parse_faults
from brim.domain.job import JobSpec, WorkerRange
from tiers import LONG
from zoo.running import CASES, Ended, Nursery
from zoo.table import Case

AT_ONCE = max(2, os.cpu_count() or 2)
CAPTURED = "BRIM_TEST_CAPTURED"  # a variable that has steps replayed where a case allows it


class Zoo:
    """Runs the cases that were selected, ahead of the tests that look at them."""

    def __init__(self, nursery: Nursery, folder: Path, cases: list[Case]) -> None:
        self._nursery, self._folder = nursery, folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._runs = {case.name: self._start(case) for case in cases}

    def _start(self, case: Case) -> dict[str, Future[Ended]]:
        runs = {"alone": self._pool.submit(self._alone, case)}
        if not case.words:
            runs["two"] = self._pool.submit(self._on, case, 2)
        runs["faults"] = self._pool.submit(self._through_faults, case)
        return runs

    def results(self, case: Case) -> dict[str, Ended]:
        return {name: run.result() for name, run in self._runs[case.name].items()}

    def lives(self, case: Case) -> Ended:
        """Run one more case through its faults, and return how its last life ended."""
        return self._pool.submit(self._through_faults, case).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _alone(self, case: Case) -> Ended:
        if case.is_loop:
            return self._nursery.alone(self._folder / f"{case.name}-alone", _command(case)[1:])
        return self._on(case, 1)

    def _on(self, case: Case, workers: int) -> Ended:
        return self._nursery.run(self._folder / f"{case.name}-{workers}", spec_of(case, workers))

    def _through_faults(self, case: Case) -> Ended:
        folder = self._folder / f"{case.name}-faults"
        *lives, (last, faults) = zip(case.workers, case.faults, strict=True)
        for workers, leaves in lives:
            ended = self._nursery.run(folder, spec_of(case, workers, faults=leaves))
            assert ended.exit == "suspended", f"{ended.exit}:\n{ended.said}"
        return self._nursery.run(folder, spec_of(case, last, faults=faults))


def _command(case: Case) -> tuple[str, ...]:
    return (sys.executable, str(CASES / case.source), *case.arguments)


def spec_of(case: Case, workers: int, *, faults: str = "") -> JobSpec:
    """The spec that `brim train` or `brim run` would make of the case."""
    options: dict[str, Any] = {
        "heartbeat_timeout": 15.0,
        "spares": int(bool(faults)),
        **case.options,
    }
    options |= {"capture": bool(os.environ.get(CAPTURED)) and workers > 1}
    if "checkpoint_every" in options:
        options["checkpoint_every"] = Interval(steps=options["checkpoint_every"])
    if case.is_loop:
        options |= {"command": _command(case), "parameters": {}}
    else:
        parameters = dict(argument.split("=") for argument in case.arguments)
        options = {"global_batch_size": 24, "epochs": 2, **options}
        options |= {"file": str(CASES / case.source), "parameters": parameters}
    size = WorkerRange(minimum=workers, maximum=workers)
    return JobSpec(workers=size, faults=parse_faults(faults), **options)


@pytest.fixture(scope="module")
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    selected: list[Any] = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
        and "case" in item.callspec.params
    ]
    imports = {case.needs for case in selected if case.needs}
    with Nursery(imports=[*sorted(imports), *getattr(request.module, "IMPORTS", ())]) as nursery:
        zoo = Zoo(nursery, tmp_path_factory.mktemp("zoo"), selected)
        try:
            yield zoo
        finally:
            zoo.close()


def exact_ones(cases: list[Case]) -> pytest.MarkDecorator:
    """A test of each exact case, of which every fourth is in the gate."""
    return _by_name([case for case in cases if not case.words], interval=4)


def refused_ones(cases: list[Case]) -> pytest.MarkDecorator:
    """A test of each refused case."""
    return _by_name([case for case in cases if case.words], interval=1)


def _by_name(cases: list[Case], *, interval: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=case.name,
                marks=_marks(case, is_long=case.is_long or bool(place % interval)),
            )
            for place, case in enumerate(cases)
        ],
    )


def _marks(case: Case, *, is_long: bool) -> list[pytest.MarkDecorator]:
    return [*_absent(case), *([LONG] if is_long else [])]


def _absent(case: Case) -> list[pytest.MarkDecorator]:
    is_present = not case.needs or find_spec(case.needs)
    return [] if is_present else [pytest.mark.skip(reason=f"no package {case.needs}")]


def check_exact(zoo: Zoo, case: Case) -> None:
    """Check that a case ends with the same weights in all of its runs."""
    runs = zoo.results(case)
    for name, ended in runs.items():
        assert ended.done, f"{name}:\n{ended.said}"
        assert ended.steps == case.steps, name
        assert (" is nan; " in ended.said) is case.unsound, name
        assert case.warned in ended.said, name
    assert {name: ended.digest for name, ended in runs.items()} == dict.fromkeys(
        runs, runs["alone"].digest
    )
    assert {name: ended.metrics for name, ended in runs.items()} == dict.fromkeys(
        runs, runs["alone"].metrics
    )
    recorded = {name: ended for name, ended in runs.items() if ended.exactly_once is not None}
    assert recorded.keys() >= {"two", "faults"}
    for name, ended in recorded.items():
        assert ended.exactly_once, name
        assert ended.epochs == case.epochs, name
    assert runs["two"].world_sizes == (2,)
    assert case.world_sizes <= set(runs["faults"].world_sizes)


def check_refused(zoo: Zoo, case: Case) -> None:
    """Check that no run of a case trains as if nothing were wrong.

    A run may go on without the newcomers that it has turned away.
    """
    runs = zoo.results(case)
    for name, ended in runs.items():
        if name == "alone" and case.harmless_alone:
            assert ended.done, ended.said
            continue
        assert case.words in ended.said, f"{name}:\n{ended.said}"
        if ended.done:
            assert "was turned away" in ended.said, f"{name} trained as if nothing were wrong"
            assert ended.digest == runs["alone"].digest
