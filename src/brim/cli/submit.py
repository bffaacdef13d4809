"""`brim submit`: hand a job to the scheduler, or ask what would happen if one did."""

from __future__ import annotations

import contextlib
import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.clients import client_of
from brim.cli.follow import require_train_extra
from brim.cli.options import STATE, build_spec, job_options_but, option
from brim.cli.training_file import check_command, check_training_file
from brim.cli.usage import EXIT_DONE, EXIT_REFUSED
from brim.domain.quantities import parse_duration
from brim.domain.submission import Submission, fingerprint, parse_priority
from brim.errors import EnvironmentFault, SpecError, did_you_mean

if TYPE_CHECKING:
    from brim.wire.cluster import Forecast, JobView, Submit

__all__ = ["parse_deadline", "submit"]

_TO_JUDGE = 3.0  # seconds that the command waits to hear whether a deadline is promised
_LEFT_OUT = ("run_dir", "resume", "listen", "agents", "spares", "as_json")
_OWN_FIELDS = {"listen": None, "agents": 1, "spares": 0, "run_dir": None, "resume": False, "as_json": False}


def _from_file(ctx: click.Context, _: click.Parameter, file: str) -> str:
    """Let a job.yaml say what the command line does not."""
    if Path(file).suffix not in (".yaml", ".yml"):
        return file
    from brim.storage.cluster_file import read_yaml

    content = read_yaml(Path(file), words=True)
    if not isinstance(content, dict):
        raise SpecError(file, got=repr(content), need="NAME: VALUE lines", hint="file: flights.py")
    known = {param.name: param for param in ctx.command.params if param.name not in ("file", "state", None)}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = {"set": "parameters"}.get(key, key.replace("-", "_"))
        if name in ("file", "command"):
            ctx.meta[f"brim.{name}"] = value
        elif name not in known:
            hint = did_you_mean(key, [*known, "file", "command", "set"])
            raise SpecError(f"{file}: {key}", got=repr(key), need="an option of brim submit", hint=hint)
        else:
            values[name] = [f"{k}={v}" for k, v in value.items()] if name == "parameters" else value
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return file


@click.command()
@click.argument("file", metavar="FILE", is_eager=True, callback=_from_file)
@job_options_but(*_LEFT_OUT)
@option("--deadline", metavar="WHEN", help="When it must be done: 2h from now, or 2026-12-01T08:00.")
@option("--tenant", default="default", show_default=True, help="Whose quota it uses.")
@option("--priority", default="preemptible", show_default=True, help="online, preserved or preemptible.")
@option("--key", metavar="TEXT", default="", help="Submitted again with the same key it is the same job.")
@option("--wait", is_flag=True, help="Wait for its end; the exit code is its own.")
@option("--dry-run", is_flag=True, help="Only say what would happen.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def submit(file: str, state: Path | None, **values: Any) -> int:
    """Hand the job of FILE to the scheduler: a training file, or a job.yaml with the same words as the options.

    \b
    brim submit flights.py --workers 1:4 --deadline 2h
    brim submit job.yaml --dry-run
    brim submit flights.py --key nightly-2026-11-21 --wait      (as often as you like: it is one job)

    Exit code 3: the policy did not promise the deadline.
    """
    request = _request(file, values)
    client = client_of(state)
    if values["dry_run"]:
        return _show_forecast(client.forecast(request), request, as_json=values["as_json"])
    view = client.submit(request)
    if view.deadline is not None:
        # It is taken in, whatever happens now: a scheduler that dies has it in its book.
        with contextlib.suppress(EnvironmentFault):
            view = client.wait(view.job, until="judged", timeout=_TO_JUDGE)
    if values["wait"]:
        from brim.cli.jobs import end_of, wait_for

        click.echo(f"{view.job}: submitted", err=True)
        _say_verdict(view)
        return end_of(wait_for(client, view.job), as_json=values["as_json"])
    return _show_submitted(view, as_json=values["as_json"])


def _request(file: str, values: dict[str, Any]) -> Submit:
    """What the options say.

    Raises:
        SpecError: something of it is wrong.
    """
    from brim.clock import SystemClock
    from brim.wire.cluster import Submit

    require_train_extra()
    ctx = click.get_current_context()
    command = ctx.meta.get("brim.command", ())
    command = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    source = "" if command else ctx.meta.get("brim.file", file)
    if command:
        check_command(command)
        source_bytes = b"".join(Path(word).read_bytes() for word in command if Path(word).is_file())
    else:
        check_training_file(Path(source))
        source_bytes = Path(source).read_bytes()
    own = ("deadline", "tenant", "priority", "key", "wait", "dry_run")
    options = {name: value for name, value in values.items() if name not in own}
    spec = build_spec({**options, **_OWN_FIELDS}, file=source, command=command)
    submission = Submission(
        spec=spec,
        fingerprint=fingerprint(spec, source_bytes),
        deadline=parse_deadline(values["deadline"], now=SystemClock().wall()),
        tenant=values["tenant"],
        priority=parse_priority(values["priority"]),
    )
    named = source or next((word for word in command if word.endswith(".py")), command[0])
    return Submit(submission=submission, name=Path(named).stem, key=values["key"])


def parse_deadline(text: str | None, *, now: float) -> float | None:
    """Read `2h` from now, or a date and time of this host's clock; seconds since 1970.

    Raises:
        SpecError: neither, or a time that has passed.

    >>> parse_deadline("1h30m", now=100.0)
    5500.0
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(text).timestamp()
        if when <= now:
            raise SpecError(
                "--deadline", got=f"{text!r}, which has passed", need="a time to come", hint="--deadline 2h"
            )
        return when
    try:
        return now + parse_duration(text, field="--deadline")
    except SpecError:
        need = "a duration or a date and time"
        raise SpecError(
            "--deadline", got=repr(text), need=need, hint="--deadline 2h, or 2026-12-01T08:00"
        ) from None


def _show_submitted(view: JobView, *, as_json: bool) -> int:
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(view)))
    else:
        click.echo(view.job)
    _say_verdict(view)
    return EXIT_REFUSED if view.was_refused else EXIT_DONE


def _say_verdict(view: JobView) -> None:
    """What the policy says of its deadline, with the numbers."""
    if view.was_refused:
        goes_on = "" if view.has_ended else f"; it runs on what others leave (brim cancel {view.job} ends it)"
        click.echo(
            f"{view.job}: no promise ({view.reason}): {view.detail}{_earliest(view.earliest)}{goes_on}",
            err=True,
        )
    elif view.promised:
        click.echo(f"{view.job}: promised ({view.reason}): {view.detail}", err=True)
    elif view.deadline is not None and not view.judged:
        text = "its steps are measured before its deadline can be promised"
        click.echo(f"{view.job}: {text}: brim status {view.job}", err=True)


def _show_forecast(forecast: Forecast, request: Submit, *, as_json: bool) -> int:
    from brim.cli.times import clock_time

    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(forecast)))
    else:
        word = {True: "promised", False: "not promised", None: "accepted"}[forecast.admitted]
        reason = f" ({forecast.reason})" if forecast.reason else ""
        click.echo(f"{word}{reason}: {forecast.detail}{_earliest(forecast.earliest)}")
        click.echo(f"workers now: {forecast.workers}")
        for job, workers in forecast.takes.items():
            click.echo(f"  {workers} of {job}")
        if forecast.finish is not None:
            click.echo(f"finish: {clock_time(forecast.finish)}")
    return (
        EXIT_REFUSED if forecast.admitted is False and request.submission.deadline is not None else EXIT_DONE
    )


def _earliest(when: float | None) -> str:
    from brim.cli.times import clock_time

    return f"; the earliest that could be promised: {clock_time(when)}" if when is not None else ""
