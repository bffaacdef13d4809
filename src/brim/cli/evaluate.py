"""`brim evaluate`: the metrics of a trained model."""

from __future__ import annotations

from typing import Any

import click

from brim.cli.shared.inference import infer, inference_options
from brim.runs import completing


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@inference_options
def evaluate(trained: str, **values: Any) -> int:
    """Compute the metrics of a trained model: the newest checkpoint of RUN, or CHECKPOINT.

    \b
    brim evaluate latest
    brim evaluate latest --split train --workers 4
    brim evaluate runs/flights-1/checkpoints/step-00000575 --input december.csv

    Without --split and --input, the rows are those of the test split. The numbers equal those at
    the end of a training epoch, bit for bit.
    """
    return infer("evaluate", trained, values)
