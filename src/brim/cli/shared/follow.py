"""The way from a checked spec to a run's last line: start it, show it, say how it ended."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, warn
from brim.domain.job import JobSpec

if TYPE_CHECKING:
    from brim.runs.starting import Ready
    from brim.telemetry.history import RunHistory


def follow(ready: Ready, *, as_json: bool, prints: bool = True) -> int:
    """Start a run, show it, say how it ended, and return the exit code.

    The trace of an error in the user's code comes first, then the summary, then where the report
    is; a program that asks for JSON is told of no report, and waits for none.

    Args:
        prints: show what rank 0 of the user's own loop prints; not beside JSON.

    Raises:
        SpecError, EnvironmentFault: it cannot be started.
    """
    from brim.runs.starting import taken_back_if_stopped

    sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with taken_back_if_stopped(ready):
            return _follow(ready, as_json=as_json, prints=prints)
    except KeyboardInterrupt:
        if not ready.run_dir.exists():
            warn("stopped before it began: nothing is left of it")
        raise
    finally:
        signal.signal(signal.SIGTERM, sigterm)


def _follow(ready: Ready, *, as_json: bool, prints: bool) -> int:
    from brim.runs import following
    from brim.runs.outcome import state_of, summary_of

    for note in filter(None, (ready.level, *ready.notes)):
        warn(note)
    shows_prints = prints and bool(ready.spec.command) and not as_json
    ended = following.follow(ready, prints=shows_prints, signals=True, report=not as_json)
    history, failed = ended.history, ended.history.failed
    if failed and not ended.has_said_why:
        click.echo(failed.words, err=True)
    if failed and failed.who == "spec":
        return EXIT_USAGE
    if not failed and not history.ended:
        from brim.telemetry.logs import last_line

        message = "the agent of this run is gone, and its master and workers ended with it"
        reason = last_line(ready.run_dir / "logs" / "agent.log")
        warn(f"{message}: {reason or f'brim logs {ready.run_dir} may tell why'}")
    resume = f"brim resume {shlex.quote(str(ready.run_dir))}" if _can_resume(history) else ""
    summary = {**summary_of(history, ready.run_dir), **_of_inference(ready.spec)}
    _print_summary(summary, ended.report, resume, as_json=as_json)
    good = state_of(history, alive=False) in ("done", "suspended")
    return EXIT_DONE if good and not failed and ended.code == 0 else EXIT_FAILED


def _of_inference(spec: JobSpec) -> dict[str, Any]:
    """Return the additional fields in the summary of an evaluation or a prediction.

    That is the weights, the rows, and where predictions are written.
    """
    if spec.inference is None:
        return {}
    inference = spec.inference
    data = {"input": inference.input} if inference.input else {"split": inference.split}
    output = {"output": inference.output} if inference.output else {}
    return {"checkpoint": inference.checkpoint, **data, **output}


def _print_summary(
    summary: dict[str, Any], report: Path | None, resume: str, *, as_json: bool
) -> None:
    if as_json:
        import json

        click.echo(json.dumps(summary))
        return
    from brim.cli.shared.summary import render_summary

    click.echo(render_summary(summary, report=str(report or ""), resume=resume))


def _can_resume(history: RunHistory) -> bool:
    """Return whether resuming the run makes sense.

    It has not ended well, it has something to go on from, and its failure was not the user's code,
    which would fail again.
    """
    from brim.runs.outcome import state_of
    from brim.telemetry.events import CheckpointPublished

    is_user_error = history.failed is not None and history.failed.who == "user"
    has_state = history.verb != "train" or any(
        isinstance(event, CheckpointPublished) for event in history.events
    )
    return state_of(history, alive=False) != "done" and not is_user_error and has_state
