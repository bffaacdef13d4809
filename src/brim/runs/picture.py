"""A run as a picture for a notebook: its loss, speed and workers over time.

The picture is for a light page or a dark one.
"""

from __future__ import annotations

import itertools
import re
from html import escape

from brim.report.page import dark_colours, light_colours
from brim.report.run import render_timeline
from brim.telemetry.history import RunHistory

_numbers = itertools.count(1)


def as_svg(history: RunHistory) -> str:
    """The picture by itself, in colours for a light page, with its background."""
    paint = light_colours()
    drawn = re.sub(r"var\(--([\w-]+)\)", lambda found: paint[found[1]], render_timeline(history))
    return drawn.replace("<svg", f'<svg style="background:{paint["card"]}"', 1)


def as_html(history: RunHistory, caption: str) -> str:
    """The picture below a line of text, in the colours of the notebook that it stands in."""
    number = next(_numbers)
    # Several pictures stand on one page, and ids are the page's.
    drawn = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>r{number}-", render_timeline(history))
    return f'<style>{_STYLE}</style><div class="brim-run"><p>{escape(caption)}</p>{drawn}</div>'


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


_STYLE = (
    f".brim-run{{{_variables(light_colours())};background:var(--card);color:var(--ink);padding:.6rem .8rem;"
    "border:1px solid var(--grid);border-radius:8px;max-width:900px}"
    ".brim-run p{margin:0 0 .4rem;font:13px system-ui,sans-serif}.brim-run "
    "svg{width:100%;height:auto}"
    '[data-jp-theme-light="false"] .brim-run,.vscode-dark '
    f".brim-run{{{_variables(dark_colours())}}}"
)
