"""The end of a run or a job, printed for those waiting for it, and its exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE
from brim.coordination.job.attempts import EXIT_STATUS
from brim.errors import SpecError

if TYPE_CHECKING:
    from brim.runs.handle import Ending, Handle


def wait_for(handle: Handle, *, as_json: bool) -> int:
    """Wait for an end and say how it was; Ctrl-C ends the wait alone, and says so."""
    try:
        ending = handle.wait()
    except KeyboardInterrupt:
        name = handle.name
        command_hint = f"brim status {name} --wait; brim {handle.ended_by} {name} ends it"
        click.echo(f"{name} keeps running: {command_hint}", err=True)
        raise
    return say(ending, handle.name, as_json=as_json)


def say(ending: Ending, name: str, *, as_json: bool) -> int:
    """Say how it ended, as `brim train` does; the exit code."""
    if as_json:
        click.echo(json.dumps(ending.facts))
    elif ending.summary:
        from brim.cli.shared.summary import render_summary

        click.echo(render_summary(ending.summary))
    if ending.error is None:
        return EXIT_DONE
    click.echo(f"{name}: {ending.state}{f': {ending.why}' if ending.why else ''}", err=True)
    if EXIT_STATUS in ending.why:  # of a command, which has said the rest itself
        click.echo(f"brim logs {name} shows what it printed", err=True)
    if ending.state == "refused":
        return EXIT_REFUSED
    return EXIT_USAGE if isinstance(ending.error, SpecError) else EXIT_FAILED
