"""Looks at a training file before anything starts, without running it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import shlex
from pathlib import Path

from brim.errors import SpecError, did_you_mean
from brim.host.untrusted import read_regular
from brim.storage.files import nearby
from brim.user_code.own_code import module_files, module_in, parse, word_after

# function -> (how it is called, its parameters, required?)
_FUNCTIONS = {
    "model": ("model()", 0, True),
    "dataset": ("dataset(split)", 1, True),
    "loss": ("loss(output, target)", 2, True),
    "optimizer": ("optimizer(model)", 1, True),
    "metrics": ("metrics()", 0, False),
    "datamodule": ("datamodule()", 0, False),
}
_OF_A_LIGHTNING_MODULE = frozenset({"dataset", "loss", "optimizer"})  # which it may have itself
_MAX_FILE_BYTES = 64 << 20  # bytes of a training file
_EXAMPLE = "a whole file is shown by: brim train --help"
# Of files that are named by mistake, as the data is: a line of numbers is valid Python.
_NO_PYTHON = frozenset(
    (".arrow", ".csv", ".gz", ".json", ".jsonl", ".md", ".parquet", ".tsv", ".yaml", ".yml", ".zip")
)


def check_training_file(path: Path, verb: str = "run") -> None:
    """Check that `path` is a Python file with the functions that a training file has.

    Args:
        verb: by which it could be run as a script, for hints.

    Raises:
        SpecError: it is missing, is no Python, or lacks a function or takes other parameters.
    """
    tree = _parse(path)
    bound = _bound_names(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    has_functions = any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        for node in ast.walk(tree)
    )
    optional = _OF_A_LIGHTNING_MODULE if _is_for_lightning(tree, bound) else frozenset()
    for name, (call, arity, required) in _FUNCTIONS.items():
        if name in functions:
            _check_arity(path, functions[name], call, arity)
        elif required and name not in bound | optional and not has_functions:
            raise SpecError(
                str(path),
                got=f"no function {name!r}",
                need=f"a function {call}",
                hint=_missing_hint(name, path, tree, bound, verb),
            )


def check_command(command: tuple[str, ...]) -> None:
    """Check that the program of a command exists, and its Python file where it names one.

    Raises:
        SpecError: it does not.
    """
    import shutil

    if not command:
        raise SpecError(
            "COMMAND", got="nothing", need="a command after --", hint="brim run -- python loop.py"
        )
    if shutil.which(command[0]) is None:
        if command[0].endswith(".py"):
            _parse(Path(command[0]))
        raise SpecError(
            "COMMAND",
            got=repr(command[0]),
            need="a program that can be run",
            hint=_program_hint(command[0]),
        )
    _check_module(command)
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    if "python" in Path(command[0]).name and script.endswith(".py") and "-m" not in command:
        _parse(Path(script))


def _program_hint(program: str) -> str:
    if program.endswith(".py"):
        with contextlib.suppress(SpecError):
            check_training_file(Path(program))
            return f"for a training file: brim train {program}"
        return f"-- python {program}"
    if "/" in program and Path(program).is_file():
        return f"chmod +x {shlex.quote(program)}, if it is to be run"
    return "is it installed?"


def _check_module(command: tuple[str, ...]) -> None:
    """Raises SpecError where `python -m` names a module that a package of this directory lacks."""
    name, candidates = word_after("-m", command), module_files(command)
    package, _, last = name.replace(".", "/").rpartition("/")
    top = Path(name.partition(".")[0])
    if not candidates or module_in(command, Path()) or not (top / "__init__.py").is_file():
        return
    files = sorted(Path(package).glob("[!_]*.py")) if package else []
    siblings = [file.stem for file in files]
    hint = did_you_mean(last, siblings) or f"-- python -m {top}.MODULE"
    main, file = candidates
    need = f"a file {file} or {main}" if package else f"a file {main}"
    raise SpecError("COMMAND", got=f"python -m {name}", need=need, hint=hint)


def _parse(path: Path) -> ast.Module:
    need = "a Python file"
    if path.is_dir():
        siblings = sorted(child.name for child in path.glob("*.py"))
        hint = f"brim train {path / siblings[0]}" if siblings else "name the file itself"
        raise SpecError(str(path), got="a directory", need=need, hint=hint)
    if path.suffix.lower() in _NO_PYTHON and path.exists():
        raise SpecError(str(path), got=f"a {path.suffix} file", need=need, hint=_EXAMPLE)
    try:
        return parse(read_regular(Path(os.path.realpath(path)), at_most=_MAX_FILE_BYTES), str(path))
    except FileNotFoundError:
        raise SpecError(
            str(path), got="no such file", need=need, hint=nearby(path, (".py",))
        ) from None
    except OSError as error:
        raise SpecError(
            str(path),
            got=f"a file that cannot be read ({error.strerror})",
            need=need,
            hint="check its permissions",
        ) from None
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise SpecError(
            f"{path}:{error.lineno or 1}",
            got=f"{error.msg}" + (f" in {line!r}" if line else ""),
            need="valid Python",
            hint=f"python -m py_compile {path} shows the place",
        ) from None
    except ValueError as error:
        raise SpecError(
            str(path), got=f"a file that is not text ({error})", need=need, hint="name the .py file"
        ) from None


def _bound_names(tree: ast.Module) -> set[str]:
    """Names that the file's top level binds, also under `if` and `try`."""
    names: set[str] = set()
    open_nodes: list[ast.stmt] = list(tree.body)
    while open_nodes:
        node = open_nodes.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                open_nodes += [
                    child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
                ]
                if isinstance(node, ast.Try):
                    open_nodes += [inner for handler in node.handlers for inner in handler.body]
            case _:
                pass
    return names


def _is_for_lightning(tree: ast.Module, bound: set[str]) -> bool:
    """Return whether a file looks as if its `model()` gave a LightningModule.

    Only running it tells.
    """
    if bound & {"loss", "optimizer"}:
        return False
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    return "datamodule" in bound or not imported.isdisjoint({"lightning", "pytorch_lightning"})


def _check_arity(path: Path, function: ast.FunctionDef, call: str, arity: int) -> None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    try:
        signature = ast.unparse(arguments)
    except RecursionError:
        signature = "…"
    minimum = len(positional) - len(arguments.defaults)
    maximum = len(positional) if arguments.vararg is None else arity
    keyword_only = sum(default is None for default in arguments.kw_defaults)
    if minimum <= arity <= max(maximum, minimum) and maximum >= arity and not keyword_only:
        return
    raise SpecError(
        f"{path}:{function.lineno}",
        got=f"{function.name}({signature})",
        need=f"a function that can be called as {call}",
        hint=f"def {call}:",
    )


def _instead_of(found: str, name: str, tree: ast.Module) -> str:
    """Suggest a name where a file has one that is nearly the needed one."""
    is_class = any(isinstance(node, ast.ClassDef) and node.name == found for node in tree.body)
    if is_class and found.lower() == name:
        return (
            f"the file has a class {found}; brim needs a function: def {name}(): return {found}()"
        )
    return f"rename {found!r} to {name!r}?"


def _missing_hint(name: str, path: Path, tree: ast.Module, bound: set[str], verb: str) -> str:
    close = difflib.get_close_matches(name, bound - set(_FUNCTIONS), n=1, cutoff=0.7)
    if close:
        return _instead_of(close[0], name, tree)
    if any(
        isinstance(node, ast.Attribute)
        and node.attr == "join"
        and isinstance(node.value, ast.Name)
        and node.value.id == "brim"
        for node in ast.walk(tree)
    ):
        return f"this file has its own loop: brim {verb} -- python {path}"
    if tree.body and bound.isdisjoint(_FUNCTIONS):
        return f"for a script: brim {verb} -- python {path}; {_EXAMPLE}"
    return _EXAMPLE
