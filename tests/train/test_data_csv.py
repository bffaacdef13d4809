"""Text files: the meaning of columns, the splits of rows, and the content of batches."""

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from brim import data
from brim.data.columns import Column
from brim.data.files import Paths
from brim.errors import SpecError

TABLE = """color,size,weight,late
red,1,10,0
red,2,20,1
blue,1,30,0
green,3,40,1
red,1,,1
,2,60,0
"""
COLUMNS = (data.vocabulary("color"), data.numeric("size", transform=None))
LATE = data.target("late")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def everything(dataset: data.Columnar) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return dataset.take(np.arange(len(dataset)))


def ids(path: Paths, *columns: Column, **options: Any) -> list[list[int]]:
    dataset = data.csv(path, columns=columns, target=LATE, **options)
    return everything(dataset)[0]["ids"].tolist()


def numbers(path: Path, column: Column, **options: Any) -> list[float]:
    dataset = data.csv(path, columns=[column], target=LATE, **options)
    return everything(dataset)[0]["numbers"][:, 0].tolist()


def test_a_batch_has_ids_numbers_and_a_target(table: Path) -> None:
    dataset = data.csv(table, columns=COLUMNS, target=LATE)
    inputs, target = dataset.take(np.array([3, 0]))
    assert inputs["ids"].dtype == torch.int64
    assert inputs["ids"].shape == (2, 1)
    assert inputs["numbers"].tolist() == [[3.0], [1.0]]
    assert target.tolist() == [1.0, 0.0]
    assert (inputs["numbers"].dtype, target.dtype) == (torch.float32, torch.float32)
    assert (dataset.fields, dataset.numbers, dataset.vocabulary_size) == (1, 1, 5)
    assert (len(dataset), dataset.quarantined, dataset.quarantine_path, dataset.block_size) == (
        6,
        0,
        None,
        1,
    )


def test_a_batch_is_what_torch_collates(table: Path) -> None:
    dataset = data.csv(table, columns=COLUMNS, target=LATE)
    collated = default_collate([dataset[index] for index in (5, 0, 0)])
    inputs, target = dataset.take(np.array([5, 0, 0]))
    assert torch.equal(inputs["ids"], collated[0]["ids"])
    assert torch.equal(inputs["numbers"], collated[0]["numbers"])
    assert torch.equal(target, collated[1])
    assert torch.equal(dataset[-1][0]["ids"], dataset[5][0]["ids"])
    with pytest.raises(IndexError):
        dataset[6]


def test_frequent_values_get_ids_and_others_0(table: Path) -> None:
    # By falling count, then by value; an empty cell is a value like any other.
    assert ids(table, data.vocabulary("color")) == [[1], [1], [3], [4], [1], [2]]
    assert ids(table, data.vocabulary("color", min_count=2)) == [[1], [1], [0], [0], [1], [0]]


def test_each_field_has_ids_of_its_own(table: Path) -> None:
    both_columns = data.csv(
        table, columns=[data.vocabulary("color"), data.vocabulary("size")], target=LATE
    )
    found = everything(both_columns)[0]["ids"]
    assert found[:, 0].max() < 5
    assert found[:, 1].min() >= 5
    assert found.max() < both_columns.vocabulary_size == 5 + 4


def test_values_not_seen_in_training_get_id_0(table: Path) -> None:
    assert ids(table, data.vocabulary("color"), split="test", test=data.last(3)) == [[0], [1], [0]]


def test_crossed_columns_are_one_field(table: Path) -> None:
    crossed = [row[0] for row in ids(table, data.vocabulary("color", "size"))]
    assert crossed[0] == crossed[4]
    assert len(set(crossed)) == 5


def test_huge_crosses_stay_distinct(tmp_path: Path) -> None:
    rows, columns = 2_000, [f"c{number}" for number in range(6)]
    table = tmp_path / "wide.csv"
    lines = [",".join([*(f"{column}-{row}" for column in columns), "1"]) for row in range(rows)]
    table.write_text("\n".join([",".join([*columns, "late"]), *lines, *lines]) + "\n")
    crossed = [row[0] for row in ids(table, data.vocabulary(*columns))]
    assert crossed[:rows] == crossed[rows:]
    assert len(set(crossed)) == rows


def test_crosses_of_few_and_of_many_values_agree(tmp_path: Path) -> None:
    path, rng = tmp_path / "many.csv", np.random.default_rng(0)
    pairs = rng.integers(0, 200, (300, 2)).tolist()
    path.write_text("a,b,late\n" + "".join(f"{a},{b},0\n" for a, b in pairs))
    found = [row[0] for row in ids(path, data.vocabulary("a", "b"))]
    assert (
        len(set(found))
        == len({tuple(pair) for pair in pairs})
        == len(set(zip(found, map(tuple, pairs), strict=True)))
    )


def test_by_functions_see_no_nan(table: Path) -> None:
    assert ids(table, data.vocabulary("size", by=lambda size: size.astype(int) % 2))[:3] == [
        [1],
        [2],
        [1],
    ]


def test_by_takes_numbers_and_nan_for_empty_cells(table: Path) -> None:
    heavy = data.vocabulary("weight", by=lambda weight: np.where(weight > 25, 1, weight))
    found = [row[0] for row in ids(table, heavy)]
    assert found[2] == found[3] == found[5]
    assert len(set(found)) == 4
    pair = data.vocabulary("size", "weight", by=lambda size, weight: size * 10 == weight)
    found = [row[0] for row in ids(table, pair)]
    assert found[0] == found[1] != found[2]


def test_hashed_ids_are_stable(table: Path) -> None:
    # Golden: Python's own hash() would differ in each run of this test.
    assert ids(table, data.hashed("color", buckets=1000)) == [[HASHES[c]] for c in COLORS]


COLORS = ["red", "red", "blue", "green", "red", ""]
HASHES = {"red": 261, "blue": 346, "green": 268, "": 756}


def test_numbers_are_standardised_by_the_training_rows_alone(table: Path) -> None:
    column = data.numeric("weight", missing=0.0)
    train = numbers(table, column, split="train", test=data.last(2))
    assert train == pytest.approx([(x - 25) / 125**0.5 for x in (10, 20, 30, 40)])
    test = numbers(table, column, split="test", test=data.last(2))
    assert test == pytest.approx([(x - 25) / 125**0.5 for x in (0, 60)])


def test_missing_numbers(table: Path) -> None:
    assert numbers(table, data.numeric("weight", transform=None, missing=-1.0))[4] == -1
    assert numbers(table, data.numeric("weight", transform=None, missing="mean"))[4] == 32
    assert numbers(table, data.numeric("weight", missing="mean"))[4] == pytest.approx(0)
    assert len(numbers(table, data.numeric("weight"))) == 5


def test_a_constant_column_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "constant.csv"
    path.write_text("x,late\n7,0\n7,1\n")
    assert numbers(path, data.numeric("x")) == [0, 0]


def test_log_is_symmetric_and_standardised(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("x,late\n-1000,0\n0,1\n1000,1\n")
    assert numbers(path, data.numeric("x", transform="log")) == pytest.approx(
        [-(1.5**0.5), 0, 1.5**0.5]
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (data.target("size", above=1), [0, 1, 0, 1, 0, 1]),
        (data.target("size", equals=2), [0, 1, 0, 0, 0, 1]),
        (data.target("color", equals="red"), [1, 1, 0, 0, 1]),
        (data.target("size", classes=True), [1, 2, 1, 3, 1, 2]),
        (data.target("size", "late", by=lambda size, late: size + late), [1, 3, 1, 4, 2, 2]),
    ],
)
def test_targets(table: Path, target: Any, expected: list[float]) -> None:
    found = everything(data.csv(table, columns=COLUMNS, target=target))[1]
    assert found.tolist() == expected
    assert found.dtype == (torch.int64 if getattr(target, "classes", False) else torch.float32)


def test_where_drops_rows_without_calling_them_bad(table: Path) -> None:
    keep = data.where("weight", by=np.isfinite)
    dataset = data.csv(table, columns=[data.numeric("weight")], target=LATE, keep=keep)
    assert (len(dataset), dataset.quarantined) == (5, 0)


def rows_of(path: Path, split: str, test: object) -> list[float]:
    return numbers(path, data.numeric("row", transform=None), split=split, test=test)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (data.last(0.1), list(range(900, 1000))),
        (data.last(3), [997, 998, 999]),
        (data.rows(10, 12), [10, 11]),
    ],
)
def test_splits_by_place(tmp_path: Path, test: object, expected: list[float]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("row,late\n" + "".join(f"{row},0\n" for row in range(1000)))
    assert rows_of(path, "test", test) == expected
    assert sorted(rows_of(path, "train", test) + expected) == list(range(1000))


def test_splits_by_hash(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("row,user,late\n" + "".join(f"{row},u{row % 100},0\n" for row in range(5000)))
    test_rows = rows_of(path, "test", data.sample(0.2))
    assert 900 < len(test_rows) < 1100
    assert test_rows != rows_of(path, "test", data.sample(0.2, seed=1))
    by_user = data.sample(0.2, by="user")
    users = [{row % 100 for row in rows_of(path, split, by_user)} for split in ("train", "test")]
    assert not users[0] & users[1]
    assert 10 < len(users[1]) < 30


def test_the_second_split_is_not_read_again(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"columns": COLUMNS, "target": LATE, "test": data.last(2)}
    train = data.csv(table, split="train", **options)
    monkeypatch.setattr("brim.data.sources.read_text", None)
    test = data.csv(table, split="test", **options)
    assert (len(train), len(test)) == (4, 2)


def test_a_changed_file_is_read_again(table: Path) -> None:
    first_read = data.csv(table, columns=COLUMNS, target=LATE)
    table.write_text(TABLE + "red,1,1,1\n")
    assert (len(first_read), len(data.csv(table, columns=COLUMNS, target=LATE))) == (6, 7)


def test_packed_files_lists_globs_and_urls(table: Path, tmp_path: Path) -> None:
    packed, archive = tmp_path / "b.csv.gz", tmp_path / "c.csv.zip"
    packed.write_bytes(gzip.compress(TABLE.encode()))
    with zipfile.ZipFile(archive, "w") as output:
        output.writestr("inside.csv", TABLE)
    single_columns = ids(table, *COLUMNS)
    assert ids(packed, *COLUMNS) == ids(archive, *COLUMNS) == single_columns
    assert ids(f"file://{table}", *COLUMNS) == single_columns
    assert ids(tmp_path / "*.csv*", *COLUMNS) == single_columns * 3
    assert ids([table, packed], *COLUMNS) == single_columns * 2


def test_a_file_without_a_header_and_tabs(tmp_path: Path) -> None:
    path = tmp_path / "plain.tsv"
    path.write_text("\n".join(line.replace(",", "\t") for line in TABLE.splitlines()[1:]) + "\n")
    names = ["color", "size", "weight", "late"]
    assert ids(path, *COLUMNS, names=names)[:3] == [[1], [1], [3]]


def test_text_outside_utf8_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"color,size,weight,late\ncaf\xe9,1,1,0\nred,1,1,0\ncaf\xe9,1,1,0\n")
    assert ids(path, *COLUMNS) == [[1], [2], [1]]


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_bytes(b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode())
    assert len(ids(path, *COLUMNS)) == 6


def test_the_order_of_by_is_checked(table: Path) -> None:
    with pytest.raises(SpecError, match="whole columns"):
        ids(table, data.vocabulary("size", by=lambda size: size.sum()))
