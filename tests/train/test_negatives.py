"""Training on a share of the negatives: which rows they are, and what it makes of probabilities."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from brim import data
from brim.data.datasets import Columnar
from brim.errors import SpecError
from brim.models import Calibrated

ROWS = 4000
COLUMNS = [data.numeric("place", transform=None)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    click = (chance.random(ROWS) < 0.1).astype(int)
    table = pa.table({"place": np.arange(ROWS), "click": click, "user": np.arange(ROWS) // 10})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=700)
    return tmp_path / "rows.parquet"


def read(path: Path, **options: Any) -> Columnar:
    target = options.pop("target", data.target("click"))
    return data.parquet(path, columns=COLUMNS, target=target, **options)


def places(dataset: Columnar) -> dict[int, int]:
    """Each place and its target."""
    inputs, target = dataset.take(np.arange(len(dataset)))
    return dict(zip(inputs["numbers"][:, 0].int().tolist(), target.int().tolist(), strict=True))


@pytest.mark.parametrize("in_memory", [True, False])
def test_all_positives_and_a_share_of_the_negatives(in_memory: bool, path: Path) -> None:
    every = places(read(path))
    # The same share as of the test split, whose rows are others all the same.
    options = {"test": data.sample(0.2), "in_memory": in_memory}
    thin = options | {"negatives": data.sample(0.2)}
    train, test = read(path, split="train", **thin), read(path, split="test", **thin)
    whole = places(read(path, split="train", **options))
    assert places(test) == places(read(path, split="test", **options))
    sampled = places(train)
    positives = {place for place, click in whole.items() if click}
    assert positives <= sampled.keys() < whole.keys()
    assert all(every[place] == click for place, click in sampled.items())
    negatives = len(sampled) - len(positives)
    assert abs(negatives / (len(whole) - len(positives)) - 0.2) < 0.03
    assert train.negatives == test.negatives == 0.2
    assert train.over(path).negatives == 1
    assert len(train.over(path)) == ROWS  # to measure on, or to predict
    assert len(train.over(path, train=True)) == len(read(path, negatives=data.sample(0.2)))
    other = read(path, split="train", **options, negatives=data.sample(0.2, seed=1))
    assert places(other).keys() != sampled.keys()


def test_negatives_of_a_user_stay_together(path: Path) -> None:
    sampled = places(read(path, negatives=data.sample(0.3, by="user")))
    of_users: dict[int, int] = {}
    for place, click in sampled.items():
        of_users[place // 10] = of_users.get(place // 10, 0) + (not click)
    every = places(read(path))
    for user, count in of_users.items():
        negatives = sum(not every[place] for place in range(10 * user, 10 * user + 10))
        assert count in (0, negatives)


def test_followed_parts_leave_negatives_out(path: Path) -> None:
    history = read(path, negatives=data.sample(0.2))
    stream = data.follow(history, str(path.parent / "*.parquet"), rows=len(history))
    epoch = [int(inputs["numbers"][0]) for inputs, _ in stream.dataset]
    assert sorted(epoch) == sorted(places(history))


def test_what_cannot_be_corrected_is_refused(path: Path) -> None:
    share = data.sample(0.2)
    with pytest.raises(SpecError, match="need the share of them"):
        read(path, negatives=0.2)
    with pytest.raises(SpecError, match=r"a target of -1 in .*\n.*above=0"):
        read(path, negatives=share, target=data.target("click", by=lambda click: 2 * click - 1))
    with pytest.raises(SpecError, match="several targets"):
        read(path, negatives=share, target=[data.target("click"), data.target("user")])
    with pytest.raises(SpecError, match="a target of classes"):
        read(path, negatives=share, target=data.target("click", classes=True))
    with pytest.raises(SpecError, match="need a share above 0"):
        Calibrated(nn.Identity(), 0.0)


def test_correction_is_that_of_he_et_al() -> None:
    logits, share = torch.linspace(-6, 6, 50, dtype=torch.float64), 0.05
    model = Calibrated(nn.Identity(), share)
    assert torch.equal(model(logits), logits)
    q = torch.sigmoid(logits)
    corrected = torch.sigmoid(model.eval()(logits))
    torch.testing.assert_close(corrected, q / (q + (1 - q) / share))
    assert all(low < high for low, high in pairwise(corrected.tolist()))
