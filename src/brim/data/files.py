"""Files that a user's words mean: a path, a URL, a glob, or several of them."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from brim.errors import NO_SUCH_FILE, SpecError, did_you_mean

_MARKS = {  # the longer ones first: one of UTF-32 begins with one of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class File:
    """One file: its file system, its path there, and its name for people."""

    system: Any
    path: str
    label: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Changes when the file does, as far as its file system can tell."""
        info = self.system.info(self.path)
        stamps = (info.get(key) for key in ("size", "mtime", "etag", "ETag", "LastModified"))
        return (self.label, *(str(stamp) for stamp in stamps))

    @property
    def is_local(self) -> bool:
        """Return whether it is a file of this host."""
        return isinstance(self.system, LocalFileSystem)

    def open(self) -> Any:
        """The file as it is, for readers that seek."""
        return self.system.open(self.path, "rb")

    def content(self) -> bytes:
        """All its bytes, unpacked where the suffix says .gz, .zip, .bz2, .xz or .zst.

        Text in UTF-16 or UTF-32, as its mark says, is given in UTF-8.

        Raises:
            SpecError: it cannot be unpacked.
        """
        try:
            # A URL may need more than its path to be opened again, so the open file system is
            # asked.
            with self.system.open(self.path, "rb", compression="infer") as stream:
                data: bytes = stream.read()
            return _in_utf8(data)
        except UnicodeDecodeError as problem:
            raise SpecError(
                self.label,
                got=str(problem),
                need="whole text where a file begins with a mark of UTF-16 or UTF-32",
            ) from problem
        except (ValueError, OSError, EOFError, AssertionError) as problem:
            need = "a file that can be read (a .zip with one file in it)"
            raise SpecError(
                self.label, got=f"{type(problem).__name__}: {problem}", need=need
            ) from problem


def resolve(paths: Paths) -> list[File]:
    """The files meant, each glob's in the order of their names.

    Raises:
        SpecError: a file that is not there, a glob that matches nothing, an unknown kind of URL.
    """
    paths_given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file for path in paths_given for file in _resolve_one(os.fspath(path))]
    if not files:
        raise SpecError(
            "path",
            got="no file",
            need="at least one",
            hint="a path, a URL, a glob, or a list of them",
        )
    return files


def _resolve_one(pattern: str) -> list[File]:
    if not pattern:
        raise SpecError(
            "path", got="an empty string", need="a path, a URL or a glob", hint="--set path=…"
        )
    try:
        system, path = fsspec.core.url_to_fs(os.path.expanduser(pattern))
    except (ValueError, ImportError) as problem:
        need = "a local path, or a URL that fsspec knows"
        raise SpecError(
            pattern, got=str(problem), need=need, hint="install the fsspec package it names"
        ) from problem
    if any(sign in path for sign in "*?["):
        found = sorted(match for match in system.glob(path) if system.isfile(match))
        if found:
            return [File(system, match, match) for match in found]
        raise SpecError(
            pattern, got="no file that matches", need="at least one", hint=_nearby(system, path)
        )
    if not system.exists(path):
        raise SpecError(
            pattern, got=NO_SUCH_FILE, need="a file that exists", hint=_nearby(system, path)
        )
    if system.isdir(path):
        hint = f"{pattern.rstrip('/')}/*.csv"
        raise SpecError(
            pattern, got="a folder", need="a file, a glob or a list of files", hint=hint
        )
    return [File(system, path, pattern)]


def _nearby(system: Any, path: str) -> str:
    folder, slash, name = path.rpartition("/")
    folder = folder or slash  # of "/file" it is the root
    try:
        names = [str(entry).rpartition("/")[2] for entry in system.ls(folder or ".", detail=False)]
    except OSError:
        return f"there is no folder {folder}"
    hint = did_you_mean(name, names) if names else ""
    return (
        hint
        if len(names) <= 20 or hint.startswith("did")
        else f"{folder} has {len(names)} other files"
    )


def _in_utf8(data: bytes) -> bytes:
    """Return text that begins with a mark of a wide encoding in UTF-8, and any other as it is."""
    wide = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    return data.decode(wide).encode() if wide else data
