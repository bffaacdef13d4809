"""Lines of libsvm and libffm into rows of cells: a label, and the features that a row has.

Shapes: E features (entries) of all lines, R rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brim.data.files import File
from brim.data.tables import (
    LIST_END,
    BadRow,
    Cells,
    Codes,
    FileRows,
    Flaw,
    Floats,
    TextCells,
    float_token,
    items_in,
    number_in,
    numpy_of,
)
from brim.errors import SpecError

LABEL, QUERY, FEATURES = "label", "qid", "features"
NOT_AN_ID = "an id whose value is not 1"
TWO_OF_A_FIELD = "several features of one field"
TWICE = "one feature twice"
_FORMS = {"libsvm": "label index:value …", "libffm": "label field:index:value …"}
_FEATURE = {
    "libsvm": r"^(?P<index>[0-9]{1,18}):(?P<value>[^:]+)$",
    "libffm": r"^(?P<field>[0-9]{1,18}):(?P<index>[0-9]{1,18}):(?P<value>[^:]+)$",
}
_UNIT_TOLERANCE = 0.01  # of a value written with two digits, such as 0.16 for 1/√39


class _SparseCells(TextCells):
    """A column of ids, or of lists of them, with the value beside each id as its number."""

    def __init__(self, tokens: pa.Array, numbers: Floats) -> None:
        super().__init__(pa.chunked_array([tokens.dictionary_encode()]))
        self._values_beside = numbers

    @property
    def numbers(self) -> Floats:
        return self._values_beside

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        return (self.codes < 0) & np.isnan(self._values_beside)

    def text(self, row: int) -> str:
        token = super().text(row)
        value = self._values_beside[row]
        return (
            _list_text(token) if value == 1 or np.isnan(value) else f"{_list_text(token)}:{value:g}"
        )

    @property
    def column(self) -> pa.Array:
        texts = [_list_text(token) for token in self.tokens]
        codes = pa.array(self.codes, mask=self.codes < 0)
        return pa.DictionaryArray.from_arrays(
            codes, pa.array(texts, pa.string())
        ).dictionary_decode()


class _NumberCells:
    """A column of numbers, 0 in the rows that do not have the feature."""

    def __init__(self, numbers: Floats) -> None:
        self.numbers = numbers
        self.empty = np.zeros(len(numbers), bool)

    @cached_property
    def _distinct(self) -> tuple[Floats, Codes]:
        return np.unique(self.numbers, return_inverse=True)

    @property
    def codes(self) -> Codes:
        return self._distinct[1]

    @property
    def token_numbers(self) -> Floats:
        return self._distinct[0]

    @cached_property
    def tokens(self) -> Sequence[str]:
        return [float_token(value) for value in self._distinct[0].tolist()]

    def text(self, row: int) -> str:
        return f"{self.numbers[row]:g}"

    @property
    def column(self) -> pa.Array:
        return pa.array(self.numbers)


@dataclass(frozen=True, slots=True)
class _Entries:
    """The features of all rows, in order: the row of each [E], and what the file says of it."""

    row: Codes
    field: Codes
    index: Codes
    value: Floats

    def take(self, places: npt.NDArray[Any]) -> _Entries:
        """Return the entries at some places, or of a mask."""
        parts = (self.row, self.field, self.index, self.value)
        return _Entries(*(part[places] for part in parts))


def check_names(file: File, kind: str, columns: Sequence[str]) -> None:
    """Raises SpecError where a name is no column that files of this kind can have."""
    named = (LABEL, QUERY, FEATURES) if kind == "libsvm" else (LABEL,)
    noun = "the index of a feature" if kind == "libsvm" else "the number of a field"
    for name in columns:
        if name not in named and not (name.isascii() and name.isdigit() and str(int(name)) == name):
            raise SpecError(
                f"column {name!r}",
                got=f"no such column in {file.label}",
                need=f"{', '.join(map(repr, named))}, or {noun}, as a text: '7'",
            )


def read_sparse(
    file: File,
    kind: str,
    *,
    columns: Sequence[str],
    numbers: Collection[str],
    lists: Collection[str],
    start: int,
) -> FileRows:
    """Read the wanted columns of a whole file.

    Args:
        file: where it is.
        kind: `libsvm` or `libffm`.
        columns: `label`, `qid`, `features`, or a feature's index (libsvm), or a field (libffm).
        numbers: the columns whose values are wanted; of the others, the indices are.
        lists: the columns in which a row may have several indices.
        start: rows of the dataset before this file.

    Raises:
        SpecError: no rows, a name that no such column has, or most lines are malformed.
    """
    check_names(file, kind, columns)
    texts, line_of_row = _lines(file)
    parsed = _parse(kind, texts)
    wrong = parsed.wrong
    _check_wrong(file, kind, wrong, line_of_row, len(texts))
    is_good = np.ones(len(texts), bool)
    is_good[list(wrong)] = False
    good, size = pa.array(is_good), int(is_good.sum())
    entries = parsed.entries.take(is_good[parsed.entries.row])
    entries = replace(entries, row=(np.cumsum(is_good) - 1)[entries.row])
    key = entries.field if kind == "libffm" else entries.index
    order = np.argsort(key, kind="stable")
    cells: dict[str, Cells] = {}
    flaws: list[Flaw] = []
    for name in columns:
        if name == LABEL:
            cells[name] = _texts(parsed.labels.filter(good))
        elif name == QUERY:
            cells[name] = _texts(parsed.queries.filter(good))
        elif name == FEATURES:
            cells[name], found = _ids(name, entries, entries, size, is_list=True)
            flaws += found
        else:
            start_end = np.searchsorted(key[order], [int(name), int(name) + 1])
            part = entries.take(np.sort(order[slice(*start_end)]))
            if kind == "libsvm":
                cells[name] = _NumberCells(_values(part, size, 0.0))
                flaws.append(_repeated(name, part, size, TWICE))
            else:
                cells[name], found = _ids(name, part, entries, size, is_list=name in lists)
                flaws += [flaw for flaw in found if name not in numbers or flaw.reason != NOT_AN_ID]
    refused = [
        BadRow(row=-1, line=int(line_of_row[row]), column="", text=str(texts[row]), reason=reason)
        for row, reason in sorted(wrong.items())
    ]
    return FileRows(
        file=file.label,
        start=start,
        size=size,
        cells=cells,
        lines=line_of_row[is_good].tolist,
        refused=refused,
        skipped=sorted(wrong),
        flaws=flaws,
    )


@dataclass(frozen=True, slots=True)
class _Parsed:
    """All lines: labels [R], queries [R], features [E], and why some lines are malformed, by row."""

    labels: pa.Array
    queries: pa.Array
    entries: _Entries
    wrong: dict[int, str]


def _parse(kind: str, texts: pa.Array) -> _Parsed:
    tokens = pc.ascii_split_whitespace(texts)
    lengths = numpy_of([tokens.value_lengths().cast(pa.int64())], np.int64, 0)
    flat, first = tokens.flatten(), np.cumsum(lengths) - lengths
    row_of_token = np.repeat(np.arange(len(texts)), lengths)
    labels = flat.take(pa.array(first))
    is_feature = np.ones(len(flat), bool)
    is_feature[first] = False
    queries: list[str | None] = [None] * len(texts)
    if kind == "libsvm":
        seconds = first[lengths > 1] + 1
        second_tokens = flat.take(pa.array(seconds)).to_pylist()
        for place, token in zip(seconds.tolist(), second_tokens, strict=True):
            if token.startswith("qid:"):
                is_feature[place] = False
                queries[row_of_token[place]] = token[4:]
    entries, wrong = _features(kind, flat.filter(pa.array(is_feature)), row_of_token[is_feature])
    for row, (label, query) in enumerate(zip(labels.to_pylist(), queries, strict=True)):
        if not np.isfinite(number_in(label)):
            wrong.setdefault(row, f"the label {label!r} is not a number")
        elif query is not None and not query.isdigit():
            wrong.setdefault(row, f"qid:{query} is not a whole number")
    return _Parsed(labels, pa.array(queries, pa.string()), entries, wrong)


def _lines(file: File) -> tuple[pa.Array, Codes]:
    """The lines with something in them, without their comments, and the number of each from 1."""
    content = file.content().removeprefix(b"\xef\xbb\xbf")
    lines = pa.array(content.splitlines(), pa.large_binary())
    try:
        texts = lines.cast(pa.large_string())
    except pa.ArrowInvalid:  # not UTF-8: in a comment, or malformed
        decoded = [line.decode("utf-8", "backslashreplace") for line in lines.to_pylist()]
        texts = pa.array(decoded, pa.large_string())
    if b"#" in content:
        texts = pc.replace_substring_regex(texts, "#.*", "")
    texts = pc.ascii_trim_whitespace(texts)
    rows = [place for place, text in enumerate(pc.binary_length(texts).to_pylist()) if text]
    if not rows:
        raise SpecError(file.label, got="no rows", need="at least one")
    return texts.take(pa.array(rows)), np.array(rows) + 1


def _features(kind: str, features: pa.Array, row: Codes) -> tuple[_Entries, dict[int, str]]:
    """The entries of well-formed features; and of each row with another, the reason."""
    encoded = features.dictionary_encode()  # each distinct one is parsed once
    code = numpy_of([encoded.indices.cast(pa.int64())], np.int64, -1)
    found = pc.extract_regex(encoded.dictionary, _FEATURE[kind])
    value = _floats(found.field("value"))
    is_right = np.isfinite(value) & np.asarray(pc.is_valid(found).to_pylist(), bool)
    index = _integers(found.field("index"))
    field = _integers(found.field("field")) if kind == "libffm" else np.zeros_like(index)
    wrong: dict[int, str] = {}
    form = _FORMS[kind].split()[1]
    for place in np.flatnonzero(~is_right[code]).tolist():
        wrong.setdefault(int(row[place]), f"{features[place].as_py()!r} is not {form}")
    return _Entries(row, field[code], index[code], value[code]), wrong


def _floats(texts: pa.Array) -> Floats:
    try:
        return numpy_of([pc.cast(texts, pa.float64())], np.float64, np.nan)
    except pa.ArrowInvalid:
        return np.array([number_in(text or "") for text in texts.to_pylist()], np.float64)


def _integers(texts: pa.Array) -> Codes:
    # A text without a match is empty in a struct that is null.
    empty = pc.equal(pc.fill_null(texts, ""), "")
    return numpy_of([pc.cast(pc.if_else(empty, "0", texts), pa.int64())], np.int64, 0)


def _check_wrong(
    file: File, kind: str, wrong: dict[int, str], line_of_row: Codes, rows: int
) -> None:
    if 2 * len(wrong) > rows:
        row = min(wrong)
        rest = f" (and {len(wrong) - 1} more such lines of {rows})" if len(wrong) > 1 else ""
        raise SpecError(
            file.label,
            got=f"line {line_of_row[row]}: {wrong[row]}{rest}",
            need=f"lines of {kind}: {_FORMS[kind]}",
            hint="data.libffm reads field:index:value"
            if kind == "libsvm"
            else "data.libsvm reads index:value",
        )


def _texts(texts: pa.Array) -> TextCells:
    return TextCells(pa.chunked_array([texts.dictionary_encode()]))


def _ids(
    name: str, column_entries: _Entries, line_entries: _Entries, size: int, *, is_list: bool
) -> tuple[Cells, list[Flaw]]:
    """The column of the indices in each row, and the rows in which they are no ids."""
    values = _values(column_entries, size, np.nan)
    flaws = [] if is_list else [_repeated(name, column_entries, size, TWO_OF_A_FIELD)]
    # A value of 0 is that of a feature that is not there.
    present = column_entries.take(column_entries.value != 0)
    counts = np.bincount(line_entries.row[line_entries.value != 0], minlength=size)
    # 1/√n: lines are scaled to unit length, as those of Criteo in libsvm's form are.
    scaled = np.abs(present.value * np.sqrt(counts[present.row]) - 1) < _UNIT_TOLERANCE
    no_id = np.zeros(size, bool)
    no_id[present.row[(present.value != 1) & ~scaled]] = True
    flaws.append(Flaw(name, no_id, NOT_AN_ID))
    texts = pc.cast(pa.array(present.index), pa.string())
    if is_list:
        lengths = np.bincount(present.row, minlength=size)
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
        rows = pa.ListArray.from_arrays(offsets, texts)
        joined = pc.binary_join(rows, LIST_END)
        tokens = pc.if_else(
            pa.array(lengths > 0),
            pc.binary_join_element_wise(joined, "", LIST_END),
            pa.scalar(None, pa.string()),
        )
    else:
        places = np.full(size, -1)
        places[present.row] = np.arange(len(present.row))
        tokens = texts.take(pa.array(places, mask=places < 0))
    return _SparseCells(tokens, values), flaws


def _values(entries: _Entries, size: int, absent: float) -> Floats:
    values = np.full(size, absent)
    values[entries.row] = entries.value
    return values


def _repeated(name: str, column_entries: _Entries, size: int, reason: str) -> Flaw:
    return Flaw(name, np.bincount(column_entries.row, minlength=size) > 1, reason)


def _list_text(token: str) -> str:
    return "|".join(items_in(token, LIST_END))
