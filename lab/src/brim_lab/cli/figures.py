"""`brim simulate figures`: the figures of the ElasticFlow paper that public data allows."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.table import Table

from brim.terminal import console


@click.command("figures")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder with itp/, generated/, profiles/.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for PNGs and figures.json.",
)
def figures(data: Path, out: Path) -> None:
    """Make the paper's figures that the data allows, beside the published values."""
    from brim_lab.paper import draw  # figures need the `simulate` extra

    err = console(sys.stderr)
    cells = draw(out, data, tell=lambda line: err.print(line, style="dim"))
    table = Table(title="Deadlines met (simulated)", title_justify="left")
    for name in ("figure", "trace", "policy", "here", "published"):
        table.add_column(name)
    for cell in cells:
        here = "-" if cell.ratio is None else f"{cell.ratio:.4f}"
        paper = "" if cell.published is None else f"{cell.published:.4f}"
        table.add_row(cell.figure, cell.trace, cell.policy, here, paper)
    console(sys.stdout, width=None if sys.stdout.isatty() else 110).print(table)
