"""Imports that scripts make first.

The template makes them once, and every worker forked from it has them at once.

Imports at the top of a script are what each worker would begin with anyway. The script itself is
not run, nor is any module that lies beside it: those are the worker's. Errors here recur in the
worker, with its words.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import multiprocessing.process
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from brim.tensors.chance import seed_everything
from brim.train.entry import join
from brim.user_code.own_code import parse
from brim.user_code.python_program import PythonProgram

_is_script = False


def be_script(program: PythonProgram, seed: int) -> None:
    """Begin as `python script.py arguments…`, or `python -m module arguments…`, does.

    Set the arguments, the import path, and chance seeded for the job.

    A fork of a process that was there already goes on from where that one stands.
    """
    global _is_script
    if _is_script:
        return
    _is_script = True
    sys.argv = [program.path, *program.arguments]
    # Processes that the script spawns look for it in the directory in which Python has begun.
    vars(multiprocessing.process)["ORIGINAL_DIR"] = os.getcwd()
    sys.path[: not os.environ.get("PYTHONSAFEPATH")] = [str(program.folder)]
    seed_everything(seed)


def import_ahead(program: PythonProgram, seed: int) -> None:
    """Import the leading imports of a program in advance."""
    be_script(program, seed)
    with join.nobody_joins(), contextlib.suppress(BaseException):
        for statement in leading_imports(Path(program.path)):
            code = compile(ast.Module([statement], []), program.path, "exec", dont_inherit=True)
            exec(code, {"__name__": "__main__"})  # a line of the script, which is run anyway
    # Python seeds this one of its own accord in each fork.
    os.register_at_fork(after_in_child=partial(random.setstate, random.getstate()))


def leading_imports(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[ast.stmt]:
    """The import statements that a file begins with, before any dependent code.

    That is any other statement, and a module beside the script: of that one, its own leading
    imports are the last.

    Raises:
        OSError, SyntaxError, ValueError: it cannot be read.
    """
    for statement in parse(file.read_bytes()).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        else:
            return
        for name in names:
            neighbour = _beside_the_script(name.partition(".")[0])
            if neighbour is not None:
                if neighbour not in seen and neighbour.is_file():
                    yield from leading_imports(neighbour, seen | {neighbour})
                return
        yield statement


def _beside_the_script(name: str) -> Path | None:
    """The file of a module or package that is found in the script's own folder."""
    if name in sys.modules:
        return None
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    places = spec.submodule_search_locations  # of a package, its folders
    for place in [Path(place) for place in places] if places else [Path(spec.origin or "")]:
        if place.parent == Path(sys.path[0]):
            return place / "__init__.py" if places else place
    return None
