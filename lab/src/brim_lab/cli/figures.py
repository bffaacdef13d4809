"""`brim simulate figures`: the figures of the ElasticFlow paper that public data allows."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.table import Table

from brim.host.terminal import console


@click.command("figures")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="Read data from this folder, which has itp/, generated/ and profiles/.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Write PNGs and figures.json to this folder.",
)
def figures(data: Path, out: Path) -> None:
    """Make the ElasticFlow paper's figures that public data allows, beside the published values."""
    from brim_lab.paper import draw  # figures need the `simulate` extra

    err = console(sys.stderr)
    cells = draw(out, data, tell=lambda line: err.print(line, style="dim"))
    table = Table(title="Deadlines met (simulated)", title_justify="left")
    for name in ("figure", "trace", "policy", "here", "published"):
        table.add_column(name)
    for cell in cells:
        ratio_text = "-" if cell.ratio is None else f"{cell.ratio:.4f}"
        paper = "" if cell.published is None else f"{cell.published:.4f}"
        table.add_row(cell.figure, cell.trace, cell.policy, ratio_text, paper)
    console(sys.stdout, width=None if sys.stdout.isatty() else 110).print(table)
