"""Files of libsvm and libffm: values, ids and lists, compared with scikit-learn's reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from brim import data
from brim.data.columns import Column
from brim.errors import SpecError
from brim.serving.inputs import ColumnReader

TARGET = data.target("label", above=0)
FFM = """\
1 0:5:1 1:100:1 2:7:0.5 3:1:1 3:2:1
-1 0:5:1 2:8:1.5  # without field 1

+1\t0:6:1 1:101:1 2:7:-2e0 3:9:0
0 0:6:1 1:101:1 2:0:0 3:2:1 3:1:1 3:4:1
"""


def rows_of(read: data.Columnar) -> tuple[dict[str, Any], list[float]]:
    inputs, target = read.take(np.arange(len(read)))
    return {name: part.tolist() for name, part in inputs.items()}, target.tolist()


def tokens_of(read: data.Columnar) -> list[list[str]]:
    """What the ids of each row stand for, "?" where they stand for nothing."""
    name_of = {
        read.encoder.offsets[place] + id_: token
        for place, table in read.encoder.tables.items()
        for token, id_ in table.items()
    }
    ids = rows_of(read)[0]["ids"]
    return [[name_of.get(id_, "?") for id_ in row] for row in ids]


@pytest.mark.parametrize("zero_based", [True, False])
def test_numbers_are_those_of_scikit_learn(zero_based: bool, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    matrix = np.where(chance.random((50, 6)) < 0.4, chance.normal(size=(50, 6)), 0)
    label, query = chance.integers(0, 2, 50) * 2 - 1, np.repeat(np.arange(10), 5)
    plain, path = tmp_path / "rows.svm", tmp_path / "rows.svm.gz"
    dump_svmlight_file(
        matrix, label, str(plain), zero_based=zero_based, comment="of a test", query_id=query
    )
    path.write_bytes(gzip.compress(plain.read_bytes()))
    expected, labels, queries = load_svmlight_file(
        str(path), n_features=6, query_id=True, zero_based=zero_based
    )
    names = [str(index + (not zero_based)) for index in range(6)]
    columns = [data.numeric(name, transform=None) for name in (*names, "qid")]
    inputs, target = rows_of(data.libsvm(path, columns=columns, target=data.target("label")))
    assert inputs["numbers"] == np.column_stack([expected.toarray(), queries]).astype("f4").tolist()
    assert target == labels.tolist()
    other = data.numeric("6" if zero_based else "0")
    with pytest.raises(SpecError, match=r"(?s)a feature that no line of .* has.*from 0.*from 1"):
        data.libsvm(path, columns=[*columns, other], target=TARGET)


def test_queries_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "ranked.svm"
    path.write_text("".join(f"{row % 2} qid:{row // 4} 1:{row}\n" for row in range(80)))
    splits = [
        data.libsvm(
            path,
            columns=[data.numeric("1"), data.vocabulary("qid")],
            target=TARGET,
            split=split,
            test=data.sample(0.3, by="qid"),
        )
        for split in ("train", "test")
    ]
    assert {tuple(tokens) for tokens in tokens_of(splits[1])} == {("?",)}  # none of those to train
    assert sum(map(len, splits)) == 80
    assert len(splits[1]) in range(4, 80, 4)


def test_features_are_a_list_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "scaled.svm"
    path.write_text("+1 3:0.577 11:0.577 7:0.577\n-1 3:1 9:0\n+1\n-1 3:0.5 7:1\n-1 7:1 3:1\n")
    columns = [data.sequence("features", length=3)]
    read = data.libsvm(path, columns=columns, target=TARGET)
    tokens = [["3", "11", "7"], ["3", "?", "?"], ["?"] * 3, ["7", "3", "?"]]
    assert (tokens_of(read), read.quarantined) == (tokens, 1)


def test_fields_are_ids_lists_or_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.ffm"
    path.write_text(FFM)
    columns: list[Column] = [
        data.vocabulary("0"),
        data.vocabulary("1"),
        data.sequence("3", length=2),
        data.numeric("2", transform=None),
    ]
    read = data.libffm(path, columns=columns, target=TARGET)
    inputs, target = rows_of(read)
    assert target == [1, 0, 1, 0]
    assert inputs["numbers"] == [[0.5], [1.5], [-2], [0]]
    assert tokens_of(read) == [
        ["5", "100", "1", "2"],
        ["5", "", "?", "?"],
        ["6", "101", "?", "?"],
        ["6", "101", "1", "4"],
    ]
    requests = ColumnReader(read.encoder, ())
    request, _ = requests.read({"0": ["6"], "1": ["101"], "2": [0.0], "3": [["2", "1", "4"]]})
    assert request["ids"].tolist() == inputs["ids"][3:]

    monkeypatch.setenv("BRIM_RUN_DIR", str(tmp_path))
    more = tmp_path / "more.txt"
    more.write_text(
        "1 0:6:1 1:9:1 2:7:1\n0 0:5:1\nx 0:5:1\n1 0:5:1 2:1:nan\n0 0:5:1 2:8:3\n"
        "1 0:5:0.3 2:8:1\n1 0:5 2:1:1\n1 0:5:1 0:6:1 2:1:1\n" + "1 0:5:1 2:1:1\n" * 4
    )
    over = read.over(more)  # in which field 3 never occurs
    assert (len(over), over.quarantined) == (6, 6)
    assert over.quarantine_path is not None
    bad = [json.loads(line) for line in over.quarantine_path.read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in bad] == [
        (2, "empty"),
        (3, "the label 'x' is not a number"),
        (4, "'2:1:nan' is not field:index:value"),
        (6, "an id whose value is not 1"),
        (7, "'0:5' is not field:index:value"),
        (8, "several features of one field"),
    ]
    kept = list(over.source.read(["label", "0"]))
    assert kept[0].column("0").column.to_pylist()[:3] == ["6", "5", "5"]


def test_hashed_fields_need_no_fit(tmp_path: Path) -> None:
    path = tmp_path / "rows.ffm"
    path.write_text(FFM)
    read = data.libffm(path, columns=[data.hashed("0", buckets=1000)], target=TARGET)
    ids = rows_of(read)[0]["ids"]
    assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.mark.parametrize(
    ("kind", "text", "column", "said"),
    [
        ("libsvm", "1 0:5:1\n0 0:6:1\n", "0", r"line 1: '0:5:1' is not index:value \(and 1 more"),
        ("libffm", "# as of libsvm\n1 5:1\n0 6:1\n", "0", "line 2: '5:1' is not field:index:value"),
        ("libsvm", "1 1:5\n", "color", "no such column.*'label', 'qid', 'features', or the index"),
        ("libffm", "1 1:5:1\n", "features", "no such column.*'label', or the number of a field"),
        ("libsvm", "# nothing\n\n", "1", "no rows"),
        ("libsvm", "1 1:5 1:6\n", "1", r"one feature twice .* in line 1 .*each feature once"),
        (
            "libffm",
            "1 1:5:2\n1 1:5:1\n0 1:7:3\n",
            "1",
            r"an id whose value is not 1 \(5:2\) in line 1",
        ),
        ("libffm", "1 1:5:1 1:6:1\n", "1", "several features of one field"),
    ],
)
def test_files_of_another_form_are_refused(
    kind: str, text: str, column: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(text)
    read = getattr(data, kind)
    use = data.numeric if kind == "libsvm" else data.vocabulary
    with pytest.raises(SpecError, match=f"(?s){said}"):
        read(path, columns=[use(column)], target=TARGET)
