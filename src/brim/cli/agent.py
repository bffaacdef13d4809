"""`brim agent`: add this host's workers to a run on another host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, TextIO

import click

from brim.cli.shared.leaving import NOTICE, leaving_at
from brim.domain.options import DURATION, whole
from brim.errors import SpecError
from brim.host.process import exit_on_sigterm
from brim.runs.options import ADDRESSES, HEARTBEAT, PORTS, option
from brim.runs.values import Value
from brim.storage.heartbeat import HeartbeatFile

_ROOM = whole(minimum=1, hint="--workers 4")


@click.command()
@click.argument("master_address", metavar="MASTER_ADDRESS", type=ADDRESSES)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="Read the token from this file; - is standard input.",
)
@click.option(
    "--workers",
    type=Value(_ROOM),
    help="Run at most this many workers on this host. [default: as many as the run wants]",
)
@click.option(
    "--patience",
    type=Value(DURATION),
    help="Wait this long for the run's master, at first and after it is gone. [default: 20s at "
    "first, then 1m]",
)
@option(
    "--machine",
    default="",
    metavar="NAME",
    help="Name this machine, if other agents of the run are on it and share no memory with this "
    "one. [default: there are no others]",
)
@NOTICE
@HEARTBEAT
@PORTS
def agent(
    master_address: str,
    token_file: TextIO | None,
    workers: int | None,
    patience: float | None,
    machine: str,
    notice: str | None,
    heartbeat_file: Path | None,
) -> int:
    """Add this host to a run that was started on another: run workers for it here until it ends.

    Give the run's token, which `brim train --listen` prints, in the environment variable BRIM_TOKEN
    or in a file: other users of this host could read it on a command line.

    If the master may move to another address (see brim master), give all of them, separated by
    commas: they are tried in turn. Names are looked up for each call: the name of a service may lead
    to the next master.

    If several agents of a run are on one machine, say one in each pod, give all of them its name
    (--machine or BRIM_MACHINE): gradients are added up there first, and cross the network once.

    SIGTERM or Ctrl-C takes the host out again: its workers leave at the next step boundary, and
    others start on hosts that have room.

    \b
    BRIM_TOKEN=8c1f… brim agent 10.0.0.7:4000     (the run was started with --listen 0.0.0.0:4000)
    brim agent 10.0.0.7:4000 --token-file token --notice aws          (on a spot instance)
    """
    exit_on_sigterm()  # until a master has let it in
    token = given_token(token_file) or no_token("`brim train --listen` prints the command to type")
    os.environ["BRIM_TOKEN"] = token  # for the template, which imports torch meanwhile

    def work() -> int:
        from brim.agent.templates import make_workplace

        exit_on_sigterm()
        workplace = make_workplace(takes_workers=True)
        exit_on_sigterm(workplace.close)
        from brim.agent.__main__ import join

        return join(
            master_address,
            token=token,
            room=workers,
            patience=patience,
            machine=machine.strip(),
            heartbeat=HeartbeatFile(heartbeat_file),
            workplace=workplace,
        )

    return leaving_at(notice, work)


def given_token(token_file: TextIO | None) -> str:
    """Return the token in a file or in the environment; empty where there is none."""
    return (token_file.read() if token_file else os.environ.get("BRIM_TOKEN", "")).strip()


def no_token(hint: str) -> NoReturn:
    """Raise the error for a missing token."""
    raise SpecError(
        "the run's token",
        got="none",
        need="the environment variable BRIM_TOKEN, or --token-file",
        hint=hint,
    )
