"""The parts of a job that uses a model: files of results, columns of outputs, one file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim.domain.inference import CHUNK, chunks_of_step, steps_of
from brim.errors import EnvironmentFault, SpecError
from brim.train.parts import Parts
from brim.train.predictions import Rows, output_columns, pack, write_predictions


@given(samples=st.integers(0, 20 * CHUNK), parts=st.integers(1, 9))
def test_the_steps_of_a_job_have_every_sample_once_in_order(samples: int, parts: int) -> None:
    chunks: dict[int, Any] = {}
    for step in range(steps_of(samples, parts)):
        some = chunks_of_step(step, parts, samples)
        assert 1 <= len(some) <= parts
        chunks |= some
    assert list(chunks) == list(range(len(chunks)))
    bounds = [(span.start, span.stop) for span in chunks.values()]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][: len(bounds)]
    assert sum(stop - start for start, stop in bounds) == samples


def test_what_was_kept_is_found_up_to_the_first_gap(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts", samples=10)
    for step in (0, 1, 3):
        parts.keep(step, [f"{step}".encode(), b""])
    again = Parts(tmp_path / "parts", samples=10)
    assert again.restore() == (str(tmp_path / "parts"), [])
    assert again.committed == 2
    assert list(again.chunks()) == [b"0", b"", b"1", b""]


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


def test_parts_of_other_data_are_not_gone_on_from(tmp_path: Path) -> None:
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
    ("output", "function", "got"),
    [
        (torch.zeros(3, 2, 2), None, r"the model's output: got shape \[3, 2, 2\]"),
        (torch.zeros(()), None, r"got shape \[\]"),
        ([1, 2, 3], None, "got a list"),
        (torch.zeros(3), lambda output: output[:2], r"predict\(output\): got shape \[2\]"),
        (torch.zeros(3), lambda output: {"a": 1.0}, r"predict\(output\): got a float"),
    ],
)
def test_what_is_no_column_is_refused(output: Any, function: Any, got: str) -> None:
    with pytest.raises(SpecError, match=got):
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
    """However good rows fall into parts of the input and into chunks, each output stands in its row."""
    path = tmp_path_factory.mktemp("out") / "p.parquet"
    flat = np.concatenate([np.array(part, bool) for part in good])
    places = np.flatnonzero(flat)
    chunks = [
        pack({"output": torch.tensor(places[at : at + width], dtype=torch.float32)})
        for at in range(0, len(places), width)
    ]
    rows = [Rows(len(part), np.flatnonzero(np.array(part, bool))) for part in good]
    write_predictions(path, rows, iter(chunks), job="job")
    table = pq.read_table(path)
    assert table.column("row").to_pylist() == list(range(len(flat)))
    expected = [float(row) if ok else None for row, ok in enumerate(flat.tolist())]
    assert table.column("output").to_pylist() == expected
    assert [each.name for each in path.parent.iterdir()] == ["p.parquet"]


def test_an_output_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("old")
    (tmp_path / ".p.csv.job.partial").mkdir()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write_predictions(path, [Rows(1, np.array([0]))], iter([pack({"output": torch.zeros(1)})]), job="job")
    assert path.read_text() == "old"
