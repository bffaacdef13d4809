"""`brim train`, `run` and `resume`: check everything,
then start the run and follow it to its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from brim.cli.follow import follow
from brim.domain.job import WorkerRange
from brim.loggers.named import check_loggers
from brim.runs import completing
from brim.runs.options import (
    ADDRESS,
    LOGGERS,
    STATE,
    WORKERS,
    build_spec,
    given,
    job_options,
    option,
    whole,
)
from brim.runs.starting import make_ready, make_ready_again
from brim.runs.training_file import check_command, check_training_file


@click.command(
    epilog="""A FILE has four functions, and may have a fifth:

\b
  def model(): ...                  a torch.nn.Module, called as model(inputs)
  def dataset(split): ...           "train" or "test": a Dataset of (inputs, target)
  def loss(output, target): ...     a scalar: the mean over the samples
  def optimizer(model): ...         a torch.optim.Optimizer
  def metrics(): ...                optional: {"auc": ...}, computed on the test split

Every option but --set and --env can also be given in the environment, as BRIM_NAME: BRIM_WORKERS=4."""
)
@click.argument("file", metavar="FILE", shell_complete=completing.files)
@job_options
@LOGGERS
@click.pass_context
def train(ctx: click.Context, /, file: str, **values: Any) -> int:
    """Train the model of FILE, a Python file with a few functions.

    \b
    brim train flights.py --workers 4
    brim train flights.py --workers 1:4 --epochs 2 --set learning_rate=0.01
    brim train flights.py --workers 4 --faults "kill rank 1 at step 40; add 2 at step 60"
    """
    check_training_file(Path(file))
    loggers = check_loggers(values.pop("loggers"))
    spec = build_spec(values, file=file)
    ready = make_ready(spec, subject=file, values=values, given=given(ctx))
    return follow(ready, as_json=values["as_json"], loggers=loggers)


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@LOGGERS
@option(
    "--prints/--no-prints",
    default=True,
    help="Show what rank 0 prints, beside the progress; not with --json.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completing.files)
@click.pass_context
def run(ctx: click.Context, /, command: tuple[str, ...], prints: bool, **values: Any) -> int:
    """Run COMMAND, your own training loop that calls brim.join, on every worker.

    \b
    brim run --workers 4 -- python loop.py
    brim run --workers 1:4 --faults "term rank 0 at step 20" -- python loop.py --lr 0.1

    Put brim's options before the command. Without brim the same loop runs as: python loop.py
    """
    check_command(command)
    loggers = check_loggers(values.pop("loggers"))
    spec = build_spec(values, command=command)
    subject = next((word for word in command if word.endswith(".py")), command[0])
    ready = make_ready(spec, subject=subject, values=values, given=given(ctx))
    as_json: bool = values["as_json"]
    return follow(ready, as_json=as_json, prints=prints and not as_json, loggers=loggers)


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@option("--workers", type=WORKERS, help="How many workers from now on. [default: as before]")
@option(
    "--ps",
    "servers",
    type=whole(least=0),
    help="How many servers from now on. [default: as before]",
)
@option("--listen", type=ADDRESS, help="Address at which other hosts can join. [default: none can]")
@option("--agents", type=whole(least=1), default=1, help="Hosts to wait for before the first step.")
@option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stdout.")
@STATE
def resume(
    run: str,
    workers: WorkerRange | None,
    servers: int | None,
    listen: str | None,
    agents: int,
    as_json: bool,
    state: Path | None,
) -> int:
    """Continue RUN, which was paused or killed, from its last checkpoint, and follow it to its end.

    \b
    brim resume latest
    brim resume latest --workers 8
    brim resume flights-1      (a job of the scheduler, which decides when)

    The file, the options and the working directory are those that the run was started with.
    """
    from brim.cli.clients import scheduler_of
    from brim.cli.jobs import resume_job
    from brim.runs.directories import find_run

    scheduler = scheduler_of(run, state, must=True)
    if scheduler is not None:
        return resume_job(scheduler, run)
    run_dir = find_run(run, state=state)
    ready = make_ready_again(
        run_dir, workers=workers, servers=servers, agents=agents, listen=listen
    )
    return follow(ready, as_json=as_json)
