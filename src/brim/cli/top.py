"""`brim top`: the cluster on a terminal."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.runs.options import STATE


@click.command()
@STATE
def top(state: Path | None) -> int:
    """Show the cluster on this terminal: its tenants or nodes, their jobs, and why.

    \b
    brim top
    brim --server https://10.0.0.7:4000 top
    brim --server kubernetes://team top     (the ElasticJobs of a namespace)

    The tree is on the left; on the right are the details of the chosen line: progress, deadline,
    expected end, what a job waits for, and every decision on it. Both follow the scheduler.

    \b
    up, down, PgUp, PgDn, Home, End   choose a line
    left, right, Enter                close or open a tenant or node
    Tab                               scroll the details, and back
    /                                 filter the jobs; Esc shows all again
    g                                 by tenant or by node
    e                                 with ended jobs or without
    q, Ctrl-C                         quit

    It shows what your token may see: a tenant sees its own jobs. NO_COLOR is honoured.
    """
    if importlib.util.find_spec("textual") is None:
        need, hint = "the extra 'top'", command_for("top")
        raise SpecError("textual", got="no such package", need=need, hint=hint)
    if not all(map(os.isatty, (0, 1, 2))):
        need = "stdin, stdout and stderr on one"
        raise SpecError("brim top", got="no terminal", need=need, hint="brim jobs --watch")
    client = client_of(state)
    from brim.dashboard.terminal import show_on_terminal
    from brim.runs.times import clock_time

    show_on_terminal(client, clock=clock_time)
    return EXIT_DONE
