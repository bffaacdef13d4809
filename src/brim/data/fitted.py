"""Values fitted to the training rows, kept with a run in `columns.json`.

A model must see other rows as it saw those that it was trained on: the same ids, the same means. So
every call of `brim.data` within a run leaves what it fitted in the run's directory. A process that
uses the model says `use`, and calls with the same columns then get what was fitted, and read no row
before one is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from brim.data.columns import Categorical, Column, ItemSequence, Numeric, Target
from brim.data.encoding import Encoder
from brim.decoding import UNDECODABLE
from brim.errors import EnvironmentFault
from brim.storage.files import write_whole

COLUMNS = "columns.json"
_in_use: list[dict[str, Any]] | None = None


class _Fitted(msgspec.Struct):
    """See `_fitted`."""

    values: list[str] | None = None
    moments: tuple[float, float, float] | None = None


class _Fit(msgspec.Struct):
    """An entry of the file."""

    files: list[str]
    columns: list[dict[str, Any]]
    fitted: list[_Fitted]

    def __post_init__(self) -> None:
        for column, fitted in zip(self.columns, self.fitted, strict=True):
            if ("numeric" in column) != (fitted.moments is not None):
                raise ValueError("numbers have moments, and nothing else has")
            owns = "vocabulary" in column or ("sequence" in column and column["of"] is None)
            if owns != (fitted.values is not None):
                raise ValueError("vocabularies have values, and nothing else has")


def remember(run_directory: str, files: Sequence[str], encoder: Encoder) -> None:
    """Add fitted columns to the run's file.

    Its entries stay: a run that is resumed began with them.

    Several processes may write at once: each writes the same.

    Args:
        run_directory: the run's directory; empty writes nothing.
        files: what was read, as its user wrote it.
        encoder: with what was fitted.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    if not run_directory or _in_use is not None:
        return
    path = Path(run_directory) / COLUMNS
    entry = _entry(files, encoder)
    try:
        entries = _read(path)
    except EnvironmentFault:
        entries = []  # damaged: what is fitted to the same rows again is the same
    if any(
        all(entry[key] == other_entry[key] for key in ("files", "columns"))
        for other_entry in entries
    ):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, [*entries, entry])
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error


def write(path: Path, encoder: Encoder) -> None:
    """Write fitted columns, alone, to a file that `use` and `encoder_in` understand.

    Raises:
        OSError: the disk does not take it.
    """
    _write(path, [_entry([], encoder)])


def _entry(files: Sequence[str], encoder: Encoder) -> dict[str, Any]:
    return {"files": list(files), "columns": _plain(encoder.columns), "fitted": _fitted(encoder)}


def _write(path: Path, fits: list[dict[str, Any]]) -> None:
    write_whole(path, json.dumps({"fits": fits, "sha256": _checksum(fits)}).encode())


def sha256_of(encoder: Encoder) -> str:
    """The digest of fitted columns, by which two encoders are known to be alike."""
    return _checksum([_entry([], encoder)])


def has_functions(encoder: Encoder) -> bool:
    """Return whether columns have functions of the user's, which no data file can hold."""
    return any(
        isinstance(column, Categorical) and column.by is not None for column in encoder.columns
    )


def encoder_in(path: Path) -> Encoder:
    """The encoder that a file describes alone, for inputs without a target.

    Raises:
        EnvironmentFault: the file is damaged, or describes another number of them, or one that has
            functions.
    """
    entries = _read(path)
    if len(entries) != 1 or any(column.get("by") for column in entries[0]["columns"]):
        raise EnvironmentFault(f"{path} does not describe the columns of one data set alone")
    try:
        columns = tuple(_column(plain) for plain in entries[0]["columns"])
    except (LookupError, TypeError) as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error
    return _encoder(columns, (), entries[0])


def _column(plain: dict[str, Any]) -> Column:
    if "numeric" in plain:
        return Numeric(
            name=plain["numeric"], transform=plain["transform"], missing=plain["missing"]
        )
    if "sequence" in plain:
        return ItemSequence(
            name=plain["sequence"],
            length=plain["length"],
            separator=plain["separator"],
            of=plain["of"],
            min_count=plain["min_count"],
        )
    names = tuple(plain["hashed" if plain["buckets"] else "vocabulary"])
    return Categorical(names=names, by=None, buckets=plain["buckets"], min_count=plain["min_count"])


def use(run_directory: Path) -> None:
    """Take fitted values from this run from now on.

    A run that fitted nothing changes nothing.

    Raises:
        EnvironmentFault: the file is damaged.
    """
    global _in_use
    _in_use = _read(run_directory / COLUMNS)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, *UNDECODABLE) as error:
        raise EnvironmentFault(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("sha256") != _checksum(content.get("fits")):
        raise EnvironmentFault(f"{path} is damaged: it does not have its own checksum")
    try:
        msgspec.convert(content.get("fits"), list[_Fit])
    except UNDECODABLE as error:
        raise EnvironmentFault(f"{path} is damaged: {error}") from error
    fits: list[dict[str, Any]] = content["fits"]
    return fits


def find(
    files: Sequence[str], columns: tuple[Column, ...], targets: tuple[Target, ...]
) -> Encoder | None:
    """Return the encoder that the run in use fitted for these columns.

    Where several fits have them, take the one of these files.
    """
    plain_columns = _plain(columns)
    entries = [entry for entry in _in_use or [] if entry["columns"] == plain_columns]
    if len(entries) > 1:
        entries = [entry for entry in entries if entry["files"] == list(files)]
    return _encoder(columns, targets, entries[0]) if entries else None


def _encoder(
    columns: tuple[Column, ...], targets: tuple[Target, ...], entry: dict[str, Any]
) -> Encoder:
    fitted = dict(enumerate(entry["fitted"]))
    return Encoder(
        columns,
        targets,
        {place: _ids(values["values"]) for place, values in fitted.items() if "values" in values},
        {
            place: tuple(values["moments"])
            for place, values in fitted.items()
            if "moments" in values
        },
    )


def _plain(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """The columns as JSON can say them; of a function, only that there is one."""
    plain: list[dict[str, Any]] = []
    for column in columns:
        if isinstance(column, Numeric):
            names: dict[str, Any] = {
                "numeric": column.name,
                "transform": column.transform,
                "missing": column.missing,
            }
        elif isinstance(column, ItemSequence):
            names = {
                "sequence": column.name,
                "length": column.length,
                "separator": column.separator,
                "of": column.of,
                "min_count": column.min_count,
            }
        else:
            kind = "vocabulary" if column.buckets is None else "hashed"
            names = {
                kind: list(column.names),
                "buckets": column.buckets,
                "min_count": column.min_count,
            }
            names["by"] = column.by is not None
        plain.append(names)
    return plain


def _fitted(encoder: Encoder) -> list[dict[str, Any]]:
    """Return the fitted values of each column.

    These are the values in the order of their ids; or mean, deviation and raw mean; or nothing.
    """
    fitted: list[dict[str, Any]] = []
    for place, column in enumerate(encoder.columns):
        if isinstance(column, Numeric):
            fitted.append({"moments": list(encoder.moments[place])})
        elif (table := encoder.tables.get(place)) is not None:
            fitted.append({"values": sorted(table, key=table.__getitem__)})
        else:
            fitted.append({})
    return fitted


def _ids(values: Sequence[str]) -> dict[str, int]:
    return {value: id_ for id_, value in enumerate(values, 1)}


def _checksum(fits: Any) -> str:
    return hashlib.sha256(json.dumps(fits).encode()).hexdigest()
