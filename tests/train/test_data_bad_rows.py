"""Bad rows are left out, counted, and written down with where they were; a wrong description is
refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim import data
from brim.errors import SpecError

COLUMNS = (data.vocabulary("color"), data.numeric("size"))
LATE = data.target("late")
BAD = (
    'color,size,late\nred,1,0\n\nred,many,0\n"two\nlines",3,1\nred,4\nred,5,1,9\nred,,1\nred,7,\nblue,8,1\n'
    + ("red,1,0\n" * 10)
)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.csv"
    path.write_text(BAD)
    return path


def test_bad_rows_are_left_out_and_counted(bad: Path) -> None:
    dataset = data.csv(bad, columns=COLUMNS, target=LATE)
    assert (len(dataset), dataset.quarantined, dataset.quarantine_path) == (13, 5, None)


def test_bad_rows_are_written_with_their_lines(
    bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
    dataset = data.csv(bad, columns=COLUMNS, target=LATE)
    assert dataset.quarantine_path == tmp_path / "run" / "quarantine" / "bad.csv.jsonl"
    written = [json.loads(line) for line in dataset.quarantine_path.read_text().splitlines()]
    assert [(row["line"], row["column"], row["text"], row["reason"]) for row in written] == [
        (4, "size", "many", "not a number"),
        (7, "", "red,4", "2 fields, need 3"),
        (8, "", "red,5,1,9", "4 fields, need 3"),
        (9, "size", "", "empty"),
        (10, "late", "", "empty"),
    ]
    assert {row["file"] for row in written} == {str(bad)}
    assert [path.name for path in dataset.quarantine_path.parent.iterdir()] == ["bad.csv.jsonl"]


def test_lines_of_a_file_without_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    path = tmp_path / "plain.csv"
    path.write_text("red,1,0\nred,1\n\nred,x,0\nred,3,1\nred,4,1\n")
    dataset = data.csv(path, names=["color", "size", "late"], columns=COLUMNS, target=LATE)
    assert dataset.quarantine_path is not None
    written = [json.loads(line) for line in dataset.quarantine_path.read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in written] == [
        (2, "2 fields, need 3"),
        (4, "not a number"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n\ncolor,size,late\nred,1,0\nred,x,0\nred,1,0\n", 5),
        ('color,size,late\n5" wide,1,0\nred,x,0\nred,1,0\n', 3),
        ('color,size,late\n"a ""b""\nc",1,0\nred,x,0\nred,1,0\n', 4),
        ('color,size,late\n"a,\n\n""",1,0\nred,x,0\nred,1,0\n', 5),
        ('color,size,late\r\n"a","1",0\r\nred,x,0\r\nred,1,0\r\n', 3),
        ("\ufeffcolor,size,late\nred,1,0\nred,x,0\nred,1,0", 3),
    ],
)
def test_lines_are_those_that_an_editor_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    path = tmp_path / "table.csv"
    path.write_text(text, newline="")
    dataset = data.csv(path, columns=COLUMNS, target=LATE)
    assert (len(dataset), dataset.quarantined) == (2, 1)
    assert dataset.quarantine_path is not None
    assert json.loads(dataset.quarantine_path.read_text())["line"] == line


@given(st.lists(st.text('a1,"\n\r ', max_size=8), min_size=1, max_size=8))
@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_text_is_read_or_refused_with_reasons(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "any.csv"
    path.write_text("color,size,late\n" + "red,1,0\n" * 9 + "\n".join(lines), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
        try:
            dataset = data.csv(path, columns=COLUMNS, target=LATE)
        except SpecError:
            return
    assert len(dataset) >= 9
    if dataset.quarantine_path is not None:
        written = [json.loads(line) for line in dataset.quarantine_path.read_text().splitlines()]
        numbers = [row["line"] for row in written]
        assert len(numbers) == dataset.quarantined
        assert numbers == sorted(set(numbers))
        assert all(10 < number <= len(path.read_bytes().splitlines()) for number in numbers)


def test_same_named_files_keep_separate_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
    paths = [tmp_path / folder / "bad.csv" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(BAD)
    dataset = data.csv(paths, columns=COLUMNS, target=LATE)
    assert dataset.quarantine_path == tmp_path / "run" / "quarantine"
    assert sorted(p.name for p in dataset.quarantine_path.iterdir()) == [
        "bad.csv.1.jsonl",
        "bad.csv.2.jsonl",
    ]


def test_bad_rows_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path / "run"))
    path = tmp_path / "t.parquet"
    sizes = [1.0, None, float("inf"), float("nan"), *[2.0] * 8]
    pq.write_table(
        pa.table({"color": ["red"] * 12, "size": sizes, "late": [0, 1] * 6}), path, row_group_size=5
    )
    for in_memory in (True, False):
        dataset = data.parquet(path, columns=COLUMNS, target=LATE, in_memory=in_memory)
        assert (len(dataset), dataset.quarantined) == (9, 3)
        assert dataset.quarantine_path is not None
        written = [json.loads(line) for line in dataset.quarantine_path.read_text().splitlines()]
        assert [(row["line"], row["reason"]) for row in written] == [
            (2, "empty"), (3, "not a number"), (4, "empty"),
        ]  # fmt: skip


def test_class_numbers_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_text("color,class\na,0\na,1\na,2.5\na,-1\na,3\n")
    dataset = data.csv(
        path, columns=[data.vocabulary("color")], target=data.target("class", classes=True)
    )
    assert (len(dataset), dataset.quarantined) == (3, 2)


def refused(path: Any, **options: Any) -> str:
    options_given: dict[str, Any] = {"columns": COLUMNS, "target": LATE} | options
    with pytest.raises(SpecError) as caught:
        data.csv(path, **options_given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"columns": [data.vocabulary("colour")]}, ["column 'colour'", "did you mean 'color'?"]),
        ({"columns": [data.numeric("color")]}, ["'red' in line 2", "vocabulary('color')"]),
        ({"columns": [data.numeric("gap")]}, ["column 'gap'", "missing=0"]),
        ({"columns": ["color"]}, ["vocabulary('color')"]),
        ({"columns": []}, ["no column"]),
        ({"target": "late"}, ["target('late')"]),
        ({"target": data.target("when")}, ["column 'when'"]),
        ({"split": "test"}, ["without test=", "last(0.1)"]),
        ({"split": "tset", "test": data.last(1)}, ["did you mean 'test'?"]),
        ({"colums": COLUMNS}, ["csv(colums=)", "did you mean 'columns'?"]),
        ({"keep": data.where("size", by=lambda size: size > 100)}, ["no rows", "keep="]),
        ({"split": "train", "test": data.last(50)}, ["the train split", "no rows"]),
        ({"delimiter": ";"}, ["no such column", "separated by ','? delimiter=','"]),
        ({"names": ["color", "size", "late"]}, ["4 fields in row 1", "need 3 fields"]),
        ({"names": ["color", "size", "late", "size"]}, ["2 of that name"]),
    ],
)
def test_a_wrong_description_is_refused(
    tmp_path: Path, options: dict[str, object], parts: list[str]
) -> None:
    path = tmp_path / "good.csv"
    path.write_text("color,size,late,gap\n" + "red,1,0,\n" * 4 + "blue,2,1,1\n")
    message = refused(path, **({"columns": COLUMNS, "target": data.target("late")} | options))
    for part in parts:
        assert part in message


def test_first_line_without_names_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("red,1,0\nblue,2,1\n")
    words = refused(tmp_path / "bare.csv")
    assert "its first line should name the columns, and is: red 1 0" in words


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text("color,size,late\n")
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "broken.csv.gz").write_text("not packed")
    assert "did you mean 'flights.csv'?" in refused(tmp_path / "flight.csv")
    assert "no rows" in refused(tmp_path / "flights.csv")
    assert "an empty file" in refused(tmp_path / "nothing.csv")
    assert "can be read" in refused(tmp_path / "broken.csv.gz")
    assert "no file that matches" in refused(tmp_path / "*.tsv")
    assert "a folder" in refused(tmp_path)
    assert "there is no folder" in refused(tmp_path / "no" / "file.csv")
    assert "an empty string" in refused("")
    assert "no file" in refused([])
    assert "fsspec" in refused("nosuch://bucket/file.csv")


def wrong(**options: Any) -> Any:
    """Options that a checker of types would not let pass."""
    return options


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.numeric("x", **wrong(transform="stanard")),
        lambda: data.numeric("x", **wrong(missing="median")),
        lambda: data.vocabulary(),
        lambda: data.vocabulary("x", min_count=0),
        lambda: data.hashed("x", buckets=0),
        lambda: data.target(),
        lambda: data.target("a", "b"),
        lambda: data.target("a", above=1, equals=2),
        lambda: data.last(0),
        lambda: data.rows(3, 3),
        lambda: data.sample(1.5),
        lambda: data.where(by=np.isfinite),
    ],
)
def test_nonsense_options_are_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(SpecError):
        make()
