"""Jobs to hand to a scheduler: a training file, a command, or a job.yaml that names the options."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brim.domain.channels import parse_subscription
from brim.domain.conditions import MOST_RETRIES, Conditions, parse_array, parse_predecessor
from brim.domain.names import check_name
from brim.domain.options import whole
from brim.domain.quantities import parse_duration
from brim.domain.submission import (
    FARTHEST_DEADLINE,
    Submission,
    check_conditions,
    check_terminal,
    fingerprint,
    parse_priority,
)
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.runs import completing
from brim.runs.levels import level_of, leveled
from brim.runs.options import COMMAND, build_spec, option, scheduled_options
from brim.runs.starting import (
    bundle_of,
    name_of,
    notes_on_python,
    notes_on_script,
    require_train_extra,
)
from brim.runs.training_file import check_command, check_training_file

if TYPE_CHECKING:
    from brim.client import Client
    from brim.wire.cluster import JobView, Submit


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_FILE = "brim.file"  # of a context, as COMMAND: the training file that a job.yaml names
_TO_JUDGE = 3.0  # seconds to hear whether a deadline is promised


def submission(function: Decorated) -> Decorated:
    """Give a command the argument FILE and the options that describe a job."""
    for decorate in reversed(
        (
            click.argument(
                "file",
                metavar="FILE | -- COMMAND...",
                nargs=-1,
                type=click.UNPROCESSED,
                is_eager=True,
                callback=_from_file,
                shell_complete=completing.files,
            ),
            scheduled_options,
            option(
                "--deadline",
                metavar="WHEN",
                help="Ask for the job to be done by then: 2h from now, or 2026-12-01T08:00.",
            ),
            option(
                "--tenant", default="default", show_default=True, help="Use this tenant's quota."
            ),
            option(
                "--priority",
                default="preemptible",
                show_default=True,
                help="Choose the priority: online, preserved or preemptible.",
            ),
            option(
                "--key",
                metavar="TEXT",
                default="",
                help="Name this submission. Submitting with the same key again gives the same "
                "job, not another.",
            ),
            option(
                "--name",
                metavar="TEXT",
                default="",
                help="Begin the job's id with this. [default: the name of the file or program]",
            ),
            option(
                "--after",
                metavar="JOB[:ok]",
                multiple=True,
                help="Begin when this job has ended; with :ok, only if it is done, else cancel this "
                "one. A job of an array stands for all of it. May be repeated.",
            ),
            option(
                "--at",
                metavar="WHEN",
                help="Begin no earlier than this: 2h from now, or 2026-12-01T08:00.",
            ),
            option(
                "--array",
                metavar="INDICES[%N]",
                help="Submit a job for each index, which it finds in $ARRAY_INDEX, and run N at "
                "a time: 1-100%4, or 1,5,9. [default: one job]",
            ),
            option(
                "--retries",
                metavar="N",
                default="0",
                show_default=True,
                help="After a failure, start the job again from its last checkpoint, at most this "
                "many times.",
            ),
            option(
                "--notify",
                metavar="CHANNEL[:EVENTS]",
                multiple=True,
                help="Report the job on this channel of cluster.yaml: all of promised, at-risk, done, "
                "failed and preempted, or some, as in mail:done,failed. May be repeated.",
            ),
        )
    ):
        function = decorate(function)
    return function


def _is_job_file(words: tuple[str, ...]) -> bool:
    return len(words) == 1 and Path(words[0]).suffix in (".yaml", ".yml")


def _from_file(ctx: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Let a job.yaml add to the options."""
    if ctx.resilient_parsing or not _is_job_file(words):
        return words
    file = words[0]
    from brim.storage.yaml_file import read_yaml

    content = read_yaml(Path(file), words=True)
    if not isinstance(content, dict):
        raise SpecError(file, got=repr(content), need="NAME: VALUE lines", hint="file: flights.py")
    settings = {
        word: param
        for param in ctx.command.params
        if param.name not in ("file", "state", None)
        for word in (max(param.opts, key=len).removeprefix("--").replace("-", "_"), param.name)
    }
    values: dict[str, Any] = {}
    for key, value in content.items():
        param = settings.get(key.replace("-", "_"))
        if key in ("file", "command"):
            ctx.meta.setdefault(COMMAND if key == "command" else _FILE, value)
        elif param is None:
            hint = did_you_mean(key, [*settings, "file", "command"])
            raise SpecError(
                f"{file}: {key}", got=repr(key), need="an option of brim submit", hint=hint
            )
        else:
            values[str(param.name)] = _value_of(f"{file}: {key}", value, param)
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return words


def _value_of(field: str, value: Any, param: click.Parameter) -> Any:
    """Return the value of a key as the command line has it."""
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    if param.multiple:
        return value if isinstance(value, list | None) else [value]
    if isinstance(value, list):
        raise SpecError(
            field, got=f"a list of {len(value)}", need="one value", hint=param.metavar or ""
        )
    return value


def request_of(
    ctx: click.Context,
    words: tuple[str, ...],
    values: Mapping[str, Any],
    *,
    say_level: Callable[[str], object],
    warn: Callable[[str], None],
    tty: bool = False,
) -> Submit:
    """Return the request by the argument and options of `submission`, with the job's code.

    Args:
        ctx: of the command that they were parsed for.
        words: a file, or with `restart` a program and its arguments; of a command that was given
            otherwise, `ctx.meta` has them.
        values: of its options.
        say_level: is told the level of a command.
        warn: is told what the job visibly needs and is not sent with it.
        tty: its command is used at a terminal, like the one of this process.

    Raises:
        SpecError: something of it is wrong.
    """
    from brim.host.clock import SystemClock
    from brim.storage.bundles import digest_of
    from brim.wire.cluster import Submit

    require_train_extra()
    source, command = _work_of(ctx, words, is_restart=bool(values["restart"]))
    if tty and not command:
        need = "a command behind --"
        raise SpecError("--tty", got=source, need=need, hint="brim submit --tty -- bash")
    if command:
        check_command(command)
        level = level_of(command, True if tty and values["restart"] is None else values["restart"])
        values = leveled(values, level)
    else:
        _check_file(source)
    # A scheduler starts another worker where one is lost: none waits for that.
    spec = build_spec({**values, "spares": 0}, file=source, command=command)
    if tty:
        spec = replace(spec, tty=True, env=_of_terminal() | spec.env)
    elif command:
        say_level(level.describe(spec))
    for note in level.warnings(spec) if command else ():
        warn(note)
    for note in (*notes_on_script(spec), *notes_on_python(spec)):
        warn(note)
    bundle = bundle_of(spec, warn=warn)
    spec = replace(spec, bundle=digest_of(bundle) if bundle else "")
    now = SystemClock().wall()
    array, limit = parse_array(values["array"]) if values["array"] else ((), 0)
    conditions = Conditions(
        predecessors=tuple(map(parse_predecessor, values["after"])),
        earliest=parse_moment(values["at"], now=now, field="--at") or 0.0,
        limit=limit,
    )
    submission = Submission(
        spec=spec,
        fingerprint=fingerprint(spec, bundle or _programs(command)),
        deadline=parse_moment(values["deadline"], now=now, field="--deadline"),
        tenant=values["tenant"],
        priority=parse_priority(values["priority"]),
        conditions=conditions,
        retries=whole(minimum=0, maximum=MOST_RETRIES).read(values["retries"], "--retries"),
        notify=tuple(map(parse_subscription, values["notify"])),
    )
    check_conditions(submission)
    check_terminal(submission, array)
    name = values["name"] or Path(name_of(spec)).stem
    check_name(name, field="--name", hint="--name nightly")
    return Submit(submission=submission, name=name, key=values["key"], bundle=bundle, array=array)


def _of_terminal() -> dict[str, str]:
    """Return the variables by which a program knows this terminal."""
    return {"TERM": os.environ["TERM"]} if os.environ.get("TERM") else {}


def _work_of(
    ctx: click.Context, words: tuple[str, ...], *, is_restart: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the training file of a job, or its command; the other one is empty.

    Args:
        is_restart: words without `--` are a command, too.

    Raises:
        SpecError: there is none, or more than one.
    """
    command = ctx.meta.get(COMMAND, ())
    command = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    file = str(ctx.meta.get(_FILE, ""))
    if words and not _is_job_file(words):
        if is_restart and not command:
            return "", words
        file = " ".join(words)
    if bool(file) != bool(command) and len(words) < 2:
        return file, command
    actual = f"{file} and a command" if file and command else " ".join(words) or "nothing"
    hint = shlex.join(command or words) if len(words) != 1 or command else "python train.py"
    raise SpecError(
        "FILE",
        got=actual,
        need="a training file, a job.yaml that names one, or a command behind --",
        hint=f"brim submit -- {hint or 'python train.py'}",
    )


def _check_file(source: str) -> None:
    """Check a training file.

    Raises:
        SpecError: it is none; a program may be meant.
    """
    try:
        check_training_file(Path(source), "submit")
    except SpecError as wrong:
        if Path(source).suffix == ".py":
            raise
        hint = f"for a command: brim submit -- {source}"
        raise SpecError(wrong.field, got=wrong.got, need=wrong.need, hint=hint) from None


def _programs(command: tuple[str, ...]) -> bytes:
    """The files that a command names, where none of them can be sent."""
    return b"".join(Path(word).read_bytes() for word in command if Path(word).is_file())


def hand_in(client: Client, request: Submit) -> JobView:
    """Submit a job and, where it has a deadline, hear for a moment whether that is promised.

    Raises:
        SpecError, EnvironmentFault: it was not taken in.
    """
    view = client.submit(request)
    if view.deadline is not None:
        # It is taken in, whatever happens now: a scheduler that dies has it in its book.
        with contextlib.suppress(EnvironmentFault):
            view = client.wait(view.job, until="judged", timeout=_TO_JUDGE)
    return view


def parse_moment(text: str | None, *, now: float, field: str) -> float | None:
    """Read `2h` from now, or a date and time of this host's clock; seconds since 1970.

    Args:
        text: what the user wrote; None: nothing.
        now: by this host's clock.
        field: the option that it was written in, for the message.

    Raises:
        SpecError: neither, or a time that has passed, or is more than 10 years away.

    >>> parse_moment("1h30m", now=100.0, field="--deadline")
    5500.0
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text).timestamp()
    except ValueError:
        moment = now + _duration(text, field)
    if moment <= now or moment > now + FARTHEST_DEADLINE:
        actual = repr(text) if moment > now else f"{text!r}, which has passed"
        need = "a time within 10 years" if moment > now else "a time in the future"
        raise SpecError(field, got=actual, need=need, hint=f"{field} 2h")
    return moment


def _duration(text: str, field: str) -> float:
    try:
        return parse_duration(text, field=field)
    except SpecError:
        need = "a duration or a date and time"
        hint = f"{field} 2h, or 2026-12-01T08:00"
        raise SpecError(field, got=repr(text), need=need, hint=hint) from None
