"""The start values of rows: the same numbers wherever they are computed,
and those of the distribution.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from brim.embeddings.tables.keys import mix
from brim.embeddings.tables.start_values import KINDS, start_values

KEYS = mix(torch.arange(20_000)).sort().values


def values(keys: Tensor = KEYS, dim: int = 7, **options: Any) -> Tensor:
    return start_values(keys, dim, **{"kind": "uniform", "scale": 0.01, "seed": 5, **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_depend_on_key_and_column(kind: str, dtype: torch.dtype) -> None:
    whole = values(kind=kind, dtype=dtype)
    assert whole.dtype is dtype
    shuffled = torch.randperm(len(KEYS), generator=torch.Generator().manual_seed(1))
    assert torch.equal(values(KEYS[shuffled], kind=kind, dtype=dtype), whole[shuffled])
    for start, stop in ((0, 1), (17, 22), (len(KEYS) - 3, len(KEYS))):
        assert torch.equal(values(KEYS[start:stop], kind=kind, dtype=dtype), whole[start:stop])
    assert torch.equal(values(dim=3, kind=kind, dtype=dtype), whole[:, :3])


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_seed_key_and_column_each_count(kind: str) -> None:
    first = values(kind=kind)
    for other_values in (values(kind=kind, seed=6), values(KEYS + 1, kind=kind)):
        correlation = torch.corrcoef(torch.stack([first.flatten(), other_values.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.015  # of 140,000 pairs: one in 10 million is larger
    between_columns = torch.corrcoef(first.T)
    assert float((between_columns - torch.eye(7)).abs().max()) < 0.04


def test_uniform_values_fill_their_range_evenly() -> None:
    found = values(scale=0.5).flatten().double()
    assert -0.5 < float(found.min()) < -0.4999
    assert 0.4999 < float(found.max()) < 0.5
    assert abs(float(found.mean())) < 0.004
    counts = torch.histc(found.float(), bins=64, min=-0.5, max=0.5)
    average = found.numel() / 64
    assert float(((counts - average) ** 2 / average).sum()) < 110
    assert not (found == 0).any()


def test_normal_values_have_the_moments_of_the_distribution() -> None:
    found = values(kind="normal", scale=2.0).flatten().double()
    assert abs(float(found.mean())) < 0.03
    assert abs(float(found.std()) - 2) < 0.02
    assert abs(float((found**4).mean() / found.var() ** 2) - 3) < 0.1
    assert abs(float((found.abs() < 2).double().mean()) - 0.6827) < 0.006


def test_values_never_change_between_versions() -> None:
    keys = torch.tensor([0, 1, (1 << 63) - 1])
    found = {kind: values(keys, 2, kind=kind, scale=1.0).tolist() for kind in KINDS}
    assert found == {
        "uniform": [
            [-0.12926846742630005, -0.9511213898658752],
            [0.7194769978523254, 0.27494174242019653],
            [0.8997616171836853, -0.2219417691230774],
        ],
        "normal": [
            [1.5174609422683716, 0.061542000621557236],
            [-0.3591510057449341, -1.0912870168685913],
            [-0.12609300017356873, 1.2214280366897583],
        ],
        "zeros": [[0.0, 0.0]] * 3,
    }
