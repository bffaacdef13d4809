"""Self-contained pages.

Nothing is loaded from anywhere, and everything that came from somebody else is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document.

    Args:
        sections: markup; empty ones are left out.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · "
        f"brim</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, sections))
        + f"\n</main>\n<script>\n{_resource('hover.js')}</script>\n</body>\n</html>\n"
    )


def _style() -> str:
    return _resource("report.css")


def _resource(name: str) -> str:
    return resources.files("brim.report").joinpath(name).read_text(encoding="utf-8")


def light_colours() -> dict[str, str]:
    """The colour of each variable of the style on a light page."""
    return _colours(_style())


def dark_colours() -> dict[str, str]:
    """The colour of each variable of the style on a dark page."""
    return _colours(_style().partition("(prefers-color-scheme: dark)")[2])


def _colours(style: str) -> dict[str, str]:
    """The variables of the first rule."""
    root = style.partition("}")[0]
    pairs = (line.partition(":") for line in root.partition("--")[2].replace("\n", "").split("--"))
    return {name.strip(): value.strip(" ;") for name, _, value in pairs}


def section(title: str, content: str) -> str:
    """A part of a page under a heading."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers: (name, value, note)."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in facts
    )
    return f'<dl class="tiles">{items}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, raw: bool = False) -> str:
    """A table; cells are escaped, but for a first column that says it is `raw` markup of ours."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{cell if raw and index == 0 else escape(cell)}</td>"
            for index, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
