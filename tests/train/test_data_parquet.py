"""Parquet and Arrow files, in memory and by row group, hold the same samples."""

import datetime
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim import data
from brim.data.columns import Column
from brim.data.typed import RowGroup
from brim.domain.order import EpochOrder
from brim.errors import SpecError

ROWS = 103
COLUMNS = (
    data.vocabulary("color", min_count=2),
    data.hashed("color", "size", buckets=97),
    data.numeric("size"),
    data.numeric("weight", transform="log", missing="mean"),
)
LATE = data.target("late")


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    weights = [None if row % 9 == 0 else float(row) for row in range(ROWS)]
    return pa.table(
        {
            "color": rng.choice(np.array(["red", "green", "blue", None]), ROWS).tolist(),
            "size": rng.integers(0, 9, ROWS),
            "weight": weights,
            "late": rng.integers(0, 2, ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    pq.write_table(table, path / "t.parquet", row_group_size=20)
    pyarrow.feather.write_feather(table, path / "t.feather", chunksize=20)
    pyarrow.csv.write_csv(table, path / "t.csv")
    return path


def check_same(
    first_data: data.Columnar, two: data.Columnar, indices: list[int] | None = None
) -> None:
    chosen = np.arange(len(first_data)) if indices is None else np.array(indices)
    (first, target), (second, second_target) = first_data.take(chosen), two.take(chosen)
    assert torch.equal(target, second_target)
    assert torch.equal(first["ids"], second["ids"])
    torch.testing.assert_close(first["numbers"], second["numbers"])


@pytest.mark.parametrize("split", ["train", "test", None])
@pytest.mark.parametrize("test", [data.last(0.2), data.sample(0.3)])
def test_every_way_of_reading_gives_the_same_samples(
    folder: Path, split: str, test: object
) -> None:
    options: dict[str, Any] = {"columns": COLUMNS, "target": LATE, "split": split, "test": test}
    memory = data.parquet(folder / "t.parquet", **options)
    check_same(memory, data.parquet(folder / "t.parquet", in_memory=False, **options))
    check_same(memory, data.parquet(folder / "t.feather", **options))
    check_same(memory, data.arrow(folder / "t.feather", in_memory=False, **options))
    check_same(memory, data.csv(folder / "t.csv", **options))


def test_reading_does_not_import_pandas(folder: Path) -> None:
    code = f"""
import sys
from brim import data
columns = [data.vocabulary("color"), data.numeric("size"), data.numeric("weight", missing=0)]
for name, read in (("t.csv", data.csv), ("t.parquet", data.parquet), ("t.feather", data.arrow)):
    read({str(folder)!r} + "/" + name, columns=columns, target=data.target("late"))
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=30))
@settings(deadline=None, max_examples=30)
def test_any_batch_is_the_same_by_row_group(folder: Path, indices: list[int]) -> None:
    memory = data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE)
    lazy = data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE, in_memory=False)
    check_same(memory, lazy, indices)


def test_a_block_shuffle_reads_each_group_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE, in_memory=False)
    assert (len(lazy), lazy.block_size) == (ROWS, 20)
    reads: list[int] = []
    read = RowGroup.read

    def counted(group: RowGroup) -> Any:
        reads.append(group.start)
        return read(group)

    monkeypatch.setattr(RowGroup, "read", counted)
    order = EpochOrder(seed=3, epoch=0, size=ROWS, block_size=lazy.block_size)
    for start in range(0, ROWS, 8):
        data.fetch(lazy, order.samples(start, min(start + 8, ROWS)))
    assert sorted(reads) == [0, 20, 40, 60, 80, 100]


def test_second_splits_need_no_second_survey(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"columns": COLUMNS, "target": LATE, "test": data.last(0.2)}
    options["in_memory"] = False
    train = data.parquet(folder / "t.parquet", split="train", **options)
    monkeypatch.setattr("brim.data.load.survey", None)
    assert len(train) + len(data.parquet(folder / "t.parquet", split="test", **options)) == ROWS


def test_a_dataset_by_group_travels_without_its_cache(folder: Path) -> None:
    lazy = data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE, in_memory=False)
    lazy.take(np.arange(50))
    check_same(lazy, pickle.loads(pickle.dumps(lazy)))


def test_a_random_order_keeps_the_cache_bounded(folder: Path) -> None:
    lazy = data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE, in_memory=False)
    for index in np.random.default_rng(0).integers(0, ROWS, 60):
        lazy[int(index)]
    assert len(lazy._cache) <= 4  # type: ignore[attr-defined]


def test_typed_values_are_numbers_or_categories(tmp_path: Path) -> None:
    day = datetime.datetime(1970, 1, 2)
    table = pa.table(
        {
            "at": [day, day],
            "day": [day.date(), day.date()],
            "flag": [True, False],
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "late": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    columns: list[Column] = [data.numeric(name, transform=None) for name in ("at", "day", "flag")]
    columns += [data.vocabulary(name) for name in ("at", "flag", "kind")]
    inputs, _ = data.parquet(tmp_path / "t.parquet", columns=columns, target=LATE).take(
        np.arange(2)
    )
    assert inputs["numbers"].tolist() == [[86400, 86400, 1], [86400, 86400, 0]]
    assert inputs["ids"].tolist() == [[1, 4, 6], [1, 3, 7]]


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        (data.numeric("color"), ["column 'color'", "type string", "vocabulary('color')"]),
        (data.vocabulary("color", by=np.sign), ["column 'color'", "type string"]),
        (data.vocabulary("sizes"), ["did you mean 'size'?"]),
        (data.vocabulary("nested"), ["type list"]),
    ],
)
def test_wrong_columns_are_refused_by_the_call(
    tmp_path: Path, column: Column, parts: list[str]
) -> None:
    table = pa.table({"color": ["a"], "size": [1], "late": [0], "nested": [[1]]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(SpecError) as caught:
        data.parquet(tmp_path / "t.parquet", columns=[column], target=LATE)
    for part in parts:
        assert part in str(caught.value)


def test_files_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="need a Parquet file"):
        data.parquet(folder / "t.csv", columns=COLUMNS, target=LATE)
    with pytest.raises(SpecError, match="Arrow IPC"):
        data.arrow(folder / "t.csv", columns=COLUMNS, target=LATE)
    options: dict[str, Any] = {"in_memori": False}
    with pytest.raises(SpecError, match="did you mean 'in_memory'"):
        data.parquet(folder / "t.parquet", columns=COLUMNS, target=LATE, **options)
    pq.write_table(pa.table({"color": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    with pytest.raises(SpecError, match="no rows"):
        data.parquet(
            tmp_path / "empty.parquet",
            columns=[data.vocabulary("color")],
            target=data.target("color", equals="x"),
        )
    with pytest.raises(SpecError, match="no rows"):
        data.parquet(
            folder / "t.parquet",
            columns=COLUMNS,
            target=LATE,
            in_memory=False,
            keep=data.where("size", by=lambda size: size > 99),
        )
