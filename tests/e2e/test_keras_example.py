"""The examples of Keras: one digest through a death and a join, and a file that Keras loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from brim.domain.faults import parse_faults
from brim.domain.job import JobSpec, WorkerRange
from tiers import LONG
from zoo.running import Ended, Nursery

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "07-keras"
FAULTS = "kill rank 1 at step 20; add 1 at step 40"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not find_spec("keras"), reason="Keras is not installed"),
    LONG,
]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(imports=["keras", "sklearn.datasets"]) as nursery:
        yield nursery


def run(nursery: Nursery, folder: Path, workers: int, faults: str, **fields: Any) -> Ended:
    size = WorkerRange(minimum=workers, maximum=workers)
    ended = nursery.run(
        folder, JobSpec(workers=size, faults=parse_faults(faults), parameters={}, **fields)
    )
    assert ended.done, ended.said
    return ended


def test_script_has_one_digest_and_saves_its_model(nursery: Nursery, tmp_path: Path) -> None:
    script = str(EXAMPLES / "digits.py")
    alone = nursery.alone(tmp_path / "alone", [script])
    elastic = run(nursery, tmp_path / "three", 3, FAULTS, command=(sys.executable, script))
    assert alone.done, alone.said
    assert elastic.digest == alone.digest
    assert elastic.exactly_once
    (accuracies,) = [line for line in alone.said.splitlines() if "accuracy after" in line]
    assert accuracies in elastic.said
    (saved,) = tmp_path.glob("three/**/digits.keras")
    load = (
        "import brim.keras, keras, sys; print(keras.models.load_model(sys.argv[1]).count_params())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", load, str(saved)], capture_output=True, text=True, timeout=100
    )
    assert answer.stdout.split() == ["10474"], answer.stderr


def test_training_file_has_one_digest(nursery: Nursery, tmp_path: Path) -> None:
    fields = {"file": str(EXAMPLES / "training_file.py"), "global_batch_size": 128, "epochs": 4}
    one = run(nursery, tmp_path / "one", 1, "", **fields)
    three = run(nursery, tmp_path / "three", 3, FAULTS, **fields)
    assert three.digest == one.digest
    assert three.metrics == one.metrics
    assert one.metrics["accuracy"] > 0.7
