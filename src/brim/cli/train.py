"""`brim train`: train the model of a file."""

from __future__ import annotations

from typing import Any

import click

from brim.cli.shared.follow import follow
from brim.cli.shared.sections import SectionedCommand
from brim.runs import completing
from brim.runs.options import JSON, options_given, run_options
from brim.runs.starting import make_ready


@click.command(
    cls=SectionedCommand,
    epilog="""A FILE has four functions, and may have a fifth:

\b
  def model(): ...                  a torch.nn.Module, called as model(inputs)
  def dataset(split): ...           "train" or "test": a Dataset of (inputs, target)
  def loss(output, target): ...     a scalar: the mean over the samples
  def optimizer(model): ...         a torch.optim.Optimizer
  def metrics(): ...                optional: {"auc": ...}, computed on the test split

Every option but --set, --env and --insecure can also be given in the environment, as BRIM_NAME:
BRIM_WORKERS=4.""",
)
@click.argument("file", metavar="FILE", shell_complete=completing.files)
@run_options
@JSON
@click.pass_context
def train(ctx: click.Context, /, file: str, as_json: bool, **values: Any) -> int:
    """Train the model of FILE, a Python file with a few functions.

    \b
    brim train flights.py --workers 4
    brim train flights.py --workers 1:4 --epochs 2 --set learning_rate=0.01
    brim train flights.py --workers 4 --faults "kill rank 1 at step 40; add 2 at step 60"
    """
    return follow(make_ready(values, options_given(ctx), file=file), as_json=as_json)
