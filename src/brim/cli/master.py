"""`brim master`: lead a run from any host, without workers beside it."""

from __future__ import annotations

import secrets
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from brim.cli.agent import given_token, no_token
from brim.cli.shared.sections import SectionedCommand
from brim.domain.job import JobSpec
from brim.domain.options import DURATION, DURATION_OR_NEVER
from brim.errors import SpecError
from brim.host.process import exit_on_sigterm
from brim.loggers.named import check_loggers
from brim.runs import completing
from brim.runs.directories import RunDirectory, claim, holds_run, new_run_dir
from brim.runs.options import (
    HEARTBEAT,
    SUMMARY_FILE,
    build_spec,
    option,
    options_given,
    run_options,
)
from brim.runs.starting import make_ready, make_ready_anyhow
from brim.runs.training_file import check_training_file
from brim.runs.values import Value
from brim.storage.job_file import JOB_FILE, bundle_of, read_job
from brim.storage.ownership import check_ours

if TYPE_CHECKING:
    from brim.master.alone import LoneMaster

# what has a meaning without a FILE too
_WITHOUT_FILE = {
    "listen", "run_dir", "token_file", "patience", "heartbeat_file", "summary_file", "loggers",
}  # fmt: skip
_OF_A_JOB = {*_WITHOUT_FILE, "file", "auto_resume", "rejoin_timeout"}


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[FILE]", required=False, shell_complete=completing.files)
@option(
    "--token-file",
    type=click.File(),
    metavar="F",
    help="Read the run's token from this file; - is standard input. [default: BRIM_TOKEN; with FILE "
    "a new one]",
)
@option(
    "--patience",
    type=Value(DURATION),
    default="10m",
    show_default=True,
    help="Wait this long for an agent, at first and after all are gone.",
)
@option(
    "--auto-resume",
    is_flag=True,
    help="Begin the run, or continue it if it has begun: from --run-dir, from its agents' copies, or "
    "from its newest checkpoint.",
)
@option(
    "--rejoin-timeout",
    type=Value(DURATION_OR_NEVER),
    default="1m",
    show_default=True,
    help="With --auto-resume, wait this long for an agent that keeps a copy, before going back to "
    "the newest checkpoint; none where no agent is left.",
)
@HEARTBEAT
@SUMMARY_FILE
@run_options
@click.pass_context
def master(
    ctx: click.Context,
    /,
    file: str | None,
    token_file: TextIO | None,
    patience: float,
    auto_resume: bool,
    rejoin_timeout: float | None,
    heartbeat_file: Path | None,
    summary_file: Path | None,
    **values: Any,
) -> int:
    """Lead a run, with no workers on this host.

    With FILE it begins a run, with the options of brim train; hosts join it with brim agent. Without
    FILE it continues a run whose master, or its host, is gone: the agents keep copies of all that
    the master wrote, and call here if this is one of their addresses. Make sure that the other
    master is really gone: if it merely cannot be reached, two masters would lead two runs.

    With --auto-resume the same command does either, for a service or a pod that is started again
    after its host died. FILE may then be the job.json of a job, with its code.tar beside it. All
    processes of one start of a run have the same token: give another to the next start.

    SIGTERM hands the run over: it exits with status 0, and the workers continue as far as they can
    and wait for the next brim master. brim suspend pauses the run.

    \b
    brim master flights.py --listen 10.0.0.7:4000 --workers 8 --agents 3
    BRIM_TOKEN=8c1f… brim master --listen 10.0.0.8:4000
    BRIM_TOKEN=8c1f… brim agent 10.0.0.7:4000,10.0.0.8:4000       (on each host with workers)
    BRIM_TOKEN=8c1f… brim master flights.py --auto-resume --run-dir run --listen 10.0.0.7:4000
    """
    from brim.host.clock import wall
    from brim.master.alone import LoneMaster

    exit_on_sigterm()  # until it leads the run
    if not values["listen"]:
        raise SpecError(
            "--listen", got="nothing", need="an address for agents", hint="--listen 10.0.0.7:4000"
        )
    if (
        ctx.get_parameter_source("rejoin_timeout") is ParameterSource.COMMANDLINE
        and not auto_resume
    ):
        need = "a run that may have been begun: --auto-resume"
        raise SpecError("--rejoin-timeout", got="it alone", need=need, hint="add --auto-resume")
    token, fresh = given_token(token_file), None
    settings: dict[str, Any] = {"shows_token": not token, "heartbeat": heartbeat_file}
    settings["summary"] = summary_file
    settings["loggers"] = check_loggers(values["loggers"])
    if auto_resume:
        token = token or no_token("make one for each start of the run")
        beginning = _begin_anyhow(ctx, file, values, token=token, timeout=rejoin_timeout)
        if beginning is None:
            click.echo(f"brim: the run has ended (done): brim report {values['run_dir']}", err=True)
            return 0
        start_values, fresh = beginning
        settings, path = settings | start_values, Path(values["run_dir"])
    elif file is None:
        _check_given(ctx, _WITHOUT_FILE, need=_AS_BEGUN)
        token = token or no_token("it is the one that the run's agents have")
        path = Path(values["run_dir"] or new_run_dir("taken-over", wall()))
        if holds_run(path):
            check_ours(path, field="--run-dir")
        else:
            fresh = claim(path)
            path = fresh.path
        settings["spec"] = None
    else:
        ready = make_ready(values, options_given(ctx), file=file, has_workers=False)
        token = token or secrets.token_hex(16)
        settings["spec"], path, fresh = ready.spec, ready.run_dir, ready.fresh
    click.echo(f"brim: the run's directory is {path}", err=True)
    lone_master = LoneMaster(
        run_dir=path.absolute(),
        listen=values["listen"],
        token=token,
        patience=patience,
        **settings,
    )
    return _lead(lone_master, fresh)


def _lead(lone_master: LoneMaster, fresh: RunDirectory | None) -> int:
    from brim.master.alone import stand_alone
    from brim.master.records import JOURNAL

    try:
        return stand_alone(lone_master)
    finally:
        if fresh is not None and not (lone_master.run_dir / JOURNAL).exists():
            fresh.withdraw()  # no run has begun, or come, there


def _begin_anyhow(
    ctx: click.Context,
    file: str | None,
    values: dict[str, Any],
    *,
    token: str,
    timeout: float | None,
) -> tuple[dict[str, Any], RunDirectory | None] | None:
    """Return how a master with --auto-resume is started, and its directory if that was made for it.

    None where the run is done.

    Args:
        timeout: seconds that agents have which keep copies; None: there are none.
    """
    from brim.master.alone import has_begun

    for name, need, hint in (
        ("run_dir", "the same directory for each start", "--run-dir run"),
        ("file", "the training file of a run that has not begun", "brim master flights.py …"),
    ):
        if not (values | {"file": file})[name]:
            field = "FILE" if name == "file" else "--run-dir"
            raise SpecError(field, got="nothing", need=need, hint=hint)
    run_dir, rejoining = Path(values["run_dir"]), timeout or 0.0
    if has_begun(run_dir, token):
        check_ours(run_dir, field="--run-dir")
        return {"spec": None, "rejoining": rejoining}, None
    spec, code, typed = _job_of(ctx, Path(file or ""), values)
    ready = make_ready_anyhow(spec, run_dir, typed, code=code)
    if ready is None:
        return None
    start_values = {"spec": ready.spec, "rejoining": rejoining, "note": "; ".join(ready.notes)}
    return start_values, ready.fresh


def _job_of(
    ctx: click.Context, file: Path, values: dict[str, Any]
) -> tuple[JobSpec, bytes, set[str]]:
    """Return the spec of a job, its bundle if it has one, and the fields of the spec that count."""
    if file.name != JOB_FILE:
        check_training_file(file)
        return build_spec(values, file=str(file)), b"", options_given(ctx)
    _check_given(ctx, _OF_A_JOB, need=f"only options of this start: {file} has those of the job")
    # A kubelet's volume has links to links: whoever could put others there has the pod.
    folder = file.resolve().parent
    spec = read_job(folder)
    code = bundle_of(folder, spec.bundle) if spec.bundle else b""
    return spec, code, {field.name for field in fields(spec)} - {"faults"}


_AS_BEGUN = "only options of this start: the run keeps the options that it began with"


def _check_given(ctx: click.Context, allowed: set[str], *, need: str) -> None:
    """Raises SpecError where options are typed that say nothing here."""
    for name in ctx.params:
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in allowed or not typed:
            continue
        raise SpecError(
            f"--{name.replace('_', '-')}",
            got="an option of a new run",
            need=need,
            hint="leave it out, or begin a new run: brim master FILE.py …",
        )
