"""`brim predict`: a trained model's output for every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from brim.cli.shared.inference import infer, inference_options
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import option
from brim.storage.file_stores import absolute

_SUFFIXES = (".parquet", ".pq", ".csv")


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@option(
    "--output",
    required=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Write the output to this file: .parquet or .csv.",
)
@option(
    "--keep", default="", metavar="COL,…", help="Copy these columns of the input into the output."
)
@inference_options
def predict(trained: str, output: str, keep: str, **values: Any) -> int:
    """Write a trained model's outputs for every row of a file or split, in the same order.

    \b
    brim predict latest --input december.csv --output late.parquet --workers 4
    brim predict latest --input december.csv --output late.csv --keep carrier,flight
    brim predict latest --split test --output test.parquet

    The columns are row, from 0, and output; a model with several outputs has output_0, output_1 …
    A function predict(output) in the training file may name and change them. A row that cannot be
    read has nulls, and is set aside with its reason.
    """
    if not output.endswith(_SUFFIXES):
        raise SpecError(
            "--output",
            got=repr(output),
            need="a path that ends in .parquet or .csv",
            hint="--output p.csv",
        )
    folder = Path(absolute(output)).parent
    if not folder.is_dir():
        raise SpecError(
            "--output", got=repr(output), need="a folder that exists", hint=f"mkdir -p {folder}"
        )
    if not values["input"] and not values["split"]:
        raise SpecError(
            "--input", got="nothing", need="rows to predict", hint="--input FILE, or --split test"
        )
    columns = tuple(name for name in keep.split(",") if name)
    if columns and not values["input"]:
        raise SpecError(
            "--keep",
            got=repr(keep),
            need="--input, whose columns can be copied",
            hint="leave it out",
        )
    return infer("predict", trained, values, output=absolute(output), keep=columns)
