"""`brim train` and `brim run`: check everything, start the run, follow it to its end."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.checkpoints import check_place
from brim.cli.options import build_spec, given, job_options
from brim.cli.training_file import check_command, check_training_file
from brim.domain.job import JobSpec
from brim.errors import SpecError

if TYPE_CHECKING:
    from brim.cli.runs import RunDirectory
    from brim.cli.watch import View
    from brim.telemetry.history import RunHistory

__all__ = ["run", "train"]


@click.command(
    epilog="""A FILE has four functions, and may have a fifth:

\b
  def model(): ...                  a torch.nn.Module, called as model(inputs)
  def dataset(split): ...           "train" or "test": a Dataset of (inputs, target)
  def loss(output, target): ...     a scalar: the mean over the samples
  def optimizer(model): ...         a torch.optim.Optimizer
  def metrics(): ...                optional: {"auc": ...}, computed on the test split

Every option can also be set as BRIM_NAME in the environment: BRIM_WORKERS=4."""
)
@click.argument("file", metavar="FILE")
@job_options
@click.pass_context
def train(ctx: click.Context, /, file: str, **values: Any) -> int:
    """Train the model of FILE, a Python file with a few functions.

    \b
    brim train flights.py --workers 4
    brim train flights.py --workers 1:4 --epochs 2 --set learning_rate=0.01
    brim train flights.py --workers 4 --faults "kill rank 1 at step 40; add 2 at step 60"
    """
    check_training_file(Path(file))
    spec = build_spec(values, file=file)
    return _start(spec, subject=file, values=values, given_names=given(ctx))


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
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
    spec = build_spec(values, command=command)
    subject = next((word for word in command if word.endswith(".py")), command[0])
    return _start(spec, subject=subject, values=values, given_names=given(ctx))


@dataclass(frozen=True, slots=True)
class _Prepared:
    spec: JobSpec
    run_dir: Path
    fresh: RunDirectory | None


def _start(spec: JobSpec, *, subject: str, values: dict[str, Any], given_names: set[str]) -> int:
    from brim.backends import local
    from brim.cli.invite import Invitation
    from brim.cli.watch import watch
    from brim.storage.journal import set_aside_if_damaged
    from brim.telemetry.history import RunReader

    _require_train_extra()
    ready = _prepare(spec, subject=subject, values=values, given_names=given_names)
    reader = RunReader(ready.run_dir, keep_steps=False)
    reader.poll()  # an earlier life of the run is known, but not shown again
    invitation = Invitation(ready.run_dir) if values["listen"] else None
    damage = set_aside_if_damaged(ready.run_dir / "journal")
    try:
        handle = local.start(ready.spec, ready.run_dir, resume=values["resume"], listen=values["listen"])
    except SpecError:
        if ready.fresh:
            ready.fresh.withdraw()
        raise
    view = _view()
    if damage:
        view.note(damage)
    view.note(f"starting {_workers(ready.spec)} for {ready.run_dir}")
    code = watch(handle, reader, view, invitation)
    return _finish(code, ready, as_json=values["as_json"])


def _require_train_extra() -> None:
    if importlib.util.find_spec("torch") is None:
        raise SpecError(
            "torch", got="a Python without it", need="the extra 'train'", hint="pip install 'brim[train]'"
        )


def _prepare(spec: JobSpec, *, subject: str, values: dict[str, Any], given_names: set[str]) -> _Prepared:
    """Find or make the run's directory, after everything that can be checked without it."""
    from brim.cli import runs
    from brim.clock import SystemClock
    from brim.telemetry.history import read_history

    from_elsewhere = _resumes_elsewhere(values)
    if not values["resume"] or from_elsewhere:
        if spec.checkpoints:
            check_place(spec.checkpoints, resume=from_elsewhere)
        path = values["run_dir"] or runs.new_run_dir(subject, SystemClock().wall())
        fresh = runs.claim(Path(path))
        return _Prepared(spec, fresh.path, fresh)
    run_dir = runs.find_run(values["run_dir"], field="--resume")
    history = read_history(run_dir)
    runs.check_resumable(run_dir, history)
    return _Prepared(runs.resumed_spec(spec, history.spec, given_names), run_dir, None)


def _resumes_elsewhere(values: dict[str, Any]) -> bool:
    """Whether a new run, in a directory of its own, is to go on from the checkpoints of another that is lost."""
    from brim.cli import runs

    new = bool(values["run_dir"]) and not runs.holds_run(Path(values["run_dir"]))
    return bool(values["resume"] and values["checkpoints"] and new)


def _view() -> View:
    from brim.clock import SystemClock

    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        from brim.cli.live import LiveView

        return LiveView(Console(stderr=True), clock=SystemClock())
    from brim.cli.plain import PlainView

    return PlainView(sys.stderr, clock=SystemClock())


def _finish(code: int, ready: _Prepared, *, as_json: bool) -> int:
    """Say how it ended: the user's own trace first, then the summary, then where the report is."""
    from brim.cli.records import write_report
    from brim.cli.watch import exit_code, summary_of
    from brim.telemetry.history import read_history

    history = read_history(ready.run_dir)
    failed = history.failed
    if failed and failed.who == "spec":
        click.echo(failed.message, err=True)
        if ready.fresh and not history.steps:
            ready.fresh.withdraw()
        return exit_code(code, history)
    if failed:
        trace = failed.trace.rstrip()
        click.echo(trace if failed.message in trace else f"{trace}\n{failed.message}".lstrip(), err=True)
    elif not history.ended:
        gone = "the agent of this run is gone, and its master and workers ended with it"
        click.echo(f"brim: {gone}: brim logs {ready.run_dir} may tell why", err=True)
    report = write_report(ready.run_dir, history)
    resume = _how_to_resume(ready) if _can_resume(history) else ""
    _print_summary(summary_of(history, ready.run_dir), report, resume, as_json=as_json)
    return exit_code(code, history)


def _print_summary(summary: dict[str, Any], report: Path | None, resume: str, *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(summary))
        return
    from brim.cli.summary import render_summary

    click.echo(render_summary(summary, report=str(report or ""), resume=resume))


def _can_resume(history: RunHistory) -> bool:
    """It has a checkpoint and was not done; what the user's code did once it would do again."""
    from brim.telemetry.records import CheckpointWritten

    done = history.ended is not None and history.ended.summary.get("exit") == "done"
    theirs = history.failed is not None and history.failed.who == "user"
    return not done and not theirs and any(isinstance(event, CheckpointWritten) for event in history.events)


def _how_to_resume(ready: _Prepared) -> str:
    words = f"--resume --run-dir {shlex.quote(str(ready.run_dir))}"
    if ready.spec.file:
        return f"brim train {shlex.quote(ready.spec.file)} {words}"
    return f"brim run {words} -- {shlex.join(ready.spec.command)}"


def _workers(spec: JobSpec) -> str:
    return "1 worker" if str(spec.workers) == "1" else f"{spec.workers} workers"
