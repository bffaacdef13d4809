"""The code of a job: its file and the modules that this imports from its own folder.

It is found without running anything, so only what imports by name is seen. Of a package all
modules are taken, since those may import each other in other ways.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from brim.domain.job import JobSpec
from brim.domain.quantities import format_bytes
from brim.errors import SpecError

# Python 3.11 counts how deep it is in a tree for all threads together, and may call a sound file
# broken (SystemError: AST constructor recursion depth mismatch) while another one is read.
_PARSING = threading.Lock()
_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, ".py")  # the order in which Python looks
COMPILED = "__pycache__"  # what Python makes beside the code, and is no part of it
_LONGEST_PATH = 250  # characters of a literal that may name a file
_MOST_NAMED = 5  # files that one sentence names


@dataclass(frozen=True, slots=True)
class CodeFile:
    """The file that a job runs.

    Args:
        path: of the file, links resolved; its modules are in its folder.
        name: that the code is run by.
    """

    path: Path
    name: str

    @property
    def folder(self) -> Path:
        """The folder of the code."""
        return self.path.parent

    def place(self, name: str) -> Path:
        """Return the path of a file of the code."""
        return self.path if name == self.name else self.folder / name


def source_of(spec: JobSpec, directory: Path | None = None) -> CodeFile | None:
    """Return the file that a job runs: its training file, or the script of its command.

    Args:
        directory: where relative paths begin; None: where the spec says.

    Returns:
        None for a command that names no Python file.
    """
    word = word_of(spec)
    if not word:
        return None
    return CodeFile(Path(directory or spec.directory, word).resolve(), Path(word).name)


def word_of(spec: JobSpec) -> str:
    """Return the word of a spec that names its code; empty where there is none."""
    return spec.file or next((word for word in spec.command if word.endswith(".py")), "")


def in_folder(spec: JobSpec, folder: Path) -> JobSpec:
    """Return the spec of a job whose code was put into another folder."""
    word = word_of(spec)
    if not word:
        return spec
    there = str(folder / Path(word).name)
    if spec.file:
        return replace(spec, file=there)
    at = spec.command.index(word)
    return replace(spec, command=(*spec.command[:at], there, *spec.command[at + 1 :]))


@dataclass(slots=True)
class Code:
    """The files of a job's code.

    Args:
        source: the file that it runs.
        files: their contents, by names relative to the folder; of code that is too large not all.
        sizes: bytes of all of them.
        elsewhere: modules that they import from folders of this host that are no installation.
    """

    source: CodeFile
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    _trees: dict[str, ast.Module] = field(default_factory=dict)

    def not_taken(self, spec: JobSpec) -> list[str]:
        """Say what the code visibly refers to and is no part of it, in sentences."""
        said = []
        for module, place in sorted(self.elsewhere.items()):
            said.append(
                f"not sent with the code: module {module}, from {place}: install it on each host"
            )
        named = list(self._named_files(spec))
        if named:
            more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            said.append(
                f"not sent with the code: {', '.join(named[:_MOST_NAMED])}{more}: each host that "
                "runs it needs them at this path; or name data by URL, and small files by --include"
            )
        using = sorted(name for name, tree in self._trees.items() if _uses_file(tree))
        if using:
            said.append(
                f"{', '.join(using)} uses __file__: that is the place of the code that was sent, "
                "with nothing beside it but what --include names"
            )
        return said

    def _named_files(self, spec: JobSpec) -> Iterator[str]:
        """The files and folders beside the code that a literal of it, or an option, names."""
        folder, seen = self.source.folder, set[Path]()
        options = [*spec.parameters.values(), *spec.command[1:]]
        literals = (text for tree in self._trees.values() for text in _literals(tree))
        for text in [*options, *literals]:
            for above in (Path(spec.directory or "."), folder):
                path = above / text
                if not _may_name_file(text) or not _is_there(path, text):
                    continue
                if path.resolve() in seen or self._has(path):
                    break
                seen.add(path.resolve())
                size = f" ({format_bytes(path.stat().st_size)})" if path.is_file() else ""
                yield f"{text}{size}"
                break

    def _has(self, path: Path) -> bool:
        try:
            return path.resolve().relative_to(self.source.folder).as_posix() in self.files
        except ValueError:
            return False


def collect(source: CodeFile, include: Sequence[str] = (), *, most: int) -> Code:
    """Find the code of a job.

    Args:
        include: globs of files of its folder that are taken as well.
        most: bytes that are read of it; what does not fit is only measured.

    Raises:
        OSError: a file of it cannot be read.
        SpecError: a glob leads out of the folder, or to no file.
    """
    code, left = Code(source), most
    waiting = [source.name, *_included(source, include)]
    while waiting:
        name = waiting.pop()
        if name in code.sizes:
            continue
        code.sizes[name] = size = source.place(name).stat().st_size
        if size > left:
            continue
        left -= size
        code.files[name] = source.place(name).read_bytes()
        if not name.endswith(".py"):
            continue
        try:
            with _PARSING:
                tree = code._trees[name] = ast.parse(code.files[name])
        except (SyntaxError, ValueError):
            continue  # who runs it says what is wrong
        for module in _imported(tree, name):
            found = _find(source.folder, module)
            waiting += found
            if not found and (place := _elsewhere(module, source.folder)):
                code.elsewhere[module.partition(".")[0]] = place
    return code


def _included(source: CodeFile, globs: Iterable[str]) -> Iterator[str]:
    for glob in globs:
        pattern = PurePosixPath(glob)
        if pattern.is_absolute() or ".." in pattern.parts or not glob:
            raise SpecError(
                "--include",
                got=repr(glob),
                need=f"a glob of files below {source.folder}",
                hint="--include 'configs/*.yaml'",
            )
        found = sorted(
            path
            for path in source.folder.glob(glob)
            if path.is_file() and COMPILED not in path.relative_to(source.folder).parts
        )
        if not found:
            raise SpecError(
                "--include",
                got=f"{glob!r}, which names no file",
                need=f"a glob of files below {source.folder}",
                hint=f"ls {source.folder}",
            )
        yield from (path.relative_to(source.folder).as_posix() for path in found)


def _imported(tree: ast.Module, name: str) -> Iterator[str]:
    """The modules that a file may import, by their full names."""
    package = list(PurePosixPath(name).parent.parts)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=module, level=level):
                above = package[: len(package) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                if base:
                    yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(module)), *_],
            ) if called in ("import_module", "__import__") and not module.startswith("."):
                yield module


def _find(folder: Path, module: str) -> list[str]:
    """The files of a folder that the import of a module may run."""
    place = folder
    for part in module.split("."):
        if (place / part / "__init__.py").is_file():
            return _all_of(place / part, folder)
        for suffix in _SUFFIXES:
            file = place / f"{part}{suffix}"
            if file.is_file():
                return [file.relative_to(folder).as_posix()]
        place /= part
        if not part.isidentifier() or not place.is_dir():
            return []
    return []


def _all_of(package: Path, folder: Path) -> list[str]:
    """All modules of a package, by names relative to the folder."""
    found = []
    for above, folders, names in os.walk(package):
        folders[:] = [name for name in folders if not name.startswith(".") and name != COMPILED]
        found += [
            Path(above, name).relative_to(folder).as_posix()
            for name in names
            if name.endswith(_SUFFIXES)
        ]
    return found


def _elsewhere(module: str, folder: Path) -> str:
    """The place of a module that is on this host's path and not installed; or empty."""
    top = module.partition(".")[0]
    if not top.isidentifier() or top in sys.stdlib_module_names or top == "brim":
        return ""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or not origin.is_file():
        return ""
    installed = [
        Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")
    ]
    if any(origin.is_relative_to(each) for each in (*installed, folder)):
        return ""
    if "site-packages" in origin.parts or "dist-packages" in origin.parts:
        return ""
    return str(origin.parent)


def _literals(tree: ast.Module) -> Iterator[str]:
    """The texts of a file that are no docstrings."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documents
        ):
            yield node.value


def _may_name_file(text: str) -> bool:
    return 1 < len(text) <= _LONGEST_PATH and text.isprintable() and "://" not in text


def _is_there(path: Path, text: str) -> bool:
    """Return whether a text names a file, or a folder so clearly that it is no other word."""
    try:
        return path.is_file() or ("/" in text.strip(".") and text != "/" and path.is_dir())
    except OSError:
        return False


def _uses_file(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree))
