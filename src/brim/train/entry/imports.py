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
import os
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from brim.tensors.chance import seed_everything
from brim.train.entry import join
from brim.user_code.own_code import parse

_is_script = False


def be_script(command: Sequence[str], seed: int) -> None:
    """Begin as `python script.py arguments…` does.

    Set the arguments, the import path, and chance seeded for the job.

    A fork of a process that was there already goes on from where that one stands.
    """
    global _is_script
    if _is_script:
        return
    _is_script = True
    sys.argv = list(command[1:])
    folder = str(Path(command[1]).resolve().parent)
    sys.path[: not os.environ.get("PYTHONSAFEPATH")] = [folder]
    seed_everything(seed)


def import_ahead(command: Sequence[str], seed: int) -> None:
    """Import the leading imports of `python script.py arguments…` in advance."""
    be_script(command, seed)
    with join.nobody_joins(), contextlib.suppress(BaseException):
        for statement in leading_imports(Path(command[1])):
            code = compile(ast.Module([statement], []), command[1], "exec", dont_inherit=True)
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
