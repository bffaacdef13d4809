"""`brim.xgboost.train` in one process: what it makes, keeps and refuses."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import xgboost

import brim
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.wire.listening import take_port
from brim.xgboost import Files, Rows, train
from brim.xgboost.bins import ranges_of, thresholds_of
from brim.xgboost.boosting import Boosting, binned
from brim.xgboost.launch import Place, connected, place_of, tracker_of
from brim.xgboost.parameters import settings_of
from brim.xgboost.queries import Queries
from brim.xgboost.ranking import LambdaRank
from brim.xgboost.saved_rounds import SavedRounds
from brim.xgboost.trees import rounds_in
from brim.xgboost.ubjson import decoded, encoded
from brim.xgboost.workers import LoneWorker

ROWS = 600
LOGISTIC = {"objective": "binary:logistic"}
QUICK = {"nthread": 1, "max_depth": 3}


def table(kind: str = "binary", rows: int = ROWS, **options: Any) -> Rows:
    """A table of few distinct values, some of which are missing."""
    chance = np.random.default_rng(rows)
    features = np.round(chance.normal(size=(rows, 5)), 1)
    features[chance.random(features.shape) < 0.1] = np.nan
    score = np.nan_to_num(features[:, 0] * features[:, 1] + features[:, 2])
    score += chance.normal(0, 0.5, rows)
    label = {
        "binary": score > 0,
        "number": score,
        "count": np.maximum(np.round(score), 0),
        "class": np.digitize(score, [-0.5, 0.5]),
        "grade": np.digitize(score, [-0.5, 0.5, 1.5]),
        "category": score,
    }[kind]
    if kind == "category":
        return categorical(features, score, **options)
    if kind == "grade":  # queries of 50 rows
        query = np.arange(rows) // 50
        return Rows(features, label, chance.uniform(0.5, 2.0, rows)[query], qid=query, **options)
    return Rows(features, label, chance.uniform(0.5, 2.0, rows), **options)


TOWNS = ("Ulm", "Bonn", "Koblenz", "Jena", "Rom", "Oslo", "Bern", "Graz", "Nizza")


def categorical(features: Any, score: Any, **options: Any) -> Rows:
    """A table of numbers, texts and codes, some of which are missing."""
    chance = np.random.default_rng(11)
    town, size = chance.integers(0, len(TOWNS), len(score)), chance.integers(0, 3, len(score))
    mixed = np.empty((len(score), 5), object)
    mixed[:, :3] = features[:, :3]
    mixed[:, 3] = [TOWNS[number] if number else None for number in town]
    mixed[:, 4] = np.where(chance.random(len(score)) < 0.1, np.nan, size)
    label = score + np.sin(3.0 * town) + (size == 1)
    weight = chance.uniform(0.5, 2.0, len(score))
    names = ["a", "b", "c", "town", "size"]
    return Rows(mixed, label, weight, names=names, categories=["town", 4], **options)


def usual_matrix(rows: Rows, kind: Any = xgboost.DMatrix) -> Any:
    """The same table for plain XGBoost, which takes one weight a query, and texts as a dictionary."""
    if rows.categories:
        columns = {
            name: pyarrow.array(
                list(values) if name == "town" else values.astype(np.float32), from_pandas=True
            )
            for name, values in zip(rows.names, rows.features.T, strict=True)
        }
        towns = pyarrow.array(sorted(filter(None, set(rows.features[:, 3]))))
        codes = pyarrow.array(
            [
                None if text is None else towns.to_pylist().index(text)
                for text in rows.features[:, 3]
            ],
            pyarrow.int32(),
        )
        columns["town"] = pyarrow.DictionaryArray.from_arrays(codes, towns)
        types = ["q", "q", "q", "c", "c"]
        options = {"feature_types": types, "enable_categorical": True, "weight": rows.weight}
        return kind(pyarrow.table(columns), rows.label, **options)
    if rows.qid is None:
        return kind(rows.features, rows.label, weight=rows.weight)
    heads = np.flatnonzero(np.diff(rows.qid, prepend=-1))
    return kind(rows.features, rows.label, weight=rows.weight[heads], qid=rows.qid)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "logistic": ("binary", LOGISTIC),
    "shares": ("binary", {"objective": "reg:logistic"}),
    "squared error": ("number", {}),
    "counts": ("count", {"objective": "count:poisson"}),
    "classes": ("class", {"objective": "multi:softprob", "num_class": 3}),
    "class": ("class", {"objective": "multi:softmax", "num_class": 3}),
    "rare positives": ("binary", {**LOGISTIC, "scale_pos_weight": 3.0, "base_score": 0.4}),
    "from 0.3": ("binary", {**LOGISTIC, "base_score": 0.3}),
    "categories": ("category", {"max_cat_to_onehot": 4}),
    "ranks": ("grade", {"objective": "rank:ndcg"}),
    "pairs": ("grade", {"objective": "rank:pairwise", "lambdarank_num_pair_per_sample": 5}),
    "plain pairs": (
        "grade",
        {
            "objective": "rank:ndcg",
            "lambdarank_normalization": False,
            "lambdarank_score_normalization": False,
            "ndcg_exp_gain": False,
        },
    ),
    "leaf by leaf": ("binary", {**LOGISTIC, "grow_policy": "lossguide", "max_leaves": 6}),
    "monotone": ("binary", {**LOGISTIC, "monotone_constraints": "(1,0,0,-1,0)"}),
    "apart": ("number", {"interaction_constraints": "[[0, 1], [2, 3, 4]]"}),
    "regularized": ("number", {"alpha": 0.1, "lambda": 3.0, "gamma": 0.5, "max_delta_step": 1}),
}


@pytest.mark.parametrize(("kind", "params"), CASES.values(), ids=CASES)
def test_trees_are_as_usual(kind: str, params: dict[str, Any]) -> None:
    """Where bins are the same as XGBoost's, only the rounding differs."""
    rows = table(kind)
    booster = train({**QUICK, **params}, rows, 8)
    usual_params = {"tree_method": "hist", **QUICK, **params}
    usual = xgboost.train(usual_params, usual_matrix(rows, xgboost.QuantileDMatrix), 8)
    computed, other = (b.predict(usual_matrix(rows), output_margin=True) for b in (booster, usual))
    assert computed.shape == other.shape
    if rows.qid is not None:
        computed, other = computed - computed.mean(), other - other.mean()  # it changes no order
    # A split that is as good as another one may be taken the other way round.
    assert np.median(np.abs(computed - other)) < 1e-4 * np.std(other)
    assert np.corrcoef(computed.ravel(), other.ravel())[0, 1] > 0.995


SAMPLED: dict[str, dict[str, Any]] = {
    "rows": {"subsample": 0.5},
    "columns": {"colsample_bytree": 0.6, "colsample_bylevel": 0.8, "colsample_bynode": 0.8},
    "both": {"subsample": 0.7, "colsample_bynode": 0.7},
}


@pytest.mark.parametrize(
    ("kind", "params"),
    [*CASES.values(), *(("class", {**CASES["classes"][1], **more}) for more in SAMPLED.values())],
    ids=[*CASES, *SAMPLED],
)
def test_file_predicts_the_margins_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, params: dict[str, Any]
) -> None:
    """To the bit: in one run, and in one that went on from what was kept."""
    made: list[Boosting] = []

    class Watched(Boosting):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("brim.xgboost.training.Boosting", Watched)
    rows = table(kind)
    whole = train({**QUICK, **params}, rows, 7)
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    train({**QUICK, **params}, rows, 3)
    resumed = train({**QUICK, **params}, rows, 7)
    assert whole.save_raw("json") == resumed.save_raw("json")
    whole.save_model(tmp_path / "model.json")
    plain = xgboost.Booster(model_file=tmp_path / "model.json")
    predicted = plain.predict(usual_matrix(rows), output_margin=True)
    for boosting in (made[0], made[2]):
        computed = boosting.margins[0].T.reshape(predicted.shape)
        assert computed.tobytes() == predicted.astype(np.float32).tobytes()


def test_odd_values_are_binned_exactly() -> None:
    """XGBoost takes these thresholds, which `binned` compares, and predicts as it has trained."""
    chance = np.random.default_rng(0)
    columns = [
        chance.normal(0, 1e37, ROWS),
        chance.normal(0, 1e-30, ROWS),
        chance.normal(1e6, 1e-1, ROWS),
        np.full(ROWS, 3.0),
        np.full(ROWS, np.nan),
        np.where(chance.random(ROWS) < 0.5, -0.0, 0.0),
        np.where(chance.random(ROWS) < 0.9, np.nan, 1.0),
        chance.lognormal(0, 5, ROWS),
    ]
    features = np.stack(columns, axis=1).astype(np.float32)
    settings = settings_of({**QUICK, "max_bin": 16})
    least, largest = ranges_of(features, LoneWorker())
    thresholds = [
        thresholds_of(values, float(end), 16)
        for values, end in zip(features.T, largest, strict=True)
    ]
    assert binned(xgboost, features, thresholds, least, settings).num_row() == ROWS
    label = (chance.random(ROWS) < 0.5).astype(np.float32)
    rows = Rows(features, label)
    results: dict[str, dict[str, list[float]]] = {}
    booster = train(LOGISTIC | QUICK, rows, 5, evals=[(rows, "same")], evals_result=results)
    share = booster.predict(xgboost.DMatrix(features)).astype(np.float64)
    loss = -np.mean(np.where(label == 1, np.log(share), np.log(1 - share)))
    assert results["same"]["logloss"][-1] == pytest.approx(loss, rel=1e-5)


class Frame:
    """As much of a DataFrame as is looked at."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def test_frames_of_texts_train_as_arrays_do() -> None:
    rows = table("category")
    columns = dict(zip(rows.names, rows.features.T, strict=True))
    frame = Rows(Frame(columns), rows.label, rows.weight, categories=["town", "size"])
    assert train(QUICK, frame, 3).save_raw("json") == train(QUICK, rows, 3).save_raw("json")


def test_unseen_texts_are_missing() -> None:
    """In `evals`; and the Booster's file has the texts, by which others can find them out."""
    rows = table("category")
    values: list[list[float]] = []
    for town in ("Atlantis", None):
        features = np.array(rows.features)
        features[features[:, 3] == "Rom", 3] = town
        held_out = Rows(features, rows.label, names=rows.names, categories=rows.categories)
        results: dict[str, dict[str, list[float]]] = {}
        booster = train(QUICK, rows, 4, evals=[(held_out, "test")], evals_result=results)
        values.append(results["test"]["rmse"])
    assert values[0] == values[1]
    known = dict(booster.get_categories(export_to_arrow=True).to_arrow())
    assert pyarrow.array(sorted(TOWNS[1:])).equals(known["town"])


def test_unseen_codes_are_in_no_set() -> None:
    chance = np.random.default_rng(2)
    codes = chance.integers(0, 9, (300, 1)).astype(np.float32)
    rows = Rows(codes, np.sin(2.0 * codes[:, 0]), categories=[0])
    booster = train({**QUICK, "max_cat_to_onehot": 1}, rows, 3)
    more = xgboost.DMatrix(np.array([[9.0], [4000.0]], np.float32))
    first, second = booster.predict(more).tolist()
    assert first == second


def test_categories_without_values_are_of_no_use() -> None:
    features = np.column_stack([np.arange(50.0), np.full(50, np.nan), np.zeros(50)])
    rows = Rows(features, np.arange(50.0), categories=[1, 2])
    text = train({**QUICK, "min_child_weight": 0}, rows, 2).get_dump()[0]
    assert "f0<" in text
    assert not any(f"[f{place}" in text for place in (1, 2))


# What it returns ----------------------------------------------------------------------------------


def test_metrics_are_those_of_xgboost() -> None:
    rows, held_out = table(), table(rows=300)
    metrics = ["error", "logloss", "rmse", "mae"]
    params = {**QUICK, **LOGISTIC, "eval_metric": metrics}
    results: dict[str, dict[str, list[float]]] = {}
    booster = train(
        params, rows, 5, evals=[(rows, "train"), (held_out, "test")], evals_result=results
    )
    for name, one in (("train", rows), ("test", held_out)):
        matrix = xgboost.DMatrix(one.features, one.label, weight=one.weight)
        booster.set_param([("eval_metric", metric) for metric in metrics])
        said = booster.eval(matrix, name)
        values = {item.split(":")[0]: float(item.split(":")[1]) for item in said.split()[1:]}
        found = {f"{name}-{metric}": value[-1] for metric, value in results[name].items()}
        assert found == pytest.approx(values, rel=1e-4)


def test_ndcg_is_that_of_xgboost() -> None:
    """Whose `ndcg` without a number counts 32 rows; brim's counts all, here 50."""
    rows, held_out = table("grade"), table("grade", rows=400)
    metrics = ["ndcg@50", "ndcg@5", "ndcg@5-", "ndcg@32-"]
    for gain in (True, False):
        params = {**QUICK, **NDCG, "ndcg_exp_gain": gain, "eval_metric": [*metrics, "ndcg"]}
        results: dict[str, dict[str, list[float]]] = {}
        booster = train(params, rows, 5, evals=[(held_out, "test")], evals_result=results)
        chosen = [("eval_metric", metric) for metric in metrics]
        booster.set_param([("ndcg_exp_gain", gain), *chosen])
        said = booster.eval(usual_matrix(held_out), "test").split()[1:]
        values = {item.split(":")[0]: float(item.split(":")[1]) for item in said}
        assert results["test"].pop("ndcg") == results["test"]["ndcg@50"]
        found = {f"test-{metric}": value[-1] for metric, value in results["test"].items()}
        assert found == pytest.approx(values, rel=1e-4)


def test_scores_far_apart_are_compared_by_their_gaps() -> None:
    """The row of the lower grade lies 2 above the other, 400 above both, or 400 below."""
    objective = LambdaRank(
        weighs_by_ndcg=False, top=9, normalizes=False, by_scores=False, has_exponential_gain=True
    )
    margins = np.array([[202, 200, -200, 200, -200, -200, -202]], np.float32)
    label = np.array([0, 1, 1, 0, 1, 0, 1], np.float32)
    queries = Queries(np.array([0, 3, 5, 7]))
    gradients, hessians = objective.gradients(margins, label, None, queries)
    chance = 1.0 / (1.0 + np.exp(-2.0))
    expected = [1.0 + chance, -chance, -1.0, 1.0, -1.0, chance, -chance]
    assert gradients[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert np.isfinite(hessians).all()
    apart = objective.gradients(margins[:, :3], label[:3], None, Queries(np.array([0, 3])))
    assert apart[0].tobytes() == gradients[:, :3].tobytes()


def test_ranking_stops_at_the_largest_metric() -> None:
    rows, held_out = table("grade", rows=100), table("grade", rows=150)
    params = {**QUICK, "objective": "rank:ndcg", "eta": 1.0}
    results: dict[str, dict[str, list[float]]] = {}
    options: dict[str, Any] = {"evals": [(held_out, "test")], "evals_result": results}
    booster = train(params, rows, 60, early_stopping_rounds=4, **options)
    values = results["test"]["ndcg@32"]
    assert booster.best_iteration == values.index(max(values)) == len(values) - 5 < 55


def test_training_stops_early_as_xgboost_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, held_out = table(rows=100), table(rows=80)
    params = {**QUICK, **LOGISTIC, "eta": 1.0}
    usual = xgboost.train(
        {**params, "tree_method": "hist"},
        xgboost.QuantileDMatrix(rows.features, rows.label, weight=rows.weight),
        60,
        evals=[
            (xgboost.DMatrix(held_out.features, held_out.label, weight=held_out.weight), "test")
        ],
        early_stopping_rounds=4,
        verbose_eval=False,
    )
    options: dict[str, Any] = {"evals": [(held_out, "test")], "early_stopping_rounds": 4}
    booster = train(params, rows, 60, **options)
    assert booster.best_iteration == usual.best_iteration
    assert booster.num_boosted_rounds() == usual.num_boosted_rounds() < 60
    assert float(booster.best_score) == pytest.approx(usual.best_score, rel=1e-3)
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    for _ in range(2):  # the second time there is nothing left to do
        assert train(params, rows, 60, **options).save_raw("json") == booster.save_raw("json")


def test_threads_do_not_matter() -> None:
    rows = table("class", 3000)
    params = {"objective": "multi:softprob", "num_class": 3, "subsample": 0.7}
    one, two = (train({**params, "nthread": n}, rows, 4) for n in (1, 2))
    assert one.save_raw("json") == two.save_raw("json")


def test_names_of_features_are_kept() -> None:
    rows = table(names=["a", "b", "c", "d", "e"])
    booster = train({**QUICK, "monotone_constraints": {"a": 1}}, rows, 2)
    assert booster.feature_names == ["a", "b", "c", "d", "e"]


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "brim.xgboost.training.progress", lambda *step, **values: reports.append((*step, values))
    )
    rows = table()
    train({**QUICK, "eval_metric": "mae"}, rows, 2, evals=[(rows, "train")])
    assert [report[:2] for report in reports] == [(1, 2), (2, 2)]
    assert reports[1][2]["train-mae"] < reports[0][2]["train-mae"]


# Files --------------------------------------------------------------------------------------------


def written(tmp_path: Path, suffix: str) -> tuple[Files, Rows]:
    rows = table("number")
    columns = {f"f{place}": values for place, values in enumerate(np.asarray(rows.features).T)}
    content = pyarrow.table(
        {name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()}
        | {"when": pyarrow.array(["today"] * ROWS)}
        | {"y": rows.label.astype(np.float32), "w": rows.weight.astype(np.float32)}
    )
    paths = [tmp_path / f"{place}{suffix}" for place in range(2)]
    for path, part in zip(paths, (content.slice(0, 250), content.slice(250)), strict=True):
        if suffix == ".csv":
            pyarrow.csv.write_csv(part, path)
        else:
            pyarrow.parquet.write_table(part, path, row_group_size=100)
    files = Files(paths, "y", "w", features=list(columns))
    return files, Rows(rows.features, rows.label, rows.weight, names=list(columns))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_files_train_as_arrays_do(tmp_path: Path, suffix: str) -> None:
    files, rows = written(tmp_path, suffix)
    assert train(QUICK, files, 4).save_raw("json") == train(QUICK, rows, 4).save_raw("json")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_ranked_files_train_as_arrays_do(tmp_path: Path, suffix: str) -> None:
    """Queries have names, and one begins in one file and ends in the next."""
    rows = table("grade")
    columns = {f"f{place}": values for place, values in enumerate(np.asarray(rows.features).T)}
    content = pyarrow.table(
        {name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()}
        | {"y": rows.label.astype(np.float32), "w": rows.weight.astype(np.float32)}
        | {"q": [f"query {number}" for number in rows.qid]}
    )
    paths = [tmp_path / f"{place}{suffix}" for place in range(2)]
    for path, part in zip(paths, (content.slice(0, 275), content.slice(275)), strict=True):
        if suffix == ".csv":
            pyarrow.csv.write_csv(part, path)
        else:
            pyarrow.parquet.write_table(part, path, row_group_size=90)
    files = Files(paths, "y", "w", qid="q")
    named = Rows(rows.features, rows.label, rows.weight, names=list(columns), qid=rows.qid)
    assert train(NDCG, files, 3).save_raw("json") == train(NDCG, named, 3).save_raw("json")
    parts = [files.part_of(rank, 5) for rank in range(5)]
    assert [len(part.queries or ()) for part in parts] == [3, 2, 3, 2, 2]
    assert all(part.rows.start % 50 == 0 for part in parts)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_files_of_texts_train_as_arrays_do(tmp_path: Path, suffix: str) -> None:
    """One file has texts that the other lacks; Parquet has them as a dictionary."""
    rows = table("category")
    columns = {
        name: list(values) if name == "town" else values.astype(np.float32)
        for name, values in zip(rows.names, rows.features.T, strict=True)
    }
    content = pyarrow.table(
        {name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()}
        | {"y": rows.label.astype(np.float32), "w": rows.weight.astype(np.float32)}
    )
    order = np.argsort([text or "" for text in columns["town"]], kind="stable")
    content = content.take(order)
    paths = [tmp_path / f"{place}{suffix}" for place in range(2)]
    for path, part in zip(paths, (content.slice(0, 250), content.slice(250)), strict=True):
        if suffix == ".csv":
            pyarrow.csv.write_csv(part, path)
        else:
            town = part["town"].combine_chunks().dictionary_encode()
            part = part.set_column(3, "town", town)
            pyarrow.parquet.write_table(part, path, row_group_size=100)
    files = Files(paths, "y", "w", categories=["town", "size"])
    arrays = Rows(
        rows.features[order],
        rows.label[order],
        rows.weight[order],
        names=rows.names,
        categories=["town", 4],
    )
    assert train(QUICK, files, 3).save_raw("json") == train(QUICK, arrays, 3).save_raw("json")


def test_workers_read_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows = written(tmp_path, ".parquet")
    groups: list[int] = []
    usual = pyarrow.parquet.ParquetFile.read_row_group

    def read(file: Any, group: int, *arguments: Any) -> Any:
        groups.append(group)
        return usual(file, group, *arguments)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", read)
    parts = [files.part_of(rank, 3) for rank in range(3)]
    assert groups == [0, 1, 2, 0, 1, 1, 2, 3]  # of 250 and 350 rows, by 200
    assert np.array_equal(
        np.concatenate([part.features for part in parts]),
        rows.part_of(0, 1).features,
        equal_nan=True,
    )


def test_changed_files_have_another_identity(tmp_path: Path) -> None:
    files, _ = written(tmp_path, ".parquet")
    before = files.identity
    content = pyarrow.parquet.read_table(tmp_path / "0.parquet")
    changed = pyarrow.array(np.full(250, 9.0))
    pyarrow.parquet.write_table(content.set_column(0, "f0", changed), tmp_path / "0.parquet")
    assert Files(files.paths, "y", "w", features=files.features).identity != before


# What is kept -------------------------------------------------------------------------------------


def test_other_arguments_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    train(QUICK, table("number"), 2)
    train({**QUICK, "nthread": 2}, table("number"), 3)  # threads decide nothing
    assert len(list(tmp_path.iterdir())) == 1
    train({**QUICK, "eta": 0.2}, table("number"), 2)
    train(QUICK, table("count"), 2)
    assert len(list(tmp_path.iterdir())) == 3


def damaged(folder: Path) -> None:
    (path,) = folder.glob("*/rounds-00000000-*")
    path.write_bytes(path.read_bytes().replace(b"split", b"splat", 1))


def removed(folder: Path) -> None:
    next(folder.glob("*/rounds-00000000-*")).unlink()


@pytest.mark.parametrize(("harm", "message"), [(damaged, "is damaged"), (removed, "lacks rounds")])
def test_damaged_rounds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], message: str
) -> None:
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    train(QUICK, table("number"), 2)
    train(QUICK, table("number"), 4)
    harm(tmp_path)
    with pytest.raises(EnvironmentFault, match=message):
        train(QUICK, table("number"), 5)


def test_hosts_take_over_rounds_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table("number")
    for name, rounds in (("far", 4), ("near", 2)):
        monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path / name))
        train(QUICK, rows, rounds)
    (far,), (near,) = ((tmp_path / name).iterdir() for name in ("far", "near"))
    rounds_of_far, rounds_of_near = SavedRounds(far).read(), SavedRounds(near).read()
    SavedRounds(near).catch_up(rounds_of_near, rounds_of_far)
    assert SavedRounds(near).read() == rounds_of_far
    SavedRounds(far).catch_up(rounds_of_far, rounds_of_near[:1])  # of a start that wants fewer
    with pytest.raises(EnvironmentFault, match=r"has other rounds than another host"):
        SavedRounds(near).catch_up(rounds_of_near, rounds_of_far[1:])


@pytest.mark.parametrize(
    ("variables", "keeps"),
    [
        ({}, True),
        ({"RANK": "3", "LOCAL_RANK": "0"}, True),
        ({"RANK": "3", "LOCAL_RANK": "1"}, False),
        ({"RANK": "3"}, False),
        ({"RANK": "0"}, True),
    ],
)
def test_first_process_of_a_host_keeps_rounds(variables: dict[str, str], *, keeps: bool) -> None:
    several = {"WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4000"}
    environment = {"BRIM_CHECKPOINTS": "/kept"} | (several | variables if variables else {})
    assert (place_of(environment).checkpoints is not None) == keeps


def test_rounds_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr("brim.xgboost.training._BATCH", 0.0)
    train(QUICK, table("number"), 5)
    stored = sorted(tmp_path.glob("*/rounds-*"))
    assert [path.name[-8:] for path in stored] == [f"{round:08d}" for round in range(1, 6)]
    assert all(len(rounds_in(path.read_bytes().partition(b"\n")[2])) == 1 for path in stored)


def test_rounds_do_not_depend_on_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are cut by time: hosts that have made a round in different ones have the same bytes."""
    kept = []
    for name, seconds in (("one", 0.0), ("many", 60.0)):
        monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path / name))
        monkeypatch.setattr("brim.xgboost.training._BATCH", seconds)
        train(QUICK, table("class"), 7)
        (folder,) = (tmp_path / name).iterdir()
        kept.append((len(list(folder.iterdir())), SavedRounds(folder).read()))
    assert kept[0][0] > kept[1][0]
    assert kept[0][1] == kept[1][1]


@pytest.mark.parametrize("kind", ["category", "number"])
def test_model_files_are_put_together_as_they_were(kind: str) -> None:
    booster = train(QUICK, table(kind), 3)
    booster.set_attr(größe="1")
    content = booster.save_raw("ubj")
    assert encoded(decoded(content)) == content
    for torn in (content[:-1], content[: len(content) // 2], content + b"}", b"[$S#", b"[#l"):
        with pytest.raises(InternalError, match=r"^a model file "):
            decoded(torn)


@pytest.fixture
def usual_sigterm() -> Iterator[None]:
    """As in a new process: another test of this one may have left a handler."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_ends_behind_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table("number")
    whole = train(QUICK, rows, 6)
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(
        "brim.xgboost.training.progress", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    monkeypatch.setattr("brim.xgboost.training._BATCH", 60.0)  # however slow the first round is
    with pytest.raises(SystemExit) as ending:
        train(QUICK, rows, 6)
    assert ending.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    stored = sorted(path.name for path in tmp_path.glob("*/rounds-*"))
    assert stored == ["rounds-00000000-00000001", "rounds-00000001-00000003"]
    monkeypatch.undo()
    monkeypatch.setenv("BRIM_CHECKPOINTS", str(tmp_path))
    assert train(QUICK, rows, 6).save_raw("json") == whole.save_raw("json")


# What is refused ----------------------------------------------------------------------------------

X, Y = np.arange(8.0).reshape(4, 2), np.array([0.0, 1.0, 1.0, 0.0])
GOOD = Rows(X, Y)
NDCG: dict[str, Any] = {"objective": "rank:ndcg"}
REFUSED: dict[str, Callable[[], object]] = {
    "tree_method: got 'approx', need 'hist' or 'auto'": lambda: fit(tree_method="approx"),
    "tree_method: got 'exact'": lambda: fit(tree_method="exact"),
    "booster: got 'dart', need 'gbtree'": lambda: fit(booster="dart"),
    "booster: got 'gblinear'": lambda: fit(booster="gblinear"),
    "sampling_method: got 'gradient_based', need 'uniform'": lambda: fit(
        sampling_method="gradient_based"
    ),
    "device: got 'cuda', need 'cpu'": lambda: fit(device="cuda"),
    "num_parallel_tree: got 4, need 1": lambda: fit(num_parallel_tree=4),
    "params: got 'max_dept', need a parameter that stays exact\n  hint: did you mean 'max_depth'?": (
        lambda: fit(max_dept=3)
    ),
    "params: got 'updater'": lambda: fit(updater="grow_histmaker"),
    "eta: got two values": lambda: fit(eta=0.1, learning_rate=0.2),
    "params: got {'eta': -1}, need what XGBoost takes": lambda: fit(eta=-1),
    "params: got {'max_depth': 'deep'}, need what XGBoost takes": lambda: fit(max_depth="deep"),
    "params: got list": lambda: train([], GOOD, 1),  # type: ignore[arg-type]
    "objective: got 'rank:map', need one of binary:logistic": lambda: fit(objective="rank:map"),
    "objective: got 'survival:cox'": lambda: fit(objective="survival:cox"),
    "data: qid: got none, need the query of each row": lambda: fit(objective="rank:ndcg"),
    "data: qid: got 2 queries, need none: only rank:": lambda: train({}, rank([1, 1, 2, 2]), 1),
    "test: qid: got none": lambda: train(NDCG, rank([1, 1, 2, 2]), 1, evals=[(GOOD, "test")]),
    "qid: got rows of query 1 in two places, again from row 3": lambda: rank([1, 1, 2, 1]),
    "qid: got shape (3,), need (4,)": lambda: rank([1, 1, 2]),
    "qid: got missing values, need a query in each row": lambda: rank(["a", "a", None, "b"]),
    "data: weight: got 2 in row 1, 1 before in its query": lambda: train(
        NDCG, Rows(X, Y, [1, 2, 1, 1], qid=[1, 1, 2, 2]), 1
    ),
    "data: label: got numbers from 0 to 1.5, need whole numbers from 0 to 31": lambda: train(
        NDCG, Rows(X, [0, 1.5, 0, 0], qid=[1, 1, 2, 2]), 1
    ),
    "categories: got 'town', need places of features, from 0 to 1": lambda: Rows(
        X, Y, categories=["town"]
    ),
    "categories: got 'tow', need names of features\n  hint: did you mean 'town'?": lambda: Rows(
        X, Y, names=["town", "b"], categories=["tow"]
    ),
    "feature 'a': got texts and numbers": lambda: Rows(
        [["x"], [1.5]], [0, 1], names=["a"], categories=["a"]
    ),
    "names: got 1, 1 of them different, need one for each of 2 features": lambda: Rows(
        X, Y, names=["a"], categories=["a"]
    ),
    "names: got none, need the name of each feature": lambda: Rows(
        [["x"], ["y"]], [0, 1], categories=[0]
    ),
    "data: feature 1: got 1.5 in row 3, need texts, or codes": lambda: train(
        {}, Rows(np.where(X == 7, 1.5, X), Y, categories=[1]), 1
    ),
    "data: feature 0: got -2 in row 1": lambda: train(
        {}, Rows(np.where(X == 2, -2, X), Y, categories=[0]), 1
    ),
    "test: categories: got none, need those of data, texts or numbers as there: 0": lambda: train(
        {}, Rows(X, Y, categories=[0]), 1, evals=[(GOOD, "test")]
    ),
    "lambdarank_pair_method: got 'mean', need 'topk'": lambda: fit(
        **NDCG, lambdarank_pair_method="mean"
    ),
    "lambdarank_unbiased: got True, need False": lambda: fit(**NDCG, lambdarank_unbiased=True),
    "lambdarank_bias_norm: got 2, need 1.0": lambda: fit(**NDCG, lambdarank_bias_norm=2),
    "lambdarank_normalization: got 'no', need True or False": lambda: fit(
        **NDCG, lambdarank_normalization="no"
    ),
    "lambdarank_num_pair_per_sample: got 0, need a whole number from 1": lambda: fit(
        **NDCG, lambdarank_num_pair_per_sample=0
    ),
    "ndcg_exp_gain: got False, need none beside reg:squarederror": lambda: fit(ndcg_exp_gain=False),
    "num_class: got 3, need none beside rank:ndcg": lambda: fit(**NDCG, num_class=3),
    "eval_metric: got 'map', need one that is exact, for rank:ndcg: ndcg@32, ndcg": lambda: fit(
        **NDCG, eval_metric="map"
    ),
    "eval_metric: got 'ndcg', need one that is exact, for binary": lambda: fit(
        **LOGISTIC, eval_metric="ndcg"
    ),
    "objective: got 'binary:logistics'": lambda: fit(objective="binary:logistics"),
    "num_class: got 0, need the number of classes": lambda: fit(objective="multi:softprob"),
    "num_class: got 3, need none beside reg:squarederror": lambda: fit(num_class=3),
    "eval_metric: got 'auc', need one that is exact": lambda: fit(**LOGISTIC, eval_metric="auc"),
    "subsample: got 0, need a number above 0, to 1": lambda: fit(subsample=0),
    "max_bin: got 1, need a whole number from 2": lambda: fit(max_bin=1),
    "base_score: got 1.0, need a number above 0, below 1": lambda: fit(**LOGISTIC, base_score=1.0),
    "scale_pos_weight: got 2.0, need 1 beside reg": lambda: fit(scale_pos_weight=2.0),
    "max_delta_step: got 1, need 0.7": lambda: fit(objective="count:poisson", max_delta_step=1),
    "rounds: got 0": lambda: train({}, GOOD, 0),
    "data: got ndarray, need brim.xgboost.Rows or Files": lambda: train({}, X, 1),  # type: ignore[arg-type]
    "evals: got (Rows, 'data')": lambda: train({}, GOOD, 1, evals=[(GOOD, "data")]),
    "early_stopping_rounds: got 3 with 0 tables": lambda: train(
        {}, GOOD, 1, early_stopping_rounds=3
    ),
    "test: got 1 features, need 2": lambda: train({}, GOOD, 1, evals=[(Rows(X[:, :1], Y), "test")]),
    "label: got 3 values, need one for each of 4 rows": lambda: Rows(X, Y[:3]),
    "features: got shape (4,)": lambda: Rows(X[:, 0], Y),
    "features: got values that are no numbers": lambda: Rows([["a"]], [1]),
    "names: got 2, 1 of them different": lambda: Rows(X, Y, names=["a", "a"]),
    "data: label: got nan in row 1, need numbers from -1e12": lambda: train(
        {}, Rows(X, [0, math.nan, 1, 1]), 1
    ),
    "data: label: got numbers from 0 to 2, need 0 or 1": lambda: train(
        LOGISTIC, Rows(X, [0, 1, 2, 1]), 1
    ),
    "data: label: got numbers from 0 to 3, need whole numbers from 0 to 2, below num_class": (
        lambda: train({"objective": "multi:softmax", "num_class": 3}, Rows(X, [0, 1, 2, 3]), 1)
    ),
    "data: weight: got -1 in row 2": lambda: train({}, Rows(X, Y, [1, 1, -1, 1]), 1),
    "data: weight: got only zeros": lambda: train({}, Rows(X, Y, [0, 0, 0, 0]), 1),
    "data: feature 1: got inf in row 0": lambda: train({}, Rows([[1, math.inf]], [1]), 1),
    "data: feature 'b': got -3e+38 in row 0": lambda: train(
        {}, Rows([[1, -3e38]], [1], names=["a", "b"]), 1
    ),
    "data: features: got none": lambda: train({}, Rows(np.empty((3, 0)), [1, 1, 1]), 1),
    "data: rows: got 0, need at least one": lambda: train({}, Rows(X[:0], Y[:0]), 1),
    "nowhere.csv: got no such file": lambda: train({}, Files("nowhere.csv", "y"), 1),
    "table.json: got '.json', need .parquet or .csv": lambda: train(
        {}, Files("table.json", "y"), 1
    ),
}


def rank(qid: list[Any]) -> Rows:
    return Rows(X, Y, qid=qid)


def fit(**params: Any) -> object:
    return train(params, GOOD, 1)


@pytest.mark.parametrize(("message", "attempt"), REFUSED.items(), ids=REFUSED)
def test_wrong_arguments_are_named(message: str, attempt: Callable[[], object]) -> None:
    with pytest.raises(SpecError) as error:
        attempt()
    assert str(error.value).startswith(message), error.value


def test_too_many_categories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.xgboost.categories.MOST_CATEGORIES", 1)
    with pytest.raises(SpecError, match=r"feature 'a': got 2 categories, need at most 1"):
        Rows([["x"], ["y"]], [0, 1], names=["a"], categories=["a"])


def test_more_rows_than_sums_allow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.xgboost.rows.MOST_ROWS", 3)
    with pytest.raises(SpecError, match=r"data: rows: got 4, need at most 3"):
        train({}, GOOD, 1)


def test_wrong_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,x,0\n2,y,1\n")
    with pytest.raises(SpecError, match=r"column 'z': got no such column") as error:
        train({}, Files(path, "z"), 1)
    assert "'a'" in str(error.value) or "known: a, b, y" in str(error.value)
    with pytest.raises(
        SpecError, match=r"column 'b': got string, need numbers\n  hint: categories=\['b'\]"
    ):
        train({}, Files(path, "y"), 1)


def test_columns_of_texts_and_numbers_are_refused(tmp_path: Path) -> None:
    for name, value in (("a", "x"), ("b", "3")):
        (tmp_path / f"{name}.csv").write_text(f"town,y\n{value},0\n{value},1\n")
    files = Files([tmp_path / "a.csv", tmp_path / "b.csv"], "y", categories=["town"])
    with pytest.raises(SpecError, match=r"column 'town': got texts and numbers"):
        train({}, files, 1)
    with pytest.raises(SpecError, match=r"categories: got 'city', need names of features"):
        train({}, Files(files.paths, "y", categories=["city"]), 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE: got 2 without MASTER_ADDR"),
        ({"RANK": "x"}, "RANK: got 'x'"),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "0.0.0.0", "MASTER_PORT": "4000"},
            "MASTER_ADDR: got '0.0.0.0', need the address of one interface",
        ),
    ],
)
def test_odd_launchers_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        place_of(variables)
    assert str(error.value).startswith(message)


def test_ports_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.xgboost.launch._TO_MEET", 0.0)

    def place(rank: int, port: int) -> Place:
        return Place(rank=rank, size=2, address="127.0.0.1", port=port, checkpoints=None)

    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(EnvironmentFault, match=f"cannot listen on 127.0.0.1:{port}"),
            tracker_of(xgboost, place(0, port)),
        ):
            pass
    with socket.socket() as silent:  # has a port, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with (
            pytest.raises(EnvironmentFault, match=f"no worker listens on 127.0.0.1:{port}"),
            connected(xgboost, place(1, port)),
        ):
            pass


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(SpecError, match=r"hint: pip install .*\[xgboost\]'"):
        train({}, GOOD, 1)


@pytest.mark.parametrize("version", ["3.1.3", "4.0.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(xgboost, "__version__", version)
    with pytest.raises(SpecError, match=rf"xgboost: got {version}, need 3.2 or newer"):
        train({}, GOOD, 1)


def test_public_names() -> None:
    assert brim.xgboost.__all__ == ["Files", "Rows", "train"]
