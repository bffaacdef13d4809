"""The scripts of the page "your script": plain ones run, ports have the same weights through deaths
and joins.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from brim.domain.faults import parse_faults
from brim.domain.job import JobSpec, WorkerRange
from zoo.running import Ended, Nursery

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "03-your-script"
PAGE = ROOT / "docs" / "guides" / "your-script.md"
FAULTS = "kill rank 1 at step 2; add 1 at step 3"  # of few: who joins needs time to come
STEPS = {"mnist": 15, "words": 16, "gan": 12, "amp": 15, "bert": 18, "lightning": 15}
NEEDS = {"bert": "transformers", "lightning": "lightning"}
IMPORTS = {  # that take seconds: packages import most of what they have as it is asked for
    "transformers": ["transformers.models.bert.modeling_bert", "transformers.optimization"],
    "lightning": ["lightning"],
}
AT_ONCE = 2


def absent(name: str) -> bool:
    return name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None


def by_name(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                name, marks=pytest.mark.skipif(absent(name), reason=f"no package {NEEDS.get(name)}")
            )
            for name in names
        ],
    )


class Runs:
    """Runs of scripts, started together and looked at by one test each."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery, self._folder = nursery, folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        available = [name for name in STEPS if not absent(name)]
        self._alone = {name: self._pool.submit(self.alone, f"{name}_brim.py") for name in available}
        self._elastic = {
            name: self._pool.submit(self.elastic, f"{name}_brim.py") for name in available
        }

    def of(self, name: str) -> tuple[Ended, Ended]:
        return self._alone[name].result(), self._elastic[name].result()

    def alone(self, script: str, *arguments: str) -> Ended:
        folder = self._folder / f"{Path(script).stem}{len(arguments)}-alone"
        return self._nursery.alone(folder, [str(SCRIPTS / script), *arguments])

    def elastic(self, script: str, *arguments: str) -> Ended:
        """Three workers, of which one is killed and to which one joins."""
        return self._run(script, command=(sys.executable, str(SCRIPTS / script), *arguments))

    def trained(self, script: str, batch_size: int) -> tuple[Ended, Ended]:
        """A training file on one worker, and in the same life as the scripts."""
        fields: dict[str, Any] = {
            "file": str(SCRIPTS / script),
            "global_batch_size": batch_size,
            "epochs": 3,
        }
        return self._run(script, workers=1, faults="", **fields), self._run(script, **fields)

    def _run(self, script: str, *, workers: int = 3, faults: str = FAULTS, **fields: Any) -> Ended:
        spec = JobSpec(
            workers=WorkerRange(minimum=workers, maximum=workers),
            faults=parse_faults(faults),
            heartbeat_timeout=15.0,
            spares=1,
            parameters={},
            **fields,
        )
        return self._nursery.run(
            self._folder
            / f"{Path(script).stem}{workers}{len(fields)}{fields.get('command', ())[2:]}",
            spec,
        )

    def submit(self, work: Any, *arguments: str) -> Future[Ended]:
        return self._pool.submit(work, *arguments)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    imports = [
        name
        for package, names in IMPORTS.items()
        if importlib.util.find_spec(package)
        for name in names
    ]
    with Nursery(imports=imports) as nursery:
        runs = Runs(nursery, tmp_path_factory.mktemp("scripts"))
        try:
            yield runs
        finally:
            runs.close()


def check_same(plain: Ended, elastic: Ended, steps: int) -> None:
    assert plain.done, plain.said
    assert elastic.done, elastic.said
    assert (plain.steps, elastic.steps) == (steps, steps)
    assert elastic.digest == plain.digest
    assert elastic.metrics == plain.metrics
    assert elastic.exactly_once
    assert set(elastic.world_sizes) >= {3, 4}  # a spare takes the place of the dead at once


@pytest.mark.e2e
@by_name(list(STEPS))
def test_ports_keep_weights_through_death_and_join(runs: Runs, name: str) -> None:
    plain, elastic = runs.of(name)
    check_same(plain, elastic, STEPS[name])


@pytest.mark.e2e
def test_float16_with_scaled_losses_keeps_weights(runs: Runs) -> None:
    plain = runs.submit(runs.alone, "amp_brim.py", "fp16")
    elastic = runs.elastic("amp_brim.py", "fp16")
    check_same(plain.result(), elastic, STEPS["amp"])
    assert plain.result().digest != runs.of("amp")[0].digest


@pytest.mark.e2e
@by_name(["bert", "lightning"])
def test_foreign_models_train_from_a_training_file(runs: Runs, name: str) -> None:
    plain, elastic = runs.trained(f"{name}_training_file.py", {"bert": 32, "lightning": 64}[name])
    check_same(plain, elastic, STEPS[name])


@pytest.mark.e2e
@by_name(list(STEPS))
def test_a_plain_script_runs(runs: Runs, name: str) -> None:
    ended = runs.alone(f"{name}_plain.py")
    assert "Traceback" not in ended.said, ended.said
    assert re.search(r"(accuracy|perplexity|loss|generator) \d+\.\d", ended.said), ended.said


# The page -----------------------------------------------------------------------------------------


def changes(name: str, port: str) -> list[str]:
    """The diff of two scripts without context: lines that went, and lines that came."""
    plain, ported = (
        (SCRIPTS / f"{name}_{kind}.py").read_text().splitlines() for kind in ("plain", port)
    )
    lines = list(difflib.unified_diff(plain, ported, n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


@pytest.mark.parametrize("name", STEPS)
def test_the_page_shows_the_diff_of_the_files(name: str) -> None:
    assert "\n".join(["```diff", *changes(name, "brim"), "```"]) in PAGE.read_text()


def test_the_page_shows_the_lightning_training_file() -> None:
    code = (SCRIPTS / "lightning_training_file.py").read_text().partition('"""\n\n')[2]
    lines = [line for line in code.splitlines() if line]
    assert f"```python\n{code}```" in PAGE.read_text()
    assert f"These {len(lines)} lines" in PAGE.read_text()


@pytest.mark.parametrize("name", STEPS)
def test_the_page_counts_the_lines_that_change(name: str) -> None:
    brim = len(changes(name, "brim"))
    counted_lines = (
        len(changes(name, "accelerate")) if (SCRIPTS / f"{name}_accelerate.py").exists() else None
    )
    (row,) = re.findall(
        rf"^\| \[[^\]]*\]\(#{name}\) \| (\d+) \| (\S+)", PAGE.read_text(), re.MULTILINE
    )
    assert row == (str(brim), "none" if counted_lines is None else str(counted_lines))
