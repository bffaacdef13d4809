"""A `brim.Embedding` that is served looks up the same rows as the trained one, bit for bit."""

from __future__ import annotations

import resource
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brim
from brim.embeddings.keyed import Embedding, HeldRows, hold
from brim.embeddings.tables.keys import mix, unmix
from brim.errors import SpecError
from brim.serving.keyed import KeyedLookup, with_lookups
from brim.serving.program import Program, Served, load_program, save_program, tables_of

IDS = torch.arange(300) * (2**62 // 300)


def trained(rows: int, **options: Any) -> brim.Embedding:
    embedding = brim.Embedding(4, **{"scale": 0.3, **options})
    keys = mix(IDS[:rows]).sort().values
    hold(embedding, HeldRows(keys, torch.randn(rows, 4, dtype=embedding.weight.dtype)))
    return embedding


class Net(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.deep = trained(rows)
        self.same = self.deep
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = self.out(
            torch.tanh(self.deep(ids) + self.same(ids + 1)).sum(1)
        ).squeeze(1)
        return looked_up


@pytest.mark.parametrize("rows", [0, 1, 100, 300])
@pytest.mark.parametrize(
    "options", [{}, {"init": "normal"}, {"init": "zeros"}, {"dtype": torch.float64}], ids=str
)
def test_served_ids_have_their_trained_vectors(rows: int, options: dict[str, Any]) -> None:
    embedding = trained(rows, **options)
    lookup = KeyedLookup(embedding, "deep")
    for ids in (
        IDS.reshape(-1, 3)[:100],
        IDS[:0],
        IDS[200:201],
        torch.tensor([[7, 7]], dtype=torch.int32),
    ):
        assert torch.equal(lookup(ids), embedding(ids).detach())


def test_keys_that_do_not_spread_are_found_too() -> None:
    """A caller that knows how ids are mixed can choose ids whose keys are neighbours."""
    keys = torch.arange(2**40, 2**40 + 500)
    embedding = brim.Embedding(4)
    hold(embedding, HeldRows(keys, torch.randn(500, 4)))
    lookup = KeyedLookup(embedding, "deep")
    for queries in (
        keys,
        keys[::7],
        torch.tensor([0, 2**40 - 1, 2**40 + 499, 2**40 + 500, 2**63 - 1]),
    ):
        assert torch.equal(lookup(unmix(queries)), embedding(unmix(queries)).detach())


def test_no_id_is_negative() -> None:
    lookup = KeyedLookup(trained(3, name="users"), "deep")
    with pytest.raises(SpecError, match="ids of 'users': got -1"):
        lookup(torch.tensor([1, -1]))


def test_a_full_disk_ends_no_export(tmp_path: Path) -> None:
    """What the disk says is an error in words."""
    served = Served(with_lookups(Net(50)), None, None).eval()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_program(tmp_path / "model.pt2", served, IDS[:12].reshape(4, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_program_takes_rows_of_any_number(tmp_path: Path) -> None:
    """It is traced once, with as many rows as there were then."""
    torch.manual_seed(0)
    served = Served(with_lookups(Net(50)), None, None).eval()
    assert [(table.name, table.keyed) for table in tables_of(served)] == [
        ("model.deep.weight", True)
    ]
    assert save_program(tmp_path / "model.pt2", served, IDS[:12].reshape(4, 3)) == ""
    assert (tmp_path / "model.pt2").stat().st_size < 100_000
    programs = [
        Program(load_program(tmp_path / "model.pt2")),
        Program(Served(with_lookups(Net(0)), None, None).eval()),  # as code of a bundle makes it
    ]
    for program, rows in product(programs, (50, 0, 300)):
        net = Net(rows).eval()
        ids = IDS[: 3 * 90].reshape(90, 3)
        with torch.no_grad():
            expected = net(ids)
        state = dict(Served(with_lookups(net), None, None).state_dict())
        assert torch.equal(program.run(state, ids, 90)["output"], expected)


def test_custom_lookups_are_refused() -> None:
    class CustomEmbedding(Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids % 7)

    with pytest.raises(
        SpecError, match=r"embedding '0'.*CustomEmbedding, which has a forward\(\) of its own"
    ):
        with_lookups(nn.Sequential(CustomEmbedding(4)))
