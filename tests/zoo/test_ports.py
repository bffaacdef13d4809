"""Public examples as newcomers port them: a few lines change, and weights are the same through a kill."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from brim.domain.faults import parse_faults
from brim.domain.job import JobSpec, WorkerRange
from tiers import LONG
from zoo.exhibits import AT_ONCE
from zoo.running import Ended, Nursery

FOLDER = Path(__file__).parent / "ports"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-own-loop.md"
KILL = "kill rank 1 at step 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An example, as it is public and as it is ported.

    Args:
        name: of its files.
        steps: that its weights have seen.
        says: words of the plain script at its end.
        options: that `brim run` reads in the script.
        needs: a package without which it is skipped.
        imports: modules of it that take seconds.
        is_long: others show a port in the gate.
    """

    name: str
    steps: int
    says: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = "torch"
    imports: tuple[str, ...] = ()
    is_long: bool = False

    @property
    def changes(self) -> list[str]:
        """The lines that went and the lines that came."""
        plain, ported = (
            (FOLDER / f"{self.name}_{kind}.py").read_text().splitlines()
            for kind in ("plain", "brim")
        )
        lines = list(difflib.unified_diff(plain, ported, n=0, lineterm=""))[2:]
        return [line for line in lines if not line.startswith("@@")]


PORTS = [
    Port(name="mnist", steps=10, says="Test set: loss", is_long=True),
    Port(name="nanogpt", steps=10, says="iter 10: loss", options={"micro_batches": 4}),
    Port(name="dcgan", steps=10, says="Loss_G: ", is_long=True),
    Port(name="tabular", steps=16, says="epoch 3: train"),
    Port(
        name="hugging_face",
        steps=12,
        says="accuracy ",
        needs="transformers",
        imports=(
            "transformers.models.bert.modeling_bert",
            "transformers.data.data_collator",
            "transformers.optimization",
        ),
        is_long=True,
    ),
]


def each_port(*, trains: bool) -> pytest.MarkDecorator:
    """A test of each port.

    Args:
        trains: it does, so that some are left to the night.
    """
    return pytest.mark.parametrize(
        "port", [pytest.param(port, id=port.name, marks=_marks(port, trains)) for port in PORTS]
    )


def _marks(port: Port, trains: bool) -> list[pytest.MarkDecorator]:
    absent = pytest.mark.skipif(find_spec(port.needs) is None, reason=f"no {port.needs}")
    return [absent, *([LONG] if port.is_long and trains else [])]


class Runs:
    """Runs of the scripts, begun together.

    Args:
        ports: whose scripts.
    """

    def __init__(self, nursery: Nursery, folder: Path, ports: Sequence[Port]) -> None:
        self._nursery, self._folder = nursery, folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._begun: dict[str, dict[str, Future[Ended]]] = {
            port.name: {
                "plain": self._pool.submit(self._alone, port, "plain"),
                "alone": self._pool.submit(self._alone, port, "brim"),
                "two": self._pool.submit(self._two, port, ""),
                "killed": self._pool.submit(self._two, port, KILL),
            }
            for port in ports
        }

    def of(self, port: Port) -> dict[str, Ended]:
        return {name: run.result() for name, run in self._begun[port.name].items()}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _alone(self, port: Port, kind: str) -> Ended:
        script = FOLDER / f"{port.name}_{kind}.py"
        return self._nursery.alone(self._folder / f"{port.name}-{kind}", [str(script)], threads=1)

    def _two(self, port: Port, faults: str) -> Ended:
        spec = JobSpec(
            command=(sys.executable, str(FOLDER / f"{port.name}_brim.py")),
            parameters={},
            workers=WorkerRange(minimum=2, maximum=2),
            faults=parse_faults(faults),
            spares=int(bool(faults)),
            heartbeat_timeout=15.0,
            **port.options,
        )
        folder = self._folder / f"{port.name}-{len(faults)}"
        ended = self._nursery.run(folder, spec)
        assert (folder / "events.jsonl").read_text().count('"kind":"fault"') == bool(faults)
        return ended


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    trained = {
        item.name
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and "runs" in item.fixturenames
    }
    ports = [
        port
        for port in PORTS
        if find_spec(port.needs) and any(f"[{port.name}]" in name for name in trained)
    ]
    with Nursery(imports=[name for port in ports for name in port.imports]) as nursery:
        runs = Runs(nursery, tmp_path_factory.mktemp("ports"), ports)
        try:
            yield runs
        finally:
            runs.close()


@pytest.mark.e2e
@each_port(trains=True)
def test_ports_keep_weights_through_a_kill(runs: Runs, port: Port) -> None:
    ended = runs.of(port)
    plain = ended.pop("plain")
    assert port.says in plain.said
    assert "Traceback" not in plain.said
    for name, ended_run in ended.items():
        assert ended_run.done, f"{name}:\n{ended_run.said}"
        assert ended_run.steps == port.steps, name
        assert "the loss is" not in ended_run.said, name
        assert "the loss compares" not in ended_run.said, name
    assert {name: ended_run.digest for name, ended_run in ended.items()} == dict.fromkeys(
        ended, ended["alone"].digest
    )
    assert {name: ended_run.metrics for name, ended_run in ended.items()} == dict.fromkeys(
        ended, ended["alone"].metrics
    )
    assert ended["two"].exactly_once
    assert ended["killed"].exactly_once


@each_port(trains=False)
def test_the_page_counts_the_lines_of_a_port(port: Port) -> None:
    went = sum(line.startswith("-") for line in port.changes)
    (row,) = re.findall(
        rf"^\| \[[^\]]*\]\([^)]*{port.name}_plain\.py\) \| (\d+) \| (\d+) \|",
        PAGE.read_text(),
        re.M,
    )
    assert row == (str(went), str(len(port.changes) - went))
