"""How tests are run: in which order, from which processes, and with which examples.

Hypothesis draws the same examples in every run. `BRIM_HYPOTHESIS=thorough` draws many more,
`BRIM_HYPOTHESIS=quick` a few.

Commands of brim are forks of a warm process (`brim_lab.warm`), but for tests marked `cold`;
`BRIM_TEST_COLD=1` starts each anew. No run leaves a warm process of its own behind.

The files that take longest go first, so that none is left alone at the end. `make durations`
measures them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from brim_lab import warm

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=5_000)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=10)
settings.load_profile(os.environ.get("BRIM_HYPOTHESIS", "ci"))

# What the tests run, in processes of its own.
collect_ignore_glob = [
    "e2e/files/*",
    "e2e/doomed/*",
    "zoo/cases/*",
    "zoo/nursery.py",
    "zoo/ports/*",
    "zoo/pace.py",
]
DURATIONS = Path(__file__).with_name("durations.json")
MEASURE = "BRIM_TEST_DURATIONS"  # a variable that has them written down
_AT_LEAST = 1.0  # seconds of a file that is worth a line
_spent: defaultdict[str, float] = defaultdict(float)
CALM = "BRIM_TEST_CALM"  # a variable: the folder of the undisturbed runs that all processes share
_shared = contextlib.ExitStack()  # by the process that starts all others


class _DoctestFiles:
    """Leaves a file without a doctest to its tests: all processes collect, and some modules import
    for seconds.
    """

    @staticmethod
    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(file_path: Path) -> Generator[None, list[object], list[object]]:
        found = yield
        has_doctest = any(isinstance(collector, DoctestModule) for collector in found)
        if not has_doctest or ">>>" in file_path.read_text():
            return found
        return [collector for collector in found if not isinstance(collector, DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_DoctestFiles())
    if CALM not in os.environ:
        os.environ[CALM] = _shared.enter_context(tempfile.TemporaryDirectory())
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as a shell starts what it does not wait for
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("BRIM_KEEP_WARM", "0")
    if not os.environ.get("BRIM_TEST_COLD"):
        warm.use()


def pytest_unconfigure() -> None:
    warm.end()
    _shared.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    is_cold = item.get_closest_marker("cold") is not None
    with warm.cold() if is_cold else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: what is imported stays, and is not looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seconds = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -seconds.get(_file_of(item.nodeid), 0))


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent[_file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get(MEASURE) and not hasattr(session.config, "workerinput"):
        found = {file: round(spent) for file, spent in _spent.items() if spent >= _AT_LEAST}
        DURATIONS.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
