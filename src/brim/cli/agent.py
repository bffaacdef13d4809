"""`brim agent`: add this host's workers to a run on another host."""

from __future__ import annotations

import os
from typing import TextIO

import click

from brim.errors import SpecError
from brim.runs.options import ADDRESS, option


@click.command()
@click.argument("master_address", metavar="MASTER_ADDRESS", type=ADDRESS)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="Read the token from this file; - is standard input.",
)
def agent(master_address: str, token_file: TextIO | None) -> int:
    """Add this host to a run that was started on another: run workers for it here until it ends.

    Give the run's token, which `brim train --listen` prints, in the environment variable BRIM_TOKEN
    or in a file: other users of this host could read it on a command line.

    \b
    BRIM_TOKEN=8c1f… brim agent 10.0.0.7:4000     (the run was started with --listen 0.0.0.0:4000)
    """
    from brim.agent.__main__ import join

    token = (token_file.read() if token_file else os.environ.get("BRIM_TOKEN", "")).strip()
    if not token:
        raise SpecError(
            "the run's token",
            got="none",
            need="the environment variable BRIM_TOKEN, or --token-file",
            hint="`brim train --listen` prints the command to type",
        )
    return join(master_address, token=token)
