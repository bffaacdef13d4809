"""The parts of a job that uses a model: files of results, columns of outputs, one file of
predictions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim import data
from brim.domain.inference import CHUNK, chunks_of_step, steps_of
from brim.errors import EnvironmentFault, SpecError
from brim.train.inference.parts import Parts
from brim.train.inference.predictions import (
    PredictedRows,
    check_kept,
    output_columns,
    pack,
    rows_of,
    write_predictions,
)


@given(samples=st.integers(0, 20 * CHUNK), parts=st.integers(1, 9))
def test_job_steps_cover_samples_in_order(samples: int, parts: int) -> None:
    chunks: dict[int, Any] = {}
    for step in range(steps_of(samples, parts)):
        step_chunks = chunks_of_step(step, parts, samples)
        assert 1 <= len(step_chunks) <= parts
        chunks |= step_chunks
    assert list(chunks) == list(range(len(chunks)))
    bounds = [(span.start, span.stop) for span in chunks.values()]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][: len(bounds)]
    assert sum(stop - start for start, stop in bounds) == samples


def test_kept_parts_end_at_the_first_gap(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts", samples=10)
    for step in (0, 1, 3):
        parts.keep(step, [f"{step}".encode(), b""])
    reopened = Parts(tmp_path / "parts", samples=10)
    assert reopened.restore() == (str(tmp_path / "parts"), [])
    assert reopened.committed == 2
    assert list(reopened.chunks()) == [b"0", b"", b"1", b""]


def test_a_damaged_part_is_named_and_computed_again(tmp_path: Path) -> None:
    parts = Parts(tmp_path, samples=10)
    for step in range(3):
        parts.keep(step, [b"result"])
    damaged = sorted(tmp_path.iterdir())[1]
    damaged.write_bytes(damaged.read_bytes().replace(b"result", b"resulT"))
    _, problems = parts.restore()
    assert parts.committed == 1
    assert str(damaged) in problems[0]
    parts.committed = 2
    with pytest.raises(EnvironmentFault, match="is damaged"):
        list(parts.chunks())


def test_parts_of_other_data_are_rejected(tmp_path: Path) -> None:
    Parts(tmp_path, samples=10).keep(0, [b"result"])
    with pytest.raises(SpecError, match="need the 10 that this job began with"):
        Parts(tmp_path, samples=11).restore()


@pytest.mark.parametrize(
    ("output", "function", "names"),
    [
        (torch.zeros(3), None, ["output"]),
        (torch.zeros(3, 1), None, ["output"]),
        (torch.zeros(3, 2, dtype=torch.bfloat16), None, ["output_0", "output_1"]),
        (torch.zeros(3, 2), lambda output: output.argmax(1), ["output"]),
        (torch.zeros(3, 2), lambda output: {"a": output[:, 0], "b": output}, ["a", "b_0", "b_1"]),
        ({"logit": torch.zeros(3)}, None, ["logit"]),
    ],
)
def test_outputs_become_columns(output: Any, function: Any, names: list[str]) -> None:
    columns = output_columns(output, function, 3)
    assert list(columns) == names
    assert pa.ipc.open_stream(pack(columns)).read_all().num_rows == 3


@pytest.mark.parametrize(
    ("output", "function", "actual"),
    [
        (torch.zeros(3, 2, 2), None, r"the model's output: got shape \[3, 2, 2\]"),
        (torch.zeros(()), None, r"got shape \[\]"),
        ([1, 2, 3], None, "got a list"),
        (torch.zeros(3), lambda output: output[:2], r"predict\(output\): got shape \[2\]"),
        (torch.zeros(3), lambda output: {"a": 1.0}, r"predict\(output\): got a float"),
    ],
)
def test_what_is_no_column_is_refused(output: Any, function: Any, actual: str) -> None:
    with pytest.raises(SpecError, match=actual):
        output_columns(output, function, 3)


@given(
    st.lists(st.lists(st.booleans(), max_size=9), min_size=1, max_size=4).filter(
        lambda parts: any(map(any, parts))
    ),
    st.integers(1, 5),
)
def test_no_row_is_shifted(
    tmp_path_factory: pytest.TempPathFactory, good: list[list[bool]], width: int
) -> None:
    """However good rows fall into parts of the input and into chunks, each output stands in its
    row.
    """
    path = tmp_path_factory.mktemp("out") / "p.parquet"
    flat = np.concatenate([np.array(part, bool) for part in good])
    places = np.flatnonzero(flat)
    chunks = [
        pack({"output": torch.tensor(places[start : start + width], dtype=torch.float32)})
        for start in range(0, len(places), width)
    ]
    rows = [PredictedRows(len(part), np.flatnonzero(np.array(part, bool))) for part in good]
    write_predictions(path, rows, iter(chunks), job="job")
    table = pq.read_table(path)
    assert table.column("row").to_pylist() == list(range(len(flat)))
    expected = [float(row) if ok else None for row, ok in enumerate(flat.tolist())]
    assert table.column("output").to_pylist() == expected
    assert [path_kept.name for path_kept in path.parent.iterdir()] == ["p.parquet"]


def test_unwritable_outputs_keep_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("old")
    (tmp_path / ".p.csv.job.partial").mkdir()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write_predictions(
            path,
            [PredictedRows(1, np.array([0]))],
            iter([pack({"output": torch.zeros(1)})]),
            job="job",
        )
    assert path.read_text() == "old"


@pytest.mark.parametrize("in_memory", [True, False])
def test_kept_columns_stand_beside_their_rows(tmp_path: Path, in_memory: bool) -> None:
    """Several row groups, one without a good row, and cells of any type; by group or in memory."""
    target, columns = data.target("late"), [data.numeric("size")]
    train = pa.table({"size": [1.0, 2.0, 3.0, 4.0], "late": [0.0, 1.0, 0.0, 1.0]})
    pq.write_table(train, tmp_path / "train.parquet", row_group_size=2)
    dataset = data.parquet(
        tmp_path / "train.parquet", columns=columns, target=target, in_memory=in_memory
    )
    size = [1.0, None, None, None, 5.0, 6.0, 7.0]
    days, seen = pa.array(range(7), pa.date32()), [["a", None], None, [], *[["b"]] * 4]
    table = pa.table({"size": size, "name": list("abcdefg"), "day": days, "seen": seen})
    pq.write_table(table, tmp_path / "new.parquet", row_group_size=2)
    inputs = dataset.inputs_of(tmp_path / "new.parquet")
    kept = ("name", "day", "seen")
    check_kept(inputs.source, kept, tmp_path / "p.parquet")
    with pytest.raises(SpecError, match=r"'seen', a column of lists.*\n.*--output p\.parquet"):
        check_kept(inputs.source, kept, tmp_path / "p.csv")
    rows = list(rows_of(inputs, keep=kept))
    assert [part.total for part in rows] == [2, 2, 2, 1]
    assert [part.places.tolist() for part in rows] == [[0], [], [0, 1], [0]]
    outputs = pack({"output": torch.arange(4, dtype=torch.float32)})
    write_predictions(tmp_path / "p.parquet", rows, iter([outputs]), job="job")
    found = pq.read_table(tmp_path / "p.parquet")
    assert found.column("output").to_pylist() == [0.0, None, None, None, 1.0, 2.0, 3.0]
    assert found.select(kept).equals(table.select(kept))


def test_kept_columns_of_several_text_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("size,late\n1,0\n2,1\n3,1\n")
    dataset = data.csv(
        tmp_path / "train.csv", columns=[data.numeric("size")], target=data.target("late")
    )
    (tmp_path / "1.csv").write_text('name,size\na,1\ntoo,many,fields\n"b\nb",2\n')
    (tmp_path / "2.csv").write_text("name,size\n,3\nd,far\ne,5\n")
    paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
    rows = list(rows_of(dataset.inputs_of(paths), keep=("name",)))
    write_predictions(
        tmp_path / "p.csv",
        rows,
        iter([pack({"output": torch.tensor([1.0, 2.0, 3.0, 5.0])})]),
        job="job",
    )
    found = arrow_csv.read_csv(
        tmp_path / "p.csv",
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(strings_can_be_null=True),
    )
    assert found.column("row").to_pylist() == list(range(6))
    assert found.column("output").to_pylist() == [1.0, None, 2.0, 3.0, None, 5.0]
    assert found.column("name").to_pylist() == ["a", None, "b\nb", None, "d", "e"]
