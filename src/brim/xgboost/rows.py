"""Tables to train on: arrays that each worker has, or files of which each reads its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.domain.quantities import counted
from brim.errors import NO_SUCH_FILE, SpecError, did_you_mean
from brim.host.installation import command_for
from brim.storage.files import nearby
from brim.xgboost.arithmetic import Floats
from brim.xgboost.categories import (
    MOST_CATEGORIES,
    Vocabularies,
    check_count,
    codes_of,
    is_missing,
    recoded,
    texts_in,
)
from brim.xgboost.grid import MOST_ROWS
from brim.xgboost.objectives import Objective
from brim.xgboost.queries import Queries, queries_of, share_of_queries
from brim.xgboost.workers import Collectives, share_of

_SUFFIXES = (".parquet", ".csv")
_LARGEST = np.float32(1e38)  # XGBoost's last threshold, twice a value, has to be finite
_LARGEST_LABEL = np.float32(1e12)  # and weight: the weighted square of a label is a float32
_FOOTER_END = 8  # bytes of a Parquet file: the length of its footer, and "PAR1"


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """The rows of one worker.

    Args:
        features: float32 of shape (rows, features); NaN: missing.
        label, weight: float32 of shape (rows,); no weight: all are 1.
        rows: their numbers among all rows.
        total: rows of all workers.
        names: of the features; none: they have none.
        queries: of the rows; None: they have none.
        vocabularies: of features that are categories.
    """

    features: Floats
    label: Floats
    weight: Floats | None
    rows: range
    total: int
    names: tuple[str, ...]
    queries: Queries | None = None
    vocabularies: Vocabularies = field(default_factory=dict)

    def recoded(self, subject: str, others: Vocabularies) -> WorkerRows:
        """Return these rows with the codes of other vocabularies; texts that they lack are missing.

        Raises:
            SpecError: they are of other features, or of numbers in place of texts.
        """
        if {place: bool(texts) for place, texts in others.items()} != {
            place: bool(texts) for place, texts in self.vocabularies.items()
        }:
            raise SpecError(
                f"{subject}: categories",
                got=self._named(self.vocabularies) or "none",
                need=f"those of data, texts or numbers as there: {self._named(others) or 'none'}",
            )
        if others == self.vocabularies:
            return self
        features = self.features.copy()
        for place, texts in others.items():
            if texts:
                own = self.vocabularies[place]
                features[:, place] = recoded(features[:, place], own, texts)
        return replace(self, features=features, vocabularies=others)

    def _named(self, vocabularies: Vocabularies) -> str:
        return ", ".join(self.names[place] if self.names else str(place) for place in vocabularies)

    def check(self, subject: str, objective: Objective) -> None:
        """Refuse values that no tree can be trained on.

        Raises:
            SpecError: the message names it.
        """
        if not self.features.shape[1]:
            raise SpecError(f"{subject}: features", got="none", need="at least one")
        # NaN is not within anything.
        if bad := _first(~(np.abs(self.label) <= _LARGEST_LABEL), self.rows):
            raise SpecError(
                f"{subject}: label",
                got=f"{self.label[bad[0]]:g} in row {bad[1]}",
                need="numbers from -1e12 to 1e12",
            )
        if not objective.is_valid(self.label):
            ends = f"{self.label.min():g} to {self.label.max():g}"
            raise SpecError(f"{subject}: label", got=f"numbers from {ends}", need=objective.needs)
        weight = np.ones_like(self.label) if self.weight is None else self.weight
        if bad := _first(~((weight >= 0) & (weight <= _LARGEST_LABEL)), self.rows):
            raise SpecError(
                f"{subject}: weight",
                got=f"{weight[bad[0]]:g} in row {bad[1]}",
                need="numbers from 0 to 1e12",
            )
        if self.queries is not None:
            heads = np.repeat(weight[self.queries.starts[:-1]], self.queries.sizes)
            if bad := _first(weight != heads, self.rows):
                raise SpecError(
                    f"{subject}: weight",
                    got=f"{weight[bad[0]]:g} in row {bad[1]}, {heads[bad[0]]:g} before in its query",
                    need="one weight for all rows of a query",
                )
        for place in self.vocabularies:
            codes = self.features[:, place]
            is_code = (codes >= 0) & (codes < MOST_CATEGORIES) & (codes == np.floor(codes))
            if bad := _first(~is_code & ~np.isnan(codes), self.rows):
                name = repr(self.names[place]) if self.names else place
                raise SpecError(
                    f"{subject}: feature {name}",
                    got=f"{codes[bad[0]]:g} in row {bad[1]}",
                    need=f"texts, or codes of categories: whole numbers from 0 to {MOST_CATEGORIES - 1}",
                )
        # NaN, a missing value, is not greater than anything.
        for row, column in np.argwhere(np.abs(self.features) > _LARGEST)[:1]:
            name = repr(self.names[column]) if self.names else column
            raise SpecError(
                f"{subject}: feature {name}",
                got=f"{self.features[row, column]:g} in row {self.rows.start + row}",
                need="numbers below 1e38, or NaN where a value is missing",
            )


@dataclass(frozen=True)
class Rows:
    """A table in memory. Each worker has all of it, and trains on its share.

    Args:
        features: numbers of shape (rows, features), an array or a DataFrame; NaN: missing.
        label: of shape (rows,): numbers, or the classes' from 0.
        weight: of shape (rows,); None: all are 1.
        names: of the features; none: a DataFrame's columns, or no names.
        qid: of shape (rows,): the query of each row, a number or a text, for objectives that rank. The rows
            of a query lie side by side.
        categories: the features whose values are categories, by name or place: texts, or codes from 0.

    Raises:
        SpecError: shapes that do not fit, or values that are no numbers.
    """

    features: Any
    label: Any
    weight: Any = None
    names: Sequence[str] = ()
    qid: Any = None
    categories: Sequence[str | int] = ()

    def __post_init__(self) -> None:
        _ = self._arrays, self._names, self.queries

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self._arrays[0])

    @cached_property
    def queries(self) -> Queries | None:
        """The queries of all rows; None: they have none."""
        if self.qid is None:
            return None
        ids = np.asarray(self.qid)
        if ids.shape != (self.total,):
            raise SpecError("qid", got=f"shape {ids.shape}", need=f"({self.total},): one a row")
        if ids.dtype.kind not in "biuU":
            if any(map(is_missing, ids)):
                raise SpecError("qid", got="missing values", need="a query in each row")
            ids = ids.astype(str)
        return queries_of(ids)

    @cached_property
    def identity(self) -> str:
        """A digest of all values."""
        digest = hashlib.sha256(repr((self._names, *self._vocabularies.items())).encode())
        starts = None if self.queries is None else self.queries.starts
        for values in (*self._arrays, *([] if starts is None else [starts])):
            if values is not None:
                digest.update(repr(values.shape).encode())
                digest.update(values.data)
        return digest.hexdigest()

    def part_of(self, rank: int, size: int) -> WorkerRows:
        """Return the rows of one worker."""
        share, queries = _share(self.total, self.queries, rank, size)
        rows = slice(share.start, share.stop)
        features, label, weight = self._arrays
        return WorkerRows(
            features[rows],
            label[rows],
            None if weight is None else weight[rows],
            share,
            self.total,
            self._names,
            queries,
            self._vocabularies,
        )

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats | None]:
        features = self._coded[0]
        label = _floats("label", self.label, 1)
        weight = None if self.weight is None else _floats("weight", self.weight, 1)
        for name, values in (("label", label), ("weight", weight)):
            if values is not None and len(values) != len(features):
                raise SpecError(
                    name,
                    got=counted(len(values), "value"),
                    need=f"one for each of {counted(len(features), 'row')}",
                )
        return features, label, weight

    @property
    def _vocabularies(self) -> Vocabularies:
        return self._coded[1]

    @cached_property
    def _coded(self) -> tuple[Floats, Vocabularies]:
        """The features as numbers, and the texts of those that are categories."""
        if not self.categories:
            return _floats("features", self.features, 2), {}
        labels = list(getattr(self.features, "columns", ()))
        array: NDArray[Any] | None = None
        if isinstance(self.features, np.ndarray):
            array = self.features
        elif not labels:  # without a type it would have numbers as texts
            array = np.asarray(self.features, object)
        if array is not None and array.ndim != 2:
            raise SpecError("features", got=f"shape {array.shape}", need="(rows, features)")
        width = len(labels) if array is None else array.shape[1]
        names = list(map(str, self.names or labels))
        places = {_place(category, names, width) for category in self.categories}
        columns: list[Floats] = []
        vocabularies: dict[int, tuple[str, ...]] = {}
        for place in range(width):
            values = self.features[labels[place]] if array is None else array[:, place]
            subject = f"feature {names[place]!r}" if len(names) == width else f"feature {place}"
            texts: tuple[str, ...] = ()
            if place in places:
                texts = vocabularies[place] = texts_in(subject, values := np.asarray(values))
            columns.append(codes_of(values, texts) if texts else _floats(subject, values, 1))
        if any(vocabularies.values()) and not names:
            raise SpecError(
                "names", got="none", need="the name of each feature, since categories have texts"
            )
        return np.stack(columns, axis=1), vocabularies

    @cached_property
    def _names(self) -> tuple[str, ...]:
        columns = self.names or getattr(self.features, "columns", ())
        names = tuple(map(str, columns))
        if names and (len(names) != self._arrays[0].shape[1] or len(set(names)) != len(names)):
            raise SpecError(
                "names",
                got=f"{len(names)}, {len(set(names))} of them different",
                need=f"one for each of {self._arrays[0].shape[1]} features",
            )
        return names


@dataclass(frozen=True)
class Files:
    """A table in Parquet or CSV files, one after another.

    Of Parquet each worker reads the row groups that have its rows; CSV it reads as a whole.

    Args:
        paths: one or several, all of the same columns.
        label: name of its column.
        weight: name of its column; None: all rows weigh 1.
        features: names of columns; none: all others.
        qid: name of the column of queries, for objectives that rank: numbers or texts. The rows of a query
            lie side by side. Each worker reads this column of all rows.
        categories: names of features whose values are categories: texts, of which each worker reads the
            columns of all rows, or codes from 0.

    Raises:
        SpecError: a file or column that is not there, or a column that has no numbers.
    """

    paths: str | Path | Sequence[str | Path]
    label: str
    weight: str | None = None
    features: Sequence[str] = ()
    qid: str | None = None
    categories: Sequence[str] = ()

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(table.rows for table in self._tables)

    @cached_property
    def queries(self) -> Queries | None:
        """The queries of all rows; None: they have none."""
        if self.qid is None:
            return None
        _ = self._names  # the column is there
        pieces = [piece for table in self._tables for piece in table.ids(self.qid)]
        return queries_of(np.concatenate(pieces) if pieces else np.empty(0, np.int64))

    @cached_property
    def identity(self) -> str:
        """A digest of CSV files, and of the footers of Parquet files, with sizes and statistics."""
        columns = self._names, self.label, self.weight, self.qid, tuple(self.categories)
        digest = hashlib.sha256(repr(columns).encode())
        for table in self._tables:
            digest.update(table.digest)
        return digest.hexdigest()

    def part_of(self, rank: int, size: int) -> WorkerRows:
        """Return the rows of one worker."""
        share, queries = _share(self.total, self.queries, rank, size)
        columns = [*self._names, self.label, *([self.weight] if self.weight else [])]
        pieces: list[Floats] = []
        begin = 0
        for table in self._tables:
            piece = range(max(share.start - begin, 0), min(share.stop - begin, table.rows))
            if piece:
                pieces += table.read(piece, columns, self._texts)
            begin += table.rows
        values = np.concatenate(pieces) if pieces else np.empty((0, len(columns)), np.float32)
        width = len(self._names)
        weight = np.ascontiguousarray(values[:, -1]) if self.weight else None
        label = np.ascontiguousarray(values[:, width])
        features = np.ascontiguousarray(values[:, :width])
        vocabularies = {self._names.index(name): texts for name, texts in self._texts.items()}
        return WorkerRows(
            features, label, weight, share, self.total, self._names, queries, vocabularies
        )

    @cached_property
    def _texts(self) -> dict[str, tuple[str, ...]]:
        """The texts of each column of categories; none where it has numbers."""
        for name in self.categories:
            _place(name, self._names, len(self._names))
        found: dict[str, tuple[str, ...]] = {}
        for name in sorted(set(self.categories)):
            columns = [table.texts(name) for table in self._tables]
            texts = set[str]().union(*(texts for texts, _ in columns))
            if texts and any(has_others for _, has_others in columns):
                raise SpecError(
                    f"column {name!r}", got="texts and numbers", need="texts alone, or codes alone"
                )
            check_count(f"column {name!r}", len(texts))
            found[name] = tuple(sorted(texts))
        return found

    @cached_property
    def _tables(self) -> list[_Table]:
        single = isinstance(self.paths, str | Path)
        paths: Sequence[str | Path] = [self.paths] if single else self.paths  # type: ignore[assignment, list-item]
        if not paths:
            raise SpecError("paths", got="none", need="Parquet or CSV files")
        return [_Table(Path(path)) for path in paths]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        columns = self._tables[0].columns
        for table in self._tables:
            for name in (self.label, self.weight, self.qid, *self.features):
                if name is not None and name not in table.columns:
                    raise SpecError(
                        f"{table.path}: column {name!r}",
                        got="no such column",
                        need="a column of the file",
                        hint=did_you_mean(name, table.columns),
                    )
            if table.columns != columns:
                raise SpecError(
                    str(table.path), got="other columns", need=f"those of {self._tables[0].path}"
                )
        return tuple(self.features) or tuple(
            name for name in columns if name not in (self.label, self.weight, self.qid)
        )


class _Table:
    """One file."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ModuleNotFoundError as error:
            raise SpecError(
                "brim.xgboost.Files",
                got="a Python without pyarrow",
                need="pyarrow",
                hint=command_for("xgboost"),
            ) from error
        self.path = path
        if path.suffix not in _SUFFIXES:
            raise SpecError(str(path), got=repr(path.suffix), need=" or ".join(_SUFFIXES))
        if not path.is_file():
            raise SpecError(
                str(path), got=NO_SUCH_FILE, need="a table", hint=nearby(path, _SUFFIXES)
            )
        self._csv: Any = None
        try:
            if path.suffix == ".csv":
                self._csv = pyarrow.csv.read_csv(path)
                self.rows, self.columns = self._csv.num_rows, self._csv.column_names
                self.digest = hashlib.sha256(path.read_bytes()).digest()
            else:
                self._file = pyarrow.parquet.ParquetFile(path)
                self.rows = self._file.metadata.num_rows
                self.columns = self._file.schema_arrow.names
                self.digest = hashlib.sha256(_footer(path)).digest()
        except pyarrow.ArrowException as error:
            raise SpecError(
                str(path), got=str(error).splitlines()[0], need=f"a {path.suffix[1:]} file"
            ) from error

    def read(
        self, rows: range, columns: list[str], texts: Mapping[str, tuple[str, ...]]
    ) -> Iterator[Floats]:
        """Read these rows, as float32 of shape (rows, columns), group by group."""
        if self._csv is not None:
            yield self._floats(self._csv.select(columns).slice(rows.start, len(rows)), texts)
            return
        begin = 0
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            piece = range(max(rows.start - begin, 0), min(rows.stop - begin, count))
            if piece:
                table = self._file.read_row_group(group, columns)
                yield self._floats(table.select(columns).slice(piece.start, len(piece)), texts)
            begin += count

    def ids(self, column: str) -> Iterator[NDArray[Any]]:
        """Read a column of numbers or texts of all rows, group by group."""
        for values in self._column(column):
            if values.null_count:
                raise SpecError(
                    f"{self.path}: column {column!r}",
                    got="missing values",
                    need="a query in each row",
                )
            yield values.to_numpy()

    def texts(self, column: str) -> tuple[set[str], bool]:
        """Read the different texts of a column, and whether it has anything else."""
        import pyarrow

        missing = {None} if self._csv is None else {None, ""}
        found: set[str] = set()
        has_others = False
        for values in self._column(column):
            kind = values.type
            if pyarrow.types.is_dictionary(kind):
                kind = kind.value_type
            if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
                found.update(set(values.unique().to_pylist()) - missing)
            else:
                has_others |= values.null_count < len(values)
        return found, has_others

    def _column(self, name: str) -> Iterator[Any]:
        if self._csv is not None:
            yield self._csv.column(name)
            return
        for group in range(self._file.num_row_groups):
            yield self._file.read_row_group(group, [name]).column(name)

    def _floats(self, table: Any, texts: Mapping[str, tuple[str, ...]]) -> Floats:
        import pyarrow

        values = np.empty((table.num_rows, table.num_columns), np.float32)
        for column, entry in enumerate(table.schema):
            kind = entry.type
            if texts.get(entry.name):
                values[:, column] = codes_of(table.column(column).to_pylist(), texts[entry.name])
                continue
            if not any(
                is_kind(kind)
                for is_kind in (
                    pyarrow.types.is_integer,
                    pyarrow.types.is_floating,
                    pyarrow.types.is_boolean,
                    pyarrow.types.is_decimal,
                )
            ):
                raise SpecError(
                    f"{self.path}: column {entry.name!r}",
                    got=str(kind),
                    need="numbers",
                    hint=f"categories=[{entry.name!r}], or choose others: Files(…, features=[…])",
                )
            numbers = table.column(column).cast(pyarrow.float64())
            values[:, column] = numbers.to_numpy(zero_copy_only=False)
        return values


def check_size(subject: str, table: Rows | Files, size: int, *, is_ranked: bool) -> None:
    """Refuse a number of rows for which sums are not exact, or that leaves a worker without any.

    Args:
        is_ranked: the rows need queries; False: they must have none.

    Raises:
        SpecError: there are too many or too few, or queries are missing or of no use.
    """
    total, queries = table.total, table.queries
    if is_ranked != (queries is not None):
        raise SpecError(
            f"{subject}: qid",
            got="none" if is_ranked else f"{len(queries or ())} queries",
            need="the query of each row" if is_ranked else "none: only rank:… ranks",
            hint="brim.xgboost.Rows(…, qid=…)" if is_ranked else "leave it out",
        )
    if queries is not None and 0 < len(queries) < size:
        raise SpecError(
            f"{subject}: queries",
            got=str(len(queries)),
            need=f"at least one for each of {counted(size, 'worker')}",
            hint=f"--workers {len(queries)}",
        )
    if total > MOST_ROWS:
        raise SpecError(
            f"{subject}: rows",
            got=f"{total:,}",
            need=f"at most {MOST_ROWS:,}: gradients of more are rounded too coarsely",
            hint="train on a sample",
        )
    if total < size:
        raise SpecError(
            f"{subject}: rows",
            got=str(total),
            need=f"at least one for each of {counted(size, 'worker')}",
            hint="--workers 1" if total else "",
        )


def check_weights(subject: str, part: WorkerRows, workers: Collectives) -> None:
    """Refuse a table whose rows all weigh nothing.

    Raises:
        SpecError: there is no weight above 0 on any worker.
    """
    if part.weight is not None:
        heaviest = workers.largest(np.array([part.weight.max(initial=0.0)]))
        if not heaviest[0]:
            raise SpecError(f"{subject}: weight", got="only zeros", need="some weight above 0")


def _place(category: str | int, names: Sequence[str], width: int) -> int:
    """The place of a feature of categories."""
    if isinstance(category, str) and category in names:
        return list(names).index(category)
    if isinstance(category, int) and not isinstance(category, bool) and 0 <= category < width:
        return category
    raise SpecError(
        "categories",
        got=repr(category),
        need="names of features" if names else f"places of features, from 0 to {width - 1}",
        hint=did_you_mean(str(category), names) if names else "",
    )


def _share(
    total: int, queries: Queries | None, rank: int, size: int
) -> tuple[range, Queries | None]:
    """The rows of one worker, and their queries."""
    if queries is None:
        return share_of(total, rank, size), None
    share = share_of_queries(queries, rank, size)
    return share, queries.part_of(share)


def _first(is_bad: NDArray[np.bool_], rows: range) -> tuple[int, int] | None:
    """The place of the first bad value, here and among all rows."""
    if not is_bad.any():
        return None
    place = int(is_bad.argmax())
    return place, rows.start + place


def _floats(name: str, values: Any, dimensions: int) -> Floats:
    if hasattr(values, "toarray"):
        raise SpecError(
            name,
            got="a sparse matrix",
            need="an array",
            hint=f"{name}.toarray(), with NaN as missing",
        )
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        try:  # a DataFrame of several kinds of numbers
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise SpecError(
                name,
                got=f"values that are no numbers ({error})",
                need="numbers",
                hint="categories=[…] names columns of text",
            ) from error
    if array.ndim != dimensions:
        raise SpecError(
            name,
            got=f"shape {array.shape}",
            need="(rows, features)" if dimensions == 2 else "(rows,)",
        )
    with np.errstate(over="ignore"):  # too large for a float32: refused with its row
        return np.ascontiguousarray(array, np.float32)


def _footer(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-_FOOTER_END, 2)
        length = int.from_bytes(file.read(_FOOTER_END)[:4], "little")
        file.seek(-_FOOTER_END - length, 2)
        return file.read(length)
