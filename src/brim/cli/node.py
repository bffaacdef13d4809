"""`brim node`: offer this host's devices to a scheduler on another."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TextIO

import click

from brim.cli.shared.leaving import NOTICE, leaving_at
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.cluster import MOST_DEVICES
from brim.domain.options import whole
from brim.errors import SpecError
from brim.runs.options import ADDRESSES, PORTS, option, parse_env
from brim.runs.values import Value


@click.command()
@option(
    "--join",
    "scheduler",
    type=ADDRESSES,
    required=True,
    help="Join the scheduler that lets nodes join at this address, or at one of several.",
)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="Read the token from this file; - is standard input. [default: the variable BRIM_TOKEN]",
)
@click.option("--name", help="Call the node this. [default: the name of this host]")
@option(
    "--devices",
    type=Value(whole(minimum=0, maximum=MOST_DEVICES, hint="--devices 8")),
    help="Offer this many devices. [default: all GPUs, else all CPU cores]",
)
@option(
    "--switch",
    type=Value(whole(minimum=0, maximum=MOST_DEVICES, hint="--switch 1")),
    default=0,
    help="Give the number of this host's switch: a job's workers stay on one switch where possible.",
)
@option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    envvar=None,
    help="Set an environment variable of all jobs on this host; NAME alone passes on its present "
    "value. May be repeated.",
)
@NOTICE
@PORTS
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Keep the node's own files in this folder. [default: node in the state directory of this "
    "account]",
)
def node(
    scheduler: str,
    token_file: TextIO | None,
    name: str | None,
    devices: int | None,
    switch: int,
    variables: tuple[str, ...],
    notice: str | None,
    folder: Path | None,
) -> int:
    """Add this host to a scheduler on another host, which runs jobs here, until SIGTERM.

    Give the token, which is in the file nodes.token of the scheduler's state directory, in the
    environment variable BRIM_TOKEN or in a file: other users of this host could read it on a command
    line.

    If the scheduler may move to another address, give all of them, separated by commas: they are
    tried in turn.

    SIGTERM or Ctrl-C takes the host out again: its workers leave at the next step boundary, and
    others start where there is room. A node that cannot reach its scheduler's host for 2.5 s ends
    what runs on it.

    \b
    brim node --join 10.0.0.7:4001 --token-file nodes.token
    brim node --join 10.0.0.7:4001 --token-file nodes.token --notice gcp    (on a spot VM)
    """
    from brim.backends.environment import keep_environment_of_jobs
    from brim.backends.this_host import devices_here
    from brim.client import default_state_dir
    from brim.domain.cluster import Node
    from brim.domain.names import check_name
    from brim.joined.loop import say_on_stderr, serve
    from brim.wire.listening import split_address

    token = (token_file.read() if token_file else os.environ.get("BRIM_TOKEN", "")).strip()
    if "." not in token:
        raise SpecError(
            "the token for nodes",
            got="a token without a fingerprint" if token else "none",
            need="the environment variable BRIM_TOKEN, or --token-file",
            hint="the file nodes.token in the state directory of the scheduler has it",
        )
    name = name or platform.node() or "node"
    check_name(name, field="--name")
    folder = (folder or default_state_dir() / "node").resolve()
    keep_environment_of_jobs(parse_env(variables, os.environ))  # the token is no job's business
    count = devices_here() if devices is None else devices

    def work() -> int:
        serve(
            Node(id=name, devices=count, switch=switch),
            [split_address(address) for address in scheduler.split(",")],
            token=token,
            folder=folder,
            say=say_on_stderr,
        )
        return EXIT_DONE

    return leaving_at(notice, work)
