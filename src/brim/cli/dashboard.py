"""`brim dashboard`: the cluster as a page in a browser."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import webbrowser
from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.runs.options import STATE, option

_SCREENS = (
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "BROWSER",
)  # without one, a browser would take the terminal
_PACKAGES = ("nicegui", "uvicorn", "starlette")


@click.command()
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="any that is free",
    help="Listen on this port of this host's loopback.",
)
@option(
    "--no-browser",
    is_flag=True,
    help="Print the address alone, and open no browser.",
)
@STATE
def dashboard(port: int, no_browser: bool, state: Path | None) -> int:
    """Show the cluster in a browser: its users, reasons, plans, and the cost of a click.

    \b
    brim dashboard
    brim dashboard --no-browser --port 8080     (for ssh -L 8080:localhost:8080 HOST)
    brim --server https://10.0.0.7:4000 dashboard
    brim --server kubernetes://team dashboard   (the ElasticJobs of a namespace)

    It shows what your token may see: a tenant sees its own jobs. It listens only on this host's
    loopback. The printed address opens it once, in one browser; press Enter for another address.
    Jobs are submitted from files in this folder.

    Ctrl-C or SIGTERM ends it with all its pages.
    """
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        need, hint = "the extra 'dashboard'", command_for("dashboard")
        raise SpecError("nicegui", got="no such package", need=need, hint=hint)
    client = client_of(state)
    from brim.dashboard.opening import open_privately
    from brim.dashboard.server import serve

    def opens(url: str) -> None:
        click.echo(f"{url}   (opens the dashboard once, within five minutes)", err=True)
        if not no_browser and any(map(os.environ.get, _SCREENS)):
            with contextlib.suppress(OSError):  # the address is there to be typed
                open_privately(url, webbrowser.open)

    serve(
        client,
        port=port,
        folder=Path.cwd(),
        opens=opens,
    )
    return EXIT_DONE
