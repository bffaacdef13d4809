"""The code of a job: its file and the modules that this imports from its own folder.

It is found without running anything, so only what imports by name is seen. Of a package all
modules are taken, since those may import each other in other ways.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from brim.domain.job import JobSpec
from brim.domain.quantities import format_bytes
from brim.domain.submission import check_glob, parts_of
from brim.errors import SpecError
from brim.host.untrusted import read_regular

# Python 3.11 counts how deep it is in a tree for all threads together, and may call a sound file
# broken (SystemError: AST constructor recursion depth mismatch) while another one is read.
_PARSING = threading.Lock()
_WITH_A_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})  # options of Python
SAFE_PATH = "-P"  # option of Python: no modules are taken from the directory in which it starts
_PROGRAM = re.compile("-[bBdEiIOPqsSuvx]*([cm])")  # options of Python that end with its program
_ALONE = re.compile("-[bBdEiIOPqsSuvx]*[EI]")  # options by which Python reads no PYTHONPATH
_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, ".py")  # the order in which Python looks
COMPILED = "__pycache__"  # what Python makes beside the code, and is no part of it
_LONGEST_PATH = 250  # characters of a literal that may name a file
_MOST_NAMED = 5  # files that one sentence names
_MOST_LOOKED_AT = 100_000  # names in folders that are looked at for the code of one job
_LARGEST_PARSED = 1 << 20  # bytes of a file that may import something: what is larger is data


@dataclass(frozen=True, slots=True)
class CodeFile:
    """The file that a job runs.

    Args:
        path: of the file, links resolved; its modules are in its folder.
        name: that the code is run by; of a module in a package, its path from the folder of that.
    """

    path: Path
    name: str

    @property
    def folder(self) -> Path:
        """The folder of the code."""
        return self.path.parents[self.name.count("/")]

    def place(self, name: str) -> Path:
        """Return the path of a file of the code."""
        return self.path if name == self.name else self.folder / name


def source_of(spec: JobSpec, directory: Path | None = None) -> CodeFile | None:
    """Return the file that a job runs: its training file, or the script or module of its command.

    Args:
        directory: where relative paths begin; None: where the spec says.

    Returns:
        None for a command that names no Python file, and no module of this directory.
    """
    base = Path(directory or spec.directory)
    return _file(base, spec.file) if spec.file else source_in(spec.command, base)


def source_in(command: Sequence[str], directory: Path) -> CodeFile | None:
    """Return the file that a command runs from a directory; None where it names none of there."""
    module = module_in(command, directory)
    if module:
        return CodeFile(Path(os.path.realpath(directory), module), module)
    word = script_in(command)
    return _file(directory, word) if word else None


def _file(directory: Path, word: str) -> CodeFile:
    # Unlike `Path.resolve`, this takes a link to itself: whoever opens that hears what is wrong.
    return CodeFile(Path(os.path.realpath(directory / word)), Path(word).name)


def word_of(spec: JobSpec) -> str:
    """Return the word of a spec that names its code; empty where there is none."""
    return spec.file or script_in(spec.command)


def script_in(command: Sequence[str]) -> str:
    """Return the word of a command that names a Python file; empty where there is none.

    A text of code is none, however it ends.

    >>> script_in(("python", "-u", "loop.py")), script_in(("sh", "-c", "cd jobs && python loop.py"))
    ('loop.py', '')
    """
    words = pairwise(("", *command))
    return next((word for option, word in words if word.endswith(".py") and option != "-c"), "")


def module_in(command: Sequence[str], folder: Path) -> str:
    """Return the file in a folder that `python -m MODULE` runs; empty where there is none.

    A package comes before a module of its name, and that before a folder that is no package.
    """
    files = module_files(command)
    if files and not Path(folder, files[0]).with_name("__init__.py").is_file():
        files = files[::-1]
    return next((name for name in files if Path(folder, name).is_file()), "")


def module_files(command: Sequence[str]) -> tuple[str, ...]:
    """Return the files of which `python -m MODULE` runs one; none for other commands.

    None as well where Python would not find a copy of them in another folder.

    >>> module_files(("python", "-u", "-m", "flights.train", "--rate", "1"))
    ('flights/train/__main__.py', 'flights/train.py')
    >>> module_files(("python", "-E", "-m", "flights.train"))
    ()
    """
    module = word_after("-m", command)
    options = command[1 : command.index(module)] if module else ()
    parts = module.split(".")
    if any(map(_ALONE.match, options)) or not all(map(_may_be_named, parts)):
        return ()
    path = "/".join(parts)
    return f"{path}/__main__.py", f"{path}.py"


def word_after(option: str, command: Sequence[str]) -> str:
    """Return the word after an option of Python; empty for other programs, and without the option.

    What stands behind a script or a module is theirs.

    >>> word_after("-m", ("python3", "-um", "flights")), word_after("-m", ("python", "a.py", "-m", "b"))
    ('flights', '')
    """
    if not command or "python" not in Path(command[0]).name:
        return ""
    words = iter(command[1:])
    for word in words:
        program = _PROGRAM.fullmatch(word)
        if program or not word.startswith("-"):
            return next(words, "") if program and program[1] == option[1:] else ""
        if word in _WITH_A_VALUE:
            next(words, "")
    return ""


def code_folder(spec: JobSpec) -> Path:
    """Return the folder that the modules of a job are imported from, where it runs.

    That is the directory in which it works; of a bundle its own, since there they may have changed.
    """
    if not spec.bundle:
        return Path.cwd()
    first = Path(spec.env.get("PYTHONPATH", "").partition(os.pathsep)[0])
    if not spec.file and module_in(spec.command, first):
        return first
    return Path(word_of(spec)).parent


def is_in(files: Container[str], spec: JobSpec) -> bool:
    """Return whether the file that a job runs is one of these files of its code."""
    names = () if spec.file else module_files(spec.command)
    return any(name in files for name in (*names, Path(word_of(spec)).name))


def in_folder(spec: JobSpec, folder: Path) -> JobSpec:
    """Return the spec of a job whose code was put into another folder."""
    if not spec.file and module_in(spec.command, folder):
        inherited = (os.environ | spec.env).get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (str(folder), inherited)))
        command = (spec.command[0], SAFE_PATH, *spec.command[1:])
        return replace(spec, command=command, env={**spec.env, "PYTHONPATH": path})
    word = word_of(spec)
    if not word:
        return spec
    script = str(folder / Path(word).name)
    if spec.file:
        return replace(spec, file=script)
    index = spec.command.index(word)
    return replace(spec, command=(*spec.command[:index], script, *spec.command[index + 1 :]))


def parse(source: bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the tree of a Python file.

    Raises:
        SyntaxError: it is none, or is nested too deeply for the parser.
        ValueError: it is no text.
    """
    try:
        with _PARSING:
            return ast.parse(source, filename)
    except (RecursionError, MemoryError, SystemError) as error:
        raise SyntaxError("it is nested too deeply", (filename, 1, 0, "")) from error


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
        """Say which visible references of the code are no part of it, in sentences."""
        sentences = []
        for module, place in sorted(self.elsewhere.items()):
            sentences.append(
                f"not sent with the code: module {module}, from {place}: install it on each host"
            )
        named = list(self._named_files(spec))
        if named:
            rest = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            sentences.append(
                f"not sent with the code: {', '.join(named[:_MOST_NAMED])}{rest}: put a copy at the "
                "same path on each host that runs the job, name data by URL, or send small files "
                "beside the code with --include NAME"
            )
        using = sorted(name for name, tree in self._trees.items() if _uses_file(tree))
        if using:
            sentences.append(
                f"{', '.join(using)} uses __file__: that is the place of the code that was sent, "
                "with nothing beside it but what --include names"
            )
        return sentences

    def parts_of_brim(self) -> dict[str, str]:
        """Map each name of brim that the code visibly uses, such as `join`, to a file that does."""
        return {part: file for file, tree in self._trees.items() for part in parts_of_brim(tree)}

    def variables(self) -> dict[str, str]:
        """Map each variable of the environment that the code visibly reads to the file that does."""
        return {name: file for file, tree in self._trees.items() for name in _variables(tree)}

    def _named_files(self, spec: JobSpec) -> Iterator[str]:
        """The files and folders that a literal of the code, or an option, names, by absolute path."""
        folder, seen = self.source.folder, set[Path]()
        options = [*spec.parameters.values(), *spec.command[1:]]
        literals = (text for tree in self._trees.values() for text in _literals(tree))
        for text in [*options, *literals]:
            for base in (Path(spec.directory or "."), folder):
                path = base / text
                if not _may_name_file(text) or not _is_there(path, text):
                    continue
                if path.resolve() in seen or self._includes(path):
                    break
                seen.add(path.resolve())
                size = f" ({format_bytes(path.stat().st_size)})" if path.is_file() else ""
                yield f"{os.path.abspath(path)}{size}"
                break

    def _includes(self, path: Path) -> bool:
        try:
            return path.resolve().relative_to(self.source.folder).as_posix() in self.files
        except ValueError:
            return False


def collect(source: CodeFile, include: Sequence[str] = (), *, limit_bytes: int) -> Code:
    """Find the code of a job.

    Args:
        include: globs of files of its folder that are taken as well.
        limit_bytes: bytes that are read of it; what does not fit is only measured.

    Raises:
        OSError: a file of it cannot be read.
        SpecError: a glob leads out of the folder, or to no file.
    """
    code, remaining = Code(source), limit_bytes
    folder = _Folder(source.folder)
    waiting = [source.name, *_included(folder, include)]
    if "/" in source.name:  # of its package all modules are sent
        waiting += _find(folder, source.name.removesuffix(".py").replace("/", "."))
    while waiting:
        name = waiting.pop()
        if name in code.sizes:
            continue
        path = Path(os.path.realpath(source.place(name)))
        code.sizes[name] = size = path.stat().st_size
        if size > remaining:
            continue
        code.files[name] = content = read_regular(path, at_most=remaining)
        code.sizes[name] = len(content)
        remaining -= len(content)
        if not name.endswith(".py") or len(content) > _LARGEST_PARSED:
            continue
        try:
            tree = code._trees[name] = parse(content)
        except (SyntaxError, ValueError):
            continue  # who runs it says what is wrong
        for module in _imported(tree, name):
            found = _find(folder, module)
            waiting += found
            if not found and (place := _uninstalled_place(module, source.folder)):
                code.elsewhere[module.partition(".")[0]] = place
    return code


class _Folder:
    """The folder of a job's code, of which only so much is looked at.

    Attributes:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lookups_left = _MOST_LOOKED_AT

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """The entries of a folder that is in this one, except Python's compiled files.

        Raises:
            SpecError: more was looked at than code has.
        """
        found = []
        with contextlib.suppress(PermissionError, FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                self._lookups_left -= 1
                if self._lookups_left < 0:
                    raise SpecError(
                        f"the code in {self.path}",
                        got=f"more than {_MOST_LOOKED_AT:,} files in the folders to look through",
                        need="code in a folder of its own",
                        hint="move the file into one, or name fewer folders by --include",
                    )
                if entry.name != COMPILED:
                    found.append(entry)
        return sorted(found, key=lambda entry: entry.name)

    def matching(self, parts: Sequence[str]) -> list[str]:
        """The files that a glob names, by its parts; no link to a folder is followed by `**`."""
        found, seen = set[str](), set[tuple[Path, int]]()
        waiting = [(self.path, list(parts))]
        while waiting:
            folder, (part, *rest) = waiting.pop()
            if (folder, len(rest)) in seen:
                continue
            seen.add((folder, len(rest)))
            if part == "**" and rest:
                waiting.append((folder, rest))
            for entry in self.entries(folder):
                path = folder / entry.name
                if part == "**":
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((path, [part, *rest]))
                elif not fnmatch.fnmatchcase(entry.name, part):
                    continue
                elif rest and path.is_dir():
                    waiting.append((path, rest))
                elif not rest and path.is_file():
                    found.add(path.relative_to(self.path).as_posix())
        return sorted(found)


def _included(folder: _Folder, globs: Iterable[str]) -> Iterator[str]:
    for glob in globs:
        check_glob(glob)
        found = folder.matching(parts_of(glob))
        if not found:
            raise SpecError(
                "--include",
                got=f"{glob!r}, which names no file",
                need=f"a glob of files below {folder.path}",
                hint=f"ls {folder.path}",
            )
        yield from found


def _imported(tree: ast.Module, name: str) -> Iterator[str]:
    """The modules that a file may import, by their full names."""
    package = list(PurePosixPath(name).parent.parts)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=module, level=level):
                prefix = package[: len(package) - level + 1] if level else []
                base = ".".join([*prefix, *([module] if module else [])])
                if base:
                    yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(module)), *_],
            ) if called in ("import_module", "__import__") and not module.startswith("."):
                yield module


def _find(folder: _Folder, module: str) -> list[str]:
    """The files of a folder that the import of a module may run."""
    place = folder.path
    for part in module.split("."):
        if not _may_be_named(part):
            return []
        if (place / part / "__init__.py").is_file():
            return _all_of(place / part, folder)
        for suffix in _SUFFIXES:
            file = place / f"{part}{suffix}"
            if file.is_file():
                return [file.relative_to(folder.path).as_posix()]
        place /= part
        if not part.isidentifier() or not place.is_dir():
            return []
    return []


def _may_be_named(part: str) -> bool:
    """Return whether a part of a module's name, which may be any text, can be that of a file."""
    return part.isprintable() and "/" not in part and 0 < len(os.fsencode(part)) <= _LONGEST_PATH


def _all_of(package: Path, folder: _Folder) -> list[str]:
    """All modules of a package, by names relative to the folder."""
    found, waiting = [], [package]
    while waiting:
        parent = waiting.pop()
        for entry in folder.entries(parent):
            path = parent / entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting += [path] if not entry.name.startswith(".") else []
            elif entry.name.endswith(_SUFFIXES):
                found.append(path.relative_to(folder.path).as_posix())
    return found


def _uninstalled_place(module: str, folder: Path) -> str:
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
    if any(origin.is_relative_to(root) for root in (*installed, folder)):
        return ""
    if "site-packages" in origin.parts or "dist-packages" in origin.parts:
        return ""
    return str(origin.parent)


def parts_of_brim(tree: ast.Module) -> set[str]:
    """Return the names of brim that a file visibly uses, such as `join` of `brim.join(…)`.

    `brim` itself may come by a star, from a module that imports it. Code that binds no such name
    has forgotten to import it, and uses it all the same.

    >>> found = [parts_of_brim(ast.parse(code)) for code in (
    ...     "import brim.data; brim.join(m, o)", "from brim.keras import fit", "','.join(a)",
    ...     "from tools import *; brim.join(m, o)", "brim.join(m, o)", "brim = 1; brim.join()")]
    >>> [sorted(parts) for parts in found]
    [['data', 'join'], ['keras'], [], ['join'], ['join'], []]
    """
    names, found = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported):
                for alias in imported:
                    top, _, part = alias.name.partition(".")
                    if top == "brim" and (not part or alias.asname is None):
                        names.add(alias.asname or top)
                    found |= {part.partition(".")[0]} if top == "brim" else set()
            case ast.ImportFrom(module=str(module), names=imported, level=0):
                top, _, part = module.partition(".")
                parts = {part.partition(".")[0]} if part else {alias.name for alias in imported}
                found |= parts if top == "brim" else set()
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names.add("brim")
    if not _binds(tree, "brim"):
        names.add("brim")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=part) if name in names:
                found.add(part)
    return found - {""}


def _binds(tree: ast.Module, name: str) -> bool:
    """Return whether code gives a name a meaning anywhere."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=found, ctx=ast.Store()) | ast.arg(arg=found):
                pass
            case ast.FunctionDef(name=found) | ast.ClassDef(name=found):
                pass
            case ast.alias(name=full, asname=other):
                found = other or full.partition(".")[0]
            case _:
                continue
        if found == name:
            return True
    return False


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


def _variables(tree: ast.Module) -> set[str]:
    """Name the variables of the environment that a file reads, and does not set itself.

    >>> sorted(_variables(ast.parse("os.environ['A'], getenv('B', ''), environ.get('C'), 'D' in os.environ")))
    ['A', 'B', 'C', 'D']
    >>> _variables(ast.parse("os.environ['A'] = '1'; os.environ['A']; {}.get('B'); os.environ[name]"))
    set()
    """
    read, written = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                value=source, slice=ast.Constant(value=str(name)), ctx=ast.Load()
            ) if _ends_in(source, "environ"):
                read.add(name)
            case ast.Subscript(value=source, slice=ast.Constant(value=str(name))) if _ends_in(
                source, "environ"
            ):
                written.add(name)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if _ends_in(function, "getenv") or _is_method(function, "get"):
                    read.add(name)
                elif _is_method(function, "setdefault"):
                    written.add(name)
            case ast.Compare(
                left=ast.Constant(value=str(name)),
                ops=[ast.In() | ast.NotIn()],
                comparators=[source],
            ) if _ends_in(source, "environ"):
                read.add(name)
    return read - written


def _ends_in(node: ast.expr, name: str) -> bool:
    """Return whether it is `name`, or `something.name`."""
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _is_method(function: ast.expr, name: str) -> bool:
    """Return whether it is `environ.name`, or `os.environ.name`."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == name
        and _ends_in(function.value, "environ")
    )


def _uses_file(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree))
