"""Makes timeouts.md, the constants of the code that bound a wait, from their comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_name("timeouts.md")
SOURCE = Path(__file__).resolve().parents[2] / "src" / "brim"
_HEAD = """# Timeouts

The constants that bound a wait, or say how often something is looked at, generated from the code by
`python docs/reference/make_timeouts.py`. What a user may choose is an option: `brim train --help` and
[command-line.md](command-line.md) have those.
"""
_DURATION = re.compile(r"\b(?:milli)?seconds?\b(?<!\ba second)", re.IGNORECASE)


class Timeout(NamedTuple):
    """A constant that is a duration.

    Attributes:
        module: below `src/brim`.
        value: as the code writes it, in seconds unless the comment says otherwise.
        about: its comment; empty where its name says all.
    """

    module: str
    name: str
    value: str
    about: str


def timeouts() -> Iterator[Timeout]:
    """Yield the durations of all modules."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        yield from durations(path.read_text(encoding="utf-8"), module=module)


def durations(code: str, *, module: str = "") -> Iterator[Timeout]:
    """Yield the constants of a module that are durations.

    A duration is a `timedelta`, a number whose comment, beside or above it, speaks of seconds, or a
    bare float: in brim those are seconds. A comment that begins with "and" continues the one before.
    """
    lines = code.splitlines()
    continues = False  # the constant before was a duration
    for node in ast.parse(code).body:
        if not isinstance(node, ast.Assign):
            continues = False
            continue
        about = _comment(lines, node.lineno, node.end_lineno or node.lineno)
        constants = [pair for pair in _pairs(node) if pair[0].isupper() and _is_number(pair[1])]
        speaks = bool(_DURATION.search(about))
        continues = continues and about.startswith("and ")
        found = [
            Timeout(module, name, ast.unparse(value), about)
            for name, value in constants
            if speaks or _is_timedelta(value) or (_is_float(value) and (continues or not about))
        ]
        continues = bool(found)
        yield from found


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of an assignment, each with its value."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            for target, value in zip(names, values, strict=False):
                if isinstance(target, ast.Name):
                    yield target.id, value


def _is_timedelta(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith("timedelta")


def _is_number(value: ast.expr) -> bool:
    """Return whether this is a figure, figures, or a sum of named ones."""
    parts = list(ast.walk(value))
    figures = [part for part in parts if isinstance(part, ast.Constant)]
    return _is_timedelta(value) or (
        all(type(figure.value) in (int, float) for figure in figures)
        and not any(isinstance(part, ast.Call) for part in parts)
        and (bool(figures) or isinstance(value, ast.BinOp))
    )


def _is_float(value: ast.expr) -> bool:
    return not isinstance(value, ast.Tuple) and any(
        isinstance(part, ast.Constant) and type(part.value) is float for part in ast.walk(value)
    )


def _comment(lines: list[str], first: int, last: int) -> str:
    """The comments within a statement, or those above it where it has none."""
    within = [line.partition("  # ")[2] for line in lines[first - 1 : last] if "  # " in line]
    if within:
        return " ".join(within)
    above: list[str] = []
    for line in reversed(lines[: first - 1]):
        if not line.startswith("# "):
            break
        above.insert(0, line.removeprefix("# "))
    return " ".join(above)


def render() -> str:
    """The whole page."""
    rows = [
        f"| {each.module} | `{each.name}` | {each.value} | {each.about} |" for each in timeouts()
    ]
    return (
        "\n".join(
            [_HEAD, "| module | constant | value | what it bounds |", "|---|---|---|---|", *rows]
        )
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
