"""Rows of facts as aligned columns: for terminals, pipes and logs alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and its rows, numbers to the right.

    >>> print(table(("job", "step"), [("a-1", 20), ("b-2", 3)]))
    job  step
    a-1    20
    b-2     3
    """
    cells = [list(map(str, names)), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
    numeric = [
        len(cells) > 1
        and all(row[k].replace(".", "", 1).isdigit() or not row[k] for row in cells[1:])
        for k in range(len(names))
    ]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)
