"""Jobs to hand to a scheduler: a training file, a command, or a job.yaml that names the options."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brim.domain.quantities import parse_duration
from brim.domain.submission import FARTHEST_DEADLINE, Submission, fingerprint, parse_priority
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.runs import completing
from brim.runs.options import build_spec, option, scheduled_options
from brim.runs.starting import bundle_of, name_of, notes_on_python, require_train_extra
from brim.runs.training_file import check_command, check_training_file

if TYPE_CHECKING:
    from brim.client import Client
    from brim.wire.cluster import JobView, Submit


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_TO_JUDGE = 3.0  # seconds to hear whether a deadline is promised


def submission(function: Decorated) -> Decorated:
    """Give a command the argument FILE and the options that describe a job."""
    for decorate in reversed(
        (
            click.argument(
                "file",
                metavar="FILE|COMMAND...",
                nargs=-1,
                required=True,
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
        )
    ):
        function = decorate(function)
    return function


def _from_file(ctx: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Let a job.yaml add to the options."""
    if ctx.resilient_parsing or len(words) != 1 or Path(words[0]).suffix not in (".yaml", ".yml"):
        return words
    file = words[0]
    from brim.storage.yaml_file import read_yaml

    content = read_yaml(Path(file), words=True)
    if not isinstance(content, dict):
        raise SpecError(file, got=repr(content), need="NAME: VALUE lines", hint="file: flights.py")
    settings = {
        word: param.name
        for param in ctx.command.params
        if param.name not in ("file", "state", None)
        for word in (max(param.opts, key=len).removeprefix("--").replace("-", "_"), param.name)
    }
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = settings.get(key.replace("-", "_"))
        if key in ("file", "command"):
            ctx.meta[f"brim.{key}"] = value
        elif name is None:
            hint = did_you_mean(key, [*settings, "file", "command"])
            raise SpecError(
                f"{file}: {key}", got=repr(key), need="an option of brim submit", hint=hint
            )
        else:
            values[name] = (
                [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
            )
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return words


def request_of(
    ctx: click.Context,
    words: tuple[str, ...],
    values: Mapping[str, Any],
    *,
    warn: Callable[[str], None],
) -> Submit:
    """Return the request by the argument and options of `submission`, with the job's code.

    Args:
        ctx: of the command that they were parsed for.
        words: a file, or with `restart` a program and its arguments.
        values: of its options.
        warn: is told what the job visibly needs and is not sent with it.

    Raises:
        SpecError: something of it is wrong.
    """
    from brim.host.clock import SystemClock
    from brim.storage.bundles import digest_of
    from brim.wire.cluster import Submit

    require_train_extra()
    command = ctx.meta.get("brim.command", ())
    command = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    if values["restart"] and not ctx.meta.keys() & {"brim.command", "brim.file"}:
        command = words
    elif len(words) > 1:
        raise SpecError(
            "FILE",
            got=" ".join(words),
            need="one training file or job.yaml, or a command with --restart",
            hint=f"brim submit --restart -- {shlex.join(words)}",
        )
    source = "" if command else ctx.meta.get("brim.file", words[0])
    if command:
        check_command(command)
    else:
        check_training_file(Path(source))
    # A scheduler starts another worker where one is lost: none waits for that.
    spec = build_spec({**values, "spares": 0}, file=source, command=command)
    for note in notes_on_python(spec):
        warn(note)
    bundle = bundle_of(spec, warn=warn)
    spec = replace(spec, bundle=digest_of(bundle) if bundle else "")
    submission = Submission(
        spec=spec,
        fingerprint=fingerprint(spec, bundle or _programs(command)),
        deadline=parse_deadline(values["deadline"], now=SystemClock().wall()),
        tenant=values["tenant"],
        priority=parse_priority(values["priority"]),
    )
    return Submit(
        submission=submission, name=Path(name_of(spec)).stem, key=values["key"], bundle=bundle
    )


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


def parse_deadline(text: str | None, *, now: float) -> float | None:
    """Read `2h` from now, or a date and time of this host's clock; seconds since 1970.

    Args:
        now: by this host's clock.

    Raises:
        SpecError: neither, or a time that has passed, or is more than 10 years away.

    >>> parse_deadline("1h30m", now=100.0)
    5500.0
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        moment = datetime.fromisoformat(text).timestamp()
        if moment <= now:
            raise SpecError(
                "--deadline",
                got=f"{text!r}, which has passed",
                need="a time in the future",
                hint="--deadline 2h",
            )
        return _check_near(text, moment, now)
    try:
        seconds = parse_duration(text, field="--deadline")
    except SpecError:
        need = "a duration or a date and time"
        raise SpecError(
            "--deadline", got=repr(text), need=need, hint="--deadline 2h, or 2026-12-01T08:00"
        ) from None
    return _check_near(text, now + seconds, now)


def _check_near(text: str, moment: float, now: float) -> float:
    if moment > now + FARTHEST_DEADLINE:
        raise SpecError(
            "--deadline",
            got=repr(text),
            need="a time within 10 years",
            hint="leave it out for none",
        )
    return moment
