"""A spec that can be built can be run: every field is checked, by itself and beside the others."""

from __future__ import annotations

from typing import Any

import pytest

from brim.domain.faults import parse_faults
from brim.domain.job import JobSpec, WorkerRange, fewest_micro_batches
from brim.errors import SpecError


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"parameters": {}, "workers": WorkerRange.parse("1:4"), **fields})


@pytest.mark.parametrize(
    ("workers", "parts"), [("1", 8), ("8", 8), ("1:9", 16), ("16", 16), ("17", 32)]
)
def test_default_micro_batches_are_a_power_of_two(workers: str, parts: int) -> None:
    assert spec(workers=WorkerRange.parse(workers)).micro_batches == parts


@pytest.mark.parametrize(
    ("workers", "parts"), [("1", 1), ("2", 2), ("3", 4), ("1:4", 4), ("9", 16)]
)
def test_the_fewest_micro_batches_fit_the_largest_world(workers: str, parts: int) -> None:
    fewest = fewest_micro_batches(WorkerRange.parse(workers))
    assert fewest == parts
    assert spec(workers=WorkerRange.parse(workers), micro_batches=fewest).micro_batches == parts


def test_given_micro_batches_stay() -> None:
    assert spec(micro_batches=6).micro_batches == 6


def test_inexact_training_allows_surplus_workers() -> None:
    assert spec(micro_batches=2, exact=False).micro_batches == 2


@pytest.mark.parametrize("text", ["4", "1:4"])
def test_worker_ranges_round_trip(text: str) -> None:
    assert str(WorkerRange.parse(text)) == text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"epochs": -1}, "--epochs"),
        ({"global_batch_size": -1, "micro_batches": 4}, "--global-batch-size"),
        ({"global_batch_size": 7}, "--global-batch-size"),
        ({"micro_batches": -1}, "--micro-batches"),
        ({"micro_batches": 2}, "--micro-batches"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**63}, "--seed"),
        ({"threads": 0}, "--threads"),
        ({"loaders": -1}, "--loaders"),
        ({"agents": 0}, "--agents"),
        ({"spares": -1}, "--spares"),
        ({"keep": 0}, "--keep"),
        ({"clip_norm": 0.0}, "--clip-norm"),
        ({"clip_norm": float("nan")}, "--clip-norm"),
        ({"heartbeat_timeout": 0.0}, "--heartbeat-timeout"),
        ({"start_method": "thread"}, "--start-method"),
        ({"transport": "mpi"}, "--transport"),
        ({"device": "tpu"}, "--device"),
        ({"file": "a.py", "command": ("python",)}, "FILE"),
        ({"parameters": {"a b": "1"}}, "--set a b"),
        ({"faults": parse_faults("kill rank 8 at step 1")}, "--faults"),
    ],
)
def test_a_wrong_field_is_named_with_its_need(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec(**fields)
    assert raised.value.field == field
    assert raised.value.need
    assert raised.value.hint


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exact": False}, "got 1 beside --no-exact"),
        ({"transport": "distributed"}, "got 1 beside --transport distributed"),
        ({"embeddings": "dense"}, "got 1 beside --embeddings dense"),
    ],
)
def test_servers_need_embeddings_by_rows(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"--ps: {words}"):
        spec(servers=1, **fields)


def test_a_fault_may_strike_a_server() -> None:
    assert spec(servers=1, faults=parse_faults("kill rank 8 at step 3")).servers == 1
    with pytest.raises(
        SpecError, match="need a rank below 9, the most workers and servers this job can have"
    ):
        spec(servers=1, faults=parse_faults("kill rank 9 at step 3"))
