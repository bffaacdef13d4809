"""From a spec that was checked to a run's last line: start it, show it, say how it ended."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.domain.inference import Inference
from brim.domain.job import JobSpec
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.runs.prints import Prints
from brim.runs.starting import Ready
from brim.runs.views import choose_view

if TYPE_CHECKING:
    from brim.telemetry.history import RunHistory


def follow(
    ready: Ready, *, as_json: bool, prints: bool = False, loggers: Sequence[str] = ()
) -> int:
    """Start a run and follow it to its end; the exit code.

    Args:
        prints: show what rank 0 prints.
        loggers: that are told of it, besides those that it had before.

    Raises:
        SpecError, EnvironmentFault: it cannot be started.
    """
    from brim.backends import local
    from brim.cli.invite import Invitation
    from brim.cli.watch import watch
    from brim.runs.followers import Followers
    from brim.storage.journal import set_aside_if_damaged
    from brim.telemetry.history import RunReader

    reader = RunReader(ready.run_dir, keep_steps=False)
    reader.poll()  # an earlier life of the run is known, but not shown again
    invitation = Invitation(ready.run_dir) if ready.listen else None
    printed = Prints(ready.run_dir, reader.history) if prints else None
    damage = set_aside_if_damaged(ready.run_dir / "journal")
    try:
        handle = local.start(ready.spec, ready.run_dir, resume=ready.resumes, listen=ready.listen)
    except (SpecError, EnvironmentFault):
        if ready.fresh:
            ready.fresh.withdraw()
        raise
    view = choose_view()
    if damage:
        view.note(damage)
    view.note(f"starting {_workers(ready.spec)} for {ready.run_dir}")
    followers = Followers(ready.run_dir, loggers, ready.spec.directory)
    code = watch(handle, reader, view, invitation, prints=printed, followers=followers)
    if reader.history.started:
        for told in followers.finish():
            click.echo(told, err=True)
    return _finish(code, ready, as_json=as_json)


def _finish(code: int, ready: Ready, *, as_json: bool) -> int:
    """Say how it ended: the user's own trace first, then the summary, then where the report is."""
    from brim.cli.records import write_report
    from brim.cli.watch import exit_code
    from brim.runs.outcome import summary_of
    from brim.telemetry.history import read_history

    history = read_history(ready.run_dir)
    failed = history.failed
    if ready.spec.inference:
        _tidy(ready.run_dir, ready.spec.inference, done=_is_done(history))
    if failed and failed.who == "spec":
        click.echo(failed.message, err=True)
        if ready.fresh and not history.steps:
            ready.fresh.withdraw()
        return exit_code(code, history)
    if failed:
        trace = failed.trace.rstrip()
        click.echo(
            trace if failed.message in trace else f"{trace}\n{failed.message}".lstrip(), err=True
        )
    elif not history.ended:
        gone = "the agent of this run is gone, and its master and workers ended with it"
        click.echo(f"brim: {gone}: brim logs {ready.run_dir} may tell why", err=True)
    report = None if ready.spec.inference else write_report(ready.run_dir, history)
    resume = f"brim resume {shlex.quote(str(ready.run_dir))}" if _can_resume(history) else ""
    summary = {**summary_of(history, ready.run_dir), **_of_inference(ready.spec)}
    _print_summary(summary, report, resume, as_json=as_json)
    return exit_code(code, history)


def _tidy(run_dir: Path, wanted: Inference, *, done: bool) -> None:
    """Remove what an inference job leaves: an output that its writer was killed over, and parts
    that are used up.
    """
    from brim.storage.files import partial_of

    if wanted.output:
        with contextlib.suppress(OSError):
            partial_of(Path(wanted.output), run_dir.name).unlink()
    if done:
        shutil.rmtree(run_dir / "parts", ignore_errors=True)


def _of_inference(spec: JobSpec) -> dict[str, Any]:
    """What the summary of an evaluation or a prediction says besides: which weights, which rows,
    where to.
    """
    if spec.inference is None:
        return {}
    wanted = spec.inference
    data = {"input": wanted.input} if wanted.input else {"split": wanted.split}
    output = {"output": wanted.output} if wanted.output else {}
    return {"checkpoint": wanted.checkpoint, **data, **output}


def _print_summary(
    summary: dict[str, Any], report: Path | None, resume: str, *, as_json: bool
) -> None:
    if as_json:
        import json

        click.echo(json.dumps(summary))
        return
    from brim.cli.summary import render_summary

    click.echo(render_summary(summary, report=str(report or ""), resume=resume))


def _is_done(history: RunHistory) -> bool:
    return history.ended is not None and history.ended.summary.get("exit") == "done"


def _can_resume(history: RunHistory) -> bool:
    """It has something to go on from and was not done; what the user's code did once it would do
    again.
    """
    from brim.telemetry.events import CheckpointPublished

    theirs = history.failed is not None and history.failed.who == "user"
    kept = history.verb != "train" or any(
        isinstance(event, CheckpointPublished) for event in history.events
    )
    return not _is_done(history) and not theirs and kept


def _workers(spec: JobSpec) -> str:
    workers = "1 worker" if str(spec.workers) == "1" else f"{spec.workers} workers"
    return f"{workers} and {counted(spec.servers, 'server')}" if spec.servers else workers
