"""`brim status`, `resize`, `suspend` and `agent`: talk to a run that is alive."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from brim.cli.usage import EXIT_DONE
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.runs import completing
from brim.runs.options import ADDRESS, STATE, WORKERS, option, whole

if TYPE_CHECKING:
    from brim.domain.job import WorkerRange
    from brim.telemetry.history import RunHistory


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@option("--wait", is_flag=True, help="For a job of the scheduler: wait until it ends.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def status(run: str | None, wait: bool, as_json: bool, state: Path | None) -> int:
    """Show what RUN, or a job of the scheduler, is doing now or how it ended.

    Without RUN: the latest run.

    \b
    brim status
    brim status flights-20260102-030405 --json
    brim status flights-1 --wait
    """
    from brim.cli.clients import scheduler_of
    from brim.cli.jobs import status_of

    scheduler = scheduler_of(run, state, must=wait)
    if scheduler is not None:
        return status_of(scheduler, run or "", wait=wait, as_json=as_json)
    from brim import client
    from brim.cli.records import read_run
    from brim.runs.directories import find_run
    from brim.runs.outcome import facts_of, state_of
    from brim.telemetry.history import read_history

    run_dir = find_run(run, state=state)
    if wait:
        hint = f"brim logs {run_dir} -f goes on until it ends"
        raise SpecError(
            "--wait",
            got=f"{run_dir}, a run without a scheduler",
            need="a job of a scheduler",
            hint=hint,
        )
    try:
        live: dict[str, Any] | None = client.status(run_dir)
    except EnvironmentFault:
        live = None
    if live is not None and read_history(run_dir).started is None:
        starting = {**live, "run": str(run_dir), "state": "starting"}
        click.echo(
            json.dumps(starting) if as_json else f"{run_dir}: starting, no worker is ready yet"
        )
        return EXIT_DONE
    run_dir, history = read_run(str(run_dir))
    condition = state_of(history, alive=live is not None)
    known = {**(live or {}), "run": str(run_dir), "state": condition, **facts_of(history)}
    click.echo(json.dumps(known) if as_json else _render(known, history))
    return EXIT_DONE


def _render(known: dict[str, Any], history: RunHistory) -> str:
    from brim.domain.quantities import format_bytes
    from brim.runs.times import clock_time
    from brim.telemetry.history import describe_event, describe_staleness

    loss = f"loss {known['loss']:.4f}" if known["loss"] is not None else "no step yet"
    training = (
        f" · epoch {known['epoch']}/{known['epochs']} · {loss}" if history.verb == "train" else ""
    )
    lines = [
        f"{known['run']}: {known['state']}",
        f"step {known['step']:,}/{known['steps']:,}{training} · {known['samples_per_second']:,.0f} "
        "samples/s",
    ]
    if history.staleness:
        lines.append(
            f"asynchronous, at most {history.ahead} ahead: {describe_staleness(history.staleness)}"
        )
    if known["state"] == "running":
        uneven = history.round is not None and history.round.is_uneven
        names = [
            f"{each['worker']} {each['state']}"
            + (f" (share {each['share']})" if uneven and each["share"] else "")
            for each in known["workers"]
            if not each["serves"]
        ]
        lines.append(f"world size {known['world_size']}: " + ", ".join(names))
        servers = [
            f"{each['worker']} {each['state']}" for each in known["workers"] if each["serves"]
        ]
        if servers:
            lines.append(f"servers {known['servers']}: " + ", ".join(servers))
    for table in known["tables"]:
        rates = (
            f"{table['rows_read_per_second']:,.0f} rows/s read, "
            f"{table['rows_changed_per_second']:,.0f} changed"
        )
        hot = ", ".join(f"{each['id']} ({each['lookups']})" for each in table["hottest"][:3])
        lines.append(
            f"table {table['name']}: {table['rows']:,} × {table['dim']}, "
            f"{format_bytes(table['bytes'])} · {rates}" + (f" · hottest ids {hot}" if hot else "")
        )
    told = [(event.at, describe_event(event, history)) for event in history.events]
    lines += [f"  {clock_time(at)} {text}" for at, text in [each for each in told if each[1]][-5:]]
    return "\n".join(lines)


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@click.argument("workers", metavar="[WORKERS]", type=WORKERS, required=False)
@option(
    "--ps",
    "servers",
    type=whole(least=0),
    envvar=None,
    help="How many servers, of a run that has some.",
)
@STATE
def resize(run: str, workers: WorkerRange | None, servers: int | None, state: Path | None) -> int:
    """Give RUN this many WORKERS. Training goes on meanwhile; new workers join once they are ready.

    \b
    brim resize latest 8
    brim resize latest --ps 2     (2 servers, and as many workers as before)
    brim resize flights-1 1:8     (a job of the scheduler, which decides within these)
    """
    from brim import client
    from brim.cli.clients import scheduler_of
    from brim.cli.jobs import resize_job
    from brim.runs.directories import find_run

    if workers is None and servers is None:
        raise SpecError(
            "WORKERS",
            got="nothing",
            need="a number of workers, or --ps N",
            hint=f"brim resize {run} 4",
        )
    scheduler = scheduler_of(run, state, must=True)
    if scheduler is not None:
        if workers is None or servers is not None:
            need = "a run without a scheduler: a job has the servers that it was submitted with"
            raise SpecError("--ps", got=str(servers), need=need, hint=f"brim resize {run} 4")
        return resize_job(scheduler, run, workers)
    run_dir = find_run(run, state=state)
    if workers is not None and workers.minimum != workers.maximum:
        need = "one number: only the scheduler decides within a range"
        hint = f"brim resize {run} {workers.maximum}"
        raise SpecError("WORKERS", got=repr(str(workers)), need=need, hint=hint)
    client.resize(run_dir, workers.maximum if workers else 0, servers=servers)
    wanted = [counted(workers.maximum, "worker")] if workers else []
    wanted += [counted(servers, "server")] if servers is not None else []
    click.echo(f"{run_dir}: going to {' and '.join(wanted)}", err=True)
    return EXIT_DONE


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completing.runs)
@STATE
def suspend(run: str, state: Path | None) -> int:
    """Pause RUN: write a checkpoint at its next step and release its workers.

    `brim resume` continues it.

    \b
    brim suspend latest
    brim resume latest --workers 8
    """
    from brim import client
    from brim.cli.clients import scheduler_of
    from brim.cli.jobs import suspend_job
    from brim.runs.directories import find_run

    scheduler = scheduler_of(run, state, must=True)
    if scheduler is not None:
        return suspend_job(scheduler, run)
    run_dir = find_run(run, state=state)
    client.suspend(run_dir)
    click.echo(f"{run_dir}: suspending at the next step; brim resume {run_dir} goes on", err=True)
    return EXIT_DONE


@click.command()
@click.argument("master_address", metavar="MASTER_ADDRESS", type=ADDRESS)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="File with the token; - reads standard input.",
)
def agent(master_address: str, token_file: TextIO | None) -> int:
    """Add this host to a run that was started on another: run workers for it here until it ends.

    The run's token, which `brim train --listen` prints, comes from the environment variable
    BRIM_TOKEN or from a file: other users of this host could read it on a command line.

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
