"""`brim train`, `run` and `resume`: check everything, then start the run and follow it to its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brim.cli.checkpoints import check_place
from brim.cli.follow import Ready, follow, require_train_extra
from brim.cli.loggers import LOGGERS, checked_loggers
from brim.cli.options import ADDRESS, STATE, WORKERS, build_spec, given, job_options, option, whole
from brim.cli.training_file import check_command, check_training_file
from brim.domain.job import JobSpec, WorkerRange

__all__ = ["resume", "run", "train"]


@click.command(
    epilog="""A FILE has four functions, and may have a fifth:

\b
  def model(): ...                  a torch.nn.Module, called as model(inputs)
  def dataset(split): ...           "train" or "test": a Dataset of (inputs, target)
  def loss(output, target): ...     a scalar: the mean over the samples
  def optimizer(model): ...         a torch.optim.Optimizer
  def metrics(): ...                optional: {"auc": ...}, computed on the test split

Every option but --set can also be set as BRIM_NAME in the environment: BRIM_WORKERS=4."""
)
@click.argument("file", metavar="FILE")
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
    loggers = checked_loggers(values.pop("loggers"))
    spec = build_spec(values, file=file)
    return _start(spec, subject=file, values=values, given_names=given(ctx), loggers=loggers)


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@LOGGERS
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, command: tuple[str, ...], **values: Any) -> int:
    """Run COMMAND, your own training loop that calls brim.join, on every worker.

    \b
    brim run --workers 4 -- python loop.py
    brim run --workers 1:4 --faults "term rank 0 at step 20" -- python loop.py --lr 0.1

    Options of brim stand before the command. The same loop runs alone as: python loop.py
    """
    check_command(command)
    loggers = checked_loggers(values.pop("loggers"))
    spec = build_spec(values, command=command)
    subject = next((word for word in command if word.endswith(".py")), command[0])
    return _start(spec, subject=subject, values=values, given_names=given(ctx), loggers=loggers)


@click.command()
@click.argument("run", metavar="RUN")
@option("--workers", type=WORKERS, help="How many workers from now on. [default: as the run had]")
@option("--listen", type=ADDRESS, help="Address that agents of other hosts connect to. [default: none can]")
@option("--agents", type=whole(least=1), default=1, help="Hosts to wait for before the first step.")
@option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stdout.")
@STATE
def resume(
    run: str, workers: WorkerRange | None, listen: str | None, agents: int, as_json: bool, state: Path | None
) -> int:
    """Go on with RUN, suspended or dead, from its last checkpoint, and follow it to its end.

    \b
    brim resume latest
    brim resume latest --workers 8
    brim resume flights-1      (a job of the scheduler, which decides when)

    Everything else is as the run had it: file, options, and the directory that it was started in.
    """
    from brim.cli import runs
    from brim.cli.clients import scheduler_of
    from brim.cli.jobs import resume_job
    from brim.telemetry.history import read_history

    scheduler = scheduler_of(run, state, must=True)
    if scheduler is not None:
        return resume_job(scheduler, run)
    require_train_extra()
    run_dir = runs.find_run(run, state=state)
    history = read_history(run_dir)
    runs.check_resumable(run_dir, history, field="RUN")
    spec = runs.recorded_spec(run_dir, history)
    spec = replace(spec, workers=workers or spec.workers, agents=agents, faults=())
    runs.check_source(spec)
    return follow(Ready(spec=spec, run_dir=run_dir, resumes=True, listen=listen), as_json=as_json)


def _start(
    spec: JobSpec, *, subject: str, values: dict[str, Any], given_names: set[str], loggers: tuple[str, ...]
) -> int:
    """Find or make the run's directory, after everything that can be checked without it, and go."""
    from brim.cli import runs
    from brim.clock import SystemClock
    from brim.telemetry.history import read_history

    require_train_extra()
    from_elsewhere = _resumes_elsewhere(values)
    if not values["resume"] or from_elsewhere:
        if spec.checkpoints:
            check_place(spec.checkpoints, holds=from_elsewhere)
        path = values["run_dir"] or runs.new_run_dir(subject, SystemClock().wall())
        fresh = runs.claim(Path(path))
        ready = Ready(
            spec=spec,
            run_dir=fresh.path,
            fresh=fresh,
            resumes=values["resume"],
            listen=values["listen"],
            loggers=loggers,
        )
        return follow(ready, as_json=values["as_json"])
    run_dir = runs.find_run(values["run_dir"], field="--resume")
    history = read_history(run_dir)
    runs.check_resumable(run_dir, history, field="--resume")
    spec = runs.resumed_spec(spec, history.spec, given_names)
    if spec.checkpoints:
        check_place(spec.checkpoints, holds=None)
    ready = Ready(spec=spec, run_dir=run_dir, resumes=True, listen=values["listen"], loggers=loggers)
    return follow(ready, as_json=values["as_json"])


def _resumes_elsewhere(values: dict[str, Any]) -> bool:
    """Whether a new run, in a directory of its own, is to go on from the checkpoints of another that is lost."""
    from brim.cli import runs

    new = bool(values["run_dir"]) and not runs.holds_run(Path(values["run_dir"]))
    return bool(values["resume"] and values["checkpoints"] and new)
