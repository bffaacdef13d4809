"""Columns of types that other tools write are read, or refused by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brim import data
from brim.data import typed
from brim.data.columns import Column, Target
from brim.errors import SpecError

ROWS = 12
_UUIDS = [uuid.UUID(int=row % 3) for row in range(ROWS)]


def extended(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


COLUMNS = {
    "uuid": extended(pa.uuid(), [uuid_.bytes for uuid_ in _UUIDS]),
    "json": extended(pa.json_(), [f'{{"a": {row % 3}}}' for row in range(ROWS)]),
    "hugeint": extended(
        pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
        [(row % 3).to_bytes(16, "little") for row in range(ROWS)],
    ),
    "run_ends": pa.RunEndEncodedArray.from_arrays([4, 8, 12], ["a", "b", "c"]),
}


def read(path: Path, column: Column, target: Target | None = None) -> data.Columnar:
    return data.arrow(path, columns=[column], target=target or data.target("late"))


def write(path: Path, column: pa.Array) -> Path:
    table = pa.table({"given": column, "late": [row % 2 for row in range(ROWS)]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize(
    "column",
    [data.vocabulary("given"), data.hashed("given", buckets=97), data.vocabulary("given", "late")],
    ids=["vocabulary", "hashed", "crossed"],
)
def test_values_of_odd_types_are_categories(kind: str, column: Column, tmp_path: Path) -> None:
    found = read(write(tmp_path / "t.arrow", COLUMNS[kind]), column)
    ids = [int(found[row][0]["ids"]) for row in range(ROWS)]
    values = COLUMNS[kind].to_pylist()
    late = [row % 2 if "late" in column.name else 0 for row in range(ROWS)]
    assert len(set(ids)) == len(set(zip(map(str, values), late, strict=True)))


@pytest.mark.parametrize("kind", COLUMNS)
def test_odd_types_are_no_numbers(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"need numbers\n  hint: brim.data.vocabulary\('given'\)"):
        read(write(tmp_path / "t.arrow", COLUMNS[kind]), data.numeric("given"))


def test_target_equals_the_text_of_a_uuid(tmp_path: Path) -> None:
    path = write(tmp_path / "t.arrow", COLUMNS["uuid"])
    found = read(path, data.numeric("late"), data.target("given", equals=str(_UUIDS[1])))
    assert [int(found[row][1]) for row in range(ROWS)] == [int(row % 3 == 1) for row in range(ROWS)]


def test_truth_values_of_bytes_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.arrow", extended(pa.bool8(), [row % 2 for row in range(ROWS)]))
    found = read(path, data.numeric("given", transform=None))
    assert [float(found[row][0]["numbers"]) for row in range(3)] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_instants_are_seconds_in_each_unit(unit: str, tmp_path: Path) -> None:
    parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    instants = pa.array(
        [3 * row * parts + (unit == "ns") for row in range(1, ROWS + 1)], pa.timestamp(unit)
    )
    found = read(write(tmp_path / "t.arrow", instants), data.numeric("given", transform=None))
    np.testing.assert_allclose(
        [float(found[row][0]["numbers"]) for row in range(ROWS)],
        [3.0 * row for row in range(1, ROWS + 1)],
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_stream_of_arrow_is_read(in_memory: bool, tmp_path: Path) -> None:
    table = pa.table({"given": range(ROWS), "late": [row % 2 for row in range(ROWS)]})
    path = tmp_path / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=5):
            writer.write_batch(batch)
    column = data.numeric("given", transform=None)
    found = data.arrow(path, columns=[column], target=data.target("late"), in_memory=in_memory)
    inputs, _ = found.take(np.array([11, 0, 6]))
    assert inputs["numbers"].flatten().tolist() == [11.0, 0.0, 6.0]


@pytest.mark.parametrize("reader", [data.arrow, data.parquet])
def test_type_that_arrow_lacks_is_refused(
    reader: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    monkeypatch.setattr(typed, "_Batches", refuse)
    path = write(tmp_path / "t", pa.array(range(ROWS)))
    with pytest.raises(SpecError, match=r"more than 64 bits(.|\n)*integers of 64 bits, float64"):
        reader(path, columns=[data.numeric("given")], target=data.target("late"))


# Text ---------------------------------------------------------------------------------------------

TEXT = "color,late\n" + "grün,yes\nrot,no\n" * 3


def read_text(path: Path, content: bytes, target: Target) -> data.Columnar:
    path.write_bytes(content)
    return data.csv(path, columns=[data.vocabulary("color")], target=target)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_with_a_mark_is_read(encoding: str, tmp_path: Path) -> None:
    found = read_text(tmp_path / "t.csv", TEXT.encode(encoding), data.target("late", equals="yes"))
    assert [int(found[row][1]) for row in range(6)] == [1, 0, 1, 0, 1, 0]
    assert found.vocabulary_size == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TEXT.encode("utf-16-le"), "bytes of value 0"),
        (TEXT.encode("utf-16-be"), "bytes of value 0"),
        (TEXT.encode("utf-16")[:-1], "whole text"),
    ],
    ids=["no mark", "no mark, big end first", "cut"],
)
def test_text_of_unknown_encoding_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        read_text(tmp_path / "t.csv", content, data.target("late", equals="yes"))


def test_target_that_is_text_hints_at_equals(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"hint: brim.data.target\('late', equals='yes'\)"):
        read_text(tmp_path / "t.csv", TEXT.encode(), data.target("late"))
    path = write(tmp_path / "t.arrow", COLUMNS["run_ends"])
    with pytest.raises(SpecError, match=r"hint: brim.data.target\('given', equals=…\)"):
        read(path, data.numeric("late"), data.target("given"))
