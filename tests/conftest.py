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
import json
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
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
_MODULES = [Path(__file__).parents[1] / place for place in ("src", "lab/src")]
DURATIONS = Path(__file__).with_name("durations.json")
MEASURE = "BRIM_TEST_DURATIONS"  # a variable that has them written down
_AT_LEAST = 1.0  # seconds of a file that is worth a line
_spent: defaultdict[str, float] = defaultdict(float)
CALM = "BRIM_TEST_CALM"  # a variable: the folder of the undisturbed runs that all processes share
_shared = contextlib.ExitStack()  # by the process that starts all others


class _DoctestFiles:
    """Leaves modules without a doctest unimported: all processes collect, and some import for seconds."""

    @staticmethod
    def pytest_ignore_collect(collection_path: Path) -> bool | None:
        is_module = collection_path.suffix == ".py" and any(
            collection_path.is_relative_to(place) for place in _MODULES
        )
        return True if is_module and ">>>" not in collection_path.read_text() else None


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
