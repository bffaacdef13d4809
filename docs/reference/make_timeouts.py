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
_DURATION = re.compile(r"\b(?:milli)?seconds?\b")


class Timeout(NamedTuple):
    """A constant that is a duration.

    Attributes:
        module: below `src/brim`.
        value: as the code writes it, in seconds unless the comment says otherwise.
        about: its comment.
    """

    module: str
    name: str
    value: str
    about: str


def timeouts() -> Iterator[Timeout]:
    """Yield the constants of modules whose comment, beside or above them, speaks of seconds."""
    for path in sorted(SOURCE.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    about = _comment(lines, node.lineno, node.end_lineno or node.lineno)
                    if _DURATION.search(about) and _is_number(value):
                        module = path.relative_to(SOURCE).as_posix()
                        yield Timeout(module, name, ast.unparse(value), about)


def _is_number(value: ast.expr) -> bool:
    return not any(
        isinstance(node, ast.Call | ast.Constant) and not _is_figure(node)
        for node in ast.walk(value)
    )


def _is_figure(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


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
