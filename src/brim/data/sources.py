"""Files as a source of rows: which they are, and how they are read.

The columns are named when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from brim.data.files import File, Paths, resolve
from brim.data.sparse import FEATURES, LABEL, QUERY, check_names, read_sparse
from brim.data.tables import FileRows
from brim.data.text import check_text, read_text
from brim.data.typed import RowGroup, arrow_groups, parquet_groups
from brim.errors import SpecError

NULL = ("", "NA", "NaN", "nan", "null", "NULL")
_ARROW, _PARQUET = (".arrow", ".feather", ".ipc"), (".parquet", ".pq")
Groups = Callable[..., list[RowGroup]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Some files and how to read them.

    Args:
        path: as the user gave it; it is looked for when rows are wanted.
        typed: reads files that know their types; None for delimited text.
        names: of text: the columns' names where the files have no header line.
        delimiter: of text: between fields; None means a tab for .tsv files and a comma for others.
        null: of text: texts that mean an empty cell.
        sparse: `libsvm` or `libffm`, where lines name the features that they have.
        is_complete: whether each feature that is asked for has to occur.
        in_memory: whether all rows are to be held; else row groups are read as they are needed.
    """

    path: Paths
    typed: Groups | None = None
    names: tuple[str, ...] | None = None
    delimiter: str | None = None
    null: tuple[str, ...] = NULL
    sparse: str | None = None
    is_complete: bool = True
    in_memory: bool = True

    def with_files(self, path: Paths) -> Source:
        """Other files, read as these are, or as their suffix says."""
        paths = shown_paths(path)
        if self.sparse is not None and not all(name.endswith(_ARROW + _PARQUET) for name in paths):
            return replace(self, path=path, is_complete=False)
        if all(name.endswith(_ARROW) for name in paths):
            return replace(self, path=path, typed=arrow_groups)
        if all(name.endswith(_PARQUET) for name in paths):
            return replace(self, path=path, typed=parquet_groups)
        text = any(
            ending in name.rpartition("/")[2]
            for name in paths
            for ending in (".csv", ".tsv", ".txt")
        )
        return replace(self, path=path, typed=None if text else self.typed)

    @property
    def path_label(self) -> list[str]:
        """The path as the user gave it."""
        return shown_paths(self.path)

    @property
    def identity(self) -> tuple[object, ...]:
        """Changes when a file does, or how it is read."""
        return (
            *(file.identity for file in self._files()),
            self.typed,
            self.names,
            self.delimiter,
            self.null,
            self.sparse,
        )

    def groups(
        self, columns: Sequence[str], numbers: Mapping[str, str], lists: Collection[str] = ()
    ) -> list[RowGroup]:
        """The row groups of typed files.

        `numbers` are the columns that must hold some, with the replacement where one holds text;
        `lists` those that may hold lists.
        """
        assert self.typed is not None, "text has no groups"
        return self.typed(self._files(), columns=columns, numbers=numbers, lists=lists)

    def read(
        self, columns: Sequence[str], numbers: Mapping[str, str] = {}, lists: Collection[str] = ()
    ) -> Iterator[FileRows]:
        """All rows, part by part in order; see `groups`.

        Raises:
            SpecError: a file or column is missing or not as described, or there are no rows.
        """
        if self.typed is not None:
            yield from (group.read() for group in self.groups(columns, numbers, lists))
            return
        if self.sparse is not None:
            yield from self._read_sparse(self.sparse, columns, numbers, lists)
            return
        start = 0
        for file in self._files():
            part = read_text(
                file,
                columns=columns,
                names=self.names,
                delimiter=self._delimiter(file),
                null=self.null,
                start=start,
            )
            start += part.size
            yield part

    def _read_sparse(
        self, kind: str, columns: Sequence[str], numbers: Collection[str], lists: Collection[str]
    ) -> Iterator[FileRows]:
        start, absent = 0, set(columns) - {LABEL, QUERY, FEATURES}
        for file in self._files():
            part = read_sparse(
                file, kind, columns=columns, numbers=numbers, lists=lists, start=start
            )
            start += part.size
            absent -= {
                name for name in absent if part.column(name).numbers[~part.column(name).empty].any()
            }
            yield part
        if absent and self.is_complete:
            noun = "feature" if kind == "libsvm" else "field"
            raise SpecError(
                f"column {min(absent, key=int)!r}",
                got=f"a {noun} that no line of {', '.join(self.path_label)} has",
                need="one that occurs",
                hint="some files count from 0, others from 1",
            )

    def check(self, columns: Sequence[str]) -> None:
        """Raises SpecError where a file lacks one of these columns, which may hold lists."""
        if self.typed is not None:
            self.groups(columns, {}, columns)
            return
        for file in self._files():
            if self.sparse is not None:
                check_names(file, self.sparse, columns)
                continue
            check_text(file, columns=columns, names=self.names, delimiter=self._delimiter(file))

    def _files(self) -> list[File]:
        return resolve(self.path)

    def _delimiter(self, file: File) -> str:
        return self.delimiter or ("\t" if ".tsv" in file.path.rpartition("/")[2] else ",")


def shown_paths(path: Paths) -> list[str]:
    """Return a user's paths as a list of texts."""
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    return [os.fspath(path_given) for path_given in paths]
