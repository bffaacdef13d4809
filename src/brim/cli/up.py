"""`brim up`: start the scheduler of this host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.state import lock_state
from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError, StorageFault
from brim.host.clock import monotonic, sleep
from brim.host.process import run_module
from brim.runs.options import (
    ADDRESS,
    INSECURE,
    PORTS,
    STATE,
    check_insecure,
    option,
    parse_env,
)

if TYPE_CHECKING:
    from brim.client import Client
    from brim.domain.cluster import ClusterSpec
    from brim.wire.cluster import ClusterView


_TO_COME_UP = 30.0  # seconds
_TO_SAY_SO = 8.0  # seconds of a start until it is spoken of; again after twice the time
_TO_START = 300.0  # seconds that a scheduler which was started here may take, as long as it lives
_POLL_INTERVAL = 0.05


@click.command()
@option(
    "--cluster",
    "file",
    type=click.Path(path_type=Path),
    help="Describe the cluster by this file. [default: this host]",
)
@option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:0",
    show_default=True,
    help="Listen for clients at this address: by HTTPS where other hosts can reach it.",
)
@INSECURE
@option(
    "--nodes",
    type=ADDRESS,
    help="Let nodes of other hosts join at this address of this host (see brim node). [default: none "
    "can join]",
)
@option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    envvar=None,
    help="Set an environment variable of all jobs; NAME alone passes on its present value. May be "
    "repeated.",
)
@PORTS
@click.option(
    "--foreground",
    is_flag=True,
    help="Run the scheduler in this process, as service managers need, and log on stderr.",
)
@STATE
def up(
    file: Path | None,
    listen: str,
    insecure: bool,
    nodes: str | None,
    variables: tuple[str, ...],
    foreground: bool,
    state: Path | None,
) -> int:
    """Start the scheduler in the background; it continues the jobs that it had.

    \b
    brim up
    brim up --cluster cluster.yaml
    brim up --nodes 10.0.0.7:4001   (other hosts join: brim node --join 10.0.0.7:4001)
    brim up --foreground      (Ctrl-C ends the scheduler; its jobs train on)
    brim up --listen 0.0.0.0:4000   (clients of other hosts: brim --server https://HOST:4000 VERB)
    brim up --env HF_HOME           (jobs get it beside PATH and their own --env)
    """
    from brim.backends.environment import environment_of_jobs
    from brim.client import default_state_dir
    from brim.scheduler.cluster_file import read_cluster_file
    from brim.storage.contact import read_scheduler_contact
    from brim.wire.https import url_elsewhere

    _check_nodes(nodes)
    check_insecure(listen, insecure=insecure)
    state = (state or default_state_dir()).resolve()
    declared = parse_env(variables, os.environ)
    environment = environment_of_jobs(os.environ, declared)
    command = _command(state, listen, file, nodes, declared)
    command += ["--insecure"] if insecure else []
    spec = read_cluster_file(file) if file else None
    descriptor = _claim(
        state, hint=f"brim apply {file}" if file else "brim jobs; brim down ends it"
    )
    try:
        _describe(state, spec)
    finally:
        os.close(descriptor)
    if foreground:
        os.execve(sys.executable, [*command, "--foreground"], environment)
    process = _spawn(command, state, environment)
    try:
        client, view = _await_scheduler(state, process)
    except KeyboardInterrupt:
        click.echo("the scheduler keeps starting in the background: brim down ends it", err=True)
        raise
    if view.holds:
        warn(view.problem)
        return EXIT_DONE
    text = (
        f"{counted(view.devices, 'device')} on {counted(len(view.nodes), 'node')}, policy "
        f"{view.policy}"
    )
    click.echo(f"scheduling {text}; state in {state}", err=True)
    if client.address.startswith("https://"):
        click.echo(
            f"clients of other hosts: brim --server {url_elsewhere(client.address)} VERB, with a "
            "token in BRIM_TOKEN_FILE (see brim token)",
            err=True,
        )
    contact = read_scheduler_contact(state)
    if nodes and contact is not None:
        token = state / "nodes.token"
        text = f"nodes join with: brim node --join {contact.nodes} --token-file {token}"
        click.echo(text, err=True)
    roots = (
        [tenant.id for tenant in spec.tenants if not tenant.user]
        if spec and os.geteuid() == 0
        else []
    )
    if roots:
        warn(f"jobs of {', '.join(roots)} run as root: name a user for each tenant in {file}")
    return EXIT_DONE


def _claim(state: Path, *, hint: str) -> int:
    """Take the lock of the scheduler that is about to start.

    Only its holder may describe the cluster. A scheduler that runs already may need a moment to
    answer; it is given up to a limit.
    """
    end = monotonic() + _TO_COME_UP
    while True:
        try:
            client_of(state).cluster()
        except EnvironmentFault as error:
            descriptor = lock_state(state)
            if descriptor is not None:
                return descriptor
            if monotonic() > end:
                raise EnvironmentFault(
                    f"a scheduler runs in {state} and has not answered for {_TO_COME_UP:.0f} s: "
                    f"nothing was changed. {_check_again(state)}"
                ) from error
        else:
            raise SpecError(
                "brim up",
                got=f"{state}, where a scheduler runs",
                need="one scheduler for each state directory",
                hint=hint,
            )


def _describe(state: Path, spec: ClusterSpec | None) -> None:
    """Write down the description of a new cluster.

    The scheduler itself writes down a new description of a cluster that exists.

    Raises:
        StorageFault: no database can be made. One that cannot be read is for the scheduler, which
            can wait.
    """
    import msgspec

    from brim.backends.this_host import this_host
    from brim.scheduler.front_certificate import check_certificate
    from brim.scheduler.loop import CLUSTER, check_accounts
    from brim.scheduler.notifying import check_channels
    from brim.storage.backup import finish_restore
    from brim.storage.database import Database
    from brim.storage.migrations import migrate

    if spec is not None:
        check_accounts(spec)
        check_channels(spec.channels)
        check_certificate(spec.services)
    finish_restore(state)
    path = state / "scheduler.db"
    new = not path.exists()
    try:
        stored_spec = migrate(path)
        if stored_spec is not None:
            click.echo(
                f"migrated {path} to this version's format; a copy of the old file is in {stored_spec}",
                err=True,
            )
        with contextlib.closing(Database(path)) as database:
            if database.get(CLUSTER) is None:
                database.put(CLUSTER, msgspec.json.encode(spec or this_host()))
    except StorageFault:
        if new:
            raise


def _check_nodes(nodes: str | None) -> None:
    """Raises SpecError where other hosts could not reach the address that they would call."""
    if nodes is not None and nodes.rpartition(":")[0].strip("[]") in ("", "0.0.0.0", "::"):
        need = "an address of this host that the others reach"
        raise SpecError("--nodes", got=repr(nodes), need=need, hint="--nodes 10.0.0.7:4001")


def _command(
    state: Path, listen: str, file: Path | None, nodes: str | None, declared: Iterable[str]
) -> list[str]:
    from brim.wire.listening import split_address

    host, port = split_address(listen)
    command = run_module("brim.backends.up", str(state), "--host", host, "--port", str(port))
    command += ["--nodes", nodes] if nodes else []
    command += [f"--env={name}" for name in declared]
    return [*command, "--cluster", str(file.resolve())] if file else command


def _spawn(
    command: list[str], state: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process of its own session: it outlives this command, and Ctrl-C does not reach it."""
    from brim.storage.files import open_log

    with open_log(state / "scheduler.log") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )


def _await_scheduler(state: Path, process: subprocess.Popen[bytes]) -> tuple[Client, ClusterView]:
    """Wait until the scheduler answers; say so where that takes long, as on a busy host."""
    from brim.telemetry.logs import last_line

    started = monotonic()
    next_note = _TO_SAY_SO
    while True:
        try:
            client = client_of(state)
            return client, client.cluster()
        except EnvironmentFault:
            if process.poll() is not None:
                break
        duration = monotonic() - started
        if duration > _TO_START:
            raise EnvironmentFault(
                f"the scheduler is still starting after {_TO_START:.0f} s; it runs on in the "
                f"background. {_check_again(state)}"
            )
        if duration > next_note:
            next_note = 2 * duration
            click.echo(f"the scheduler is still starting ({duration:.0f} s so far)", err=True)
        sleep(_POLL_INTERVAL)
    last = last_line(state / "scheduler.log")
    raise EnvironmentFault(
        f"the scheduler did not come up: {last} (all of it: {state}/scheduler.log)"
    )


def _check_again(state: Path) -> str:
    return f"Check with brim jobs; log: {state}/scheduler.log"
