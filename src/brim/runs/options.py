"""The options that `brim train` and `brim run` share: their words, their types, and the spec they
make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from brim.domain.checkpointing import Best, Interval
from brim.domain.faults import parse_faults
from brim.domain.job import (
    DEVICES,
    EMBEDDINGS,
    ON_NAN,
    START_METHODS,
    TRANSPORTS,
    JobSpec,
    WorkerRange,
    fewest_micro_batches,
)
from brim.domain.quantities import parse_bytes, parse_duration
from brim.errors import SpecError, did_you_mean
from brim.storage.places import absolute

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_AUTO = "auto"  # --micro-batches


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """A value read by one of our own parsers, which raise SpecError with the option's name.

    Args:
        name: metavar in help texts.
        parse: (text, field) -> value.
    """

    def __init__(self, name: str, parse: Callable[[str, str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return self._parse(value, _field(param, ctx))


def _field(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The option as its user gave it, naming the environment variable where it came from there."""
    if param is None or param.name is None:
        return "value"
    field = max(param.opts, key=len) if isinstance(param, click.Option) else param.name.upper()
    if ctx and ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT:
        return f"{field} (from {param.envvar})"
    return field


def whole(*, least: int) -> click.ParamType[Any]:
    """A whole number from `least`."""

    def parse(text: str, field: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise SpecError(
                field,
                got=repr(text),
                need=f"a whole number from {least}",
                hint=f"{field.split()[0]} {max(least, 1)}",
            )
        return number

    return _Parsed("N", parse)


def _number(text: str, field: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(
            field, got=repr(text), need="a number", hint=f"{field.split()[0]} 1.0"
        ) from None


def choice(known: tuple[str, ...]) -> click.ParamType[Any]:
    """One of a few words."""

    def parse(text: str, field: str) -> str:
        if text not in known:
            raise SpecError(
                field,
                got=repr(text),
                need="one of " + ", ".join(known),
                hint=did_you_mean(text, known),
            )
        return text

    return _Choice("|".join(known), parse, known)


class _Choice(_Parsed):
    """One of a few words, which shells complete."""

    def __init__(self, name: str, parse: Callable[[str, str], Any], known: tuple[str, ...]) -> None:
        super().__init__(name, parse)
        self._known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self._known if word.startswith(incomplete)]


def _address(text: str, field: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise SpecError(
            field,
            got=repr(text),
            need="HOST:PORT with a port from 0 to 65535",
            hint=f"{field.split()[0]} 0.0.0.0:0 lets the system choose a port".removeprefix(
                "MASTER_ADDRESS "
            ),
        )
    return text


def _duration_or_never(text: str, field: str) -> float | None:
    return None if text.strip() in ("none", "0") else parse_duration(text, field=field)


def _size_or_none(text: str, field: str) -> int | None:
    return None if text.strip() == "none" else parse_bytes(text, field=field)


def _number_of_parts(text: str, field: str) -> int | str:
    if text == _AUTO or (text.isascii() and text.isdigit() and int(text)):
        return text if text == _AUTO else int(text)
    name = field.split()[0]
    raise SpecError(
        field,
        got=repr(text),
        need=f"a whole number from 1, or {_AUTO}",
        hint=f"{name} 8, or {name} {_AUTO}",
    )


ADDRESS = _Parsed("HOST:PORT", _address)
_DURATION = _Parsed("DURATION", lambda text, field: parse_duration(text, field=field))
_LIMIT = _Parsed("DURATION|none", lambda text, field: _duration_or_never(text, field))
_SIZE = _Parsed("SIZE", lambda text, field: parse_bytes(text, field=field))
_SIZE_OR_NONE = _Parsed("SIZE|none", lambda text, field: _size_or_none(text, field))
_INTERVAL = _Parsed("STEPS|DURATION", lambda text, field: Interval.parse(text, field=field))
_BEST = _Parsed("METRIC[:max|:min]", lambda text, field: Best.parse(text, field=field))
WORKERS = _Parsed("N|MIN:MAX", lambda text, field: WorkerRange.parse(text, field=field))
_PARTS = _Parsed(f"N|{_AUTO}", _number_of_parts)
FAULTS = _Parsed("TEXT", lambda text, _: parse_faults(text))


def option(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """`click.option` that can also be given as BRIM_<NAME> (flag > environment > default)."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    attributes.setdefault(
        "envvar", "BRIM_" + long.removeprefix("--").removeprefix("no-").upper().replace("-", "_")
    )
    return click.option(*names, **attributes)


# (names, attributes), in the order of the help text.
_JOB_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--set", "parameters"),
        {
            "multiple": True,
            "metavar": "NAME=VALUE",
            "envvar": None,
            "help": "A parameter that the file reads with brim.param; may be repeated.",
        },
    ),
    (
        ("--env",),
        {
            "multiple": True,
            "metavar": "NAME[=VALUE]",
            "envvar": None,
            "help": "An environment variable for the workers, by name alone as it is here; kept in "
            "the run's records.",
        },
    ),
    (
        ("--workers",),
        {
            "type": WORKERS,
            "default": "1",
            "help": "How many workers: 4, or 1:4 to start with 1 and grow to 4. The result is the "
            "same.",
        },
    ),
    (
        ("--ps", "servers"),
        {
            "type": whole(least=0),
            "default": 0,
            "help": "How many servers: processes beside the workers that own embeddings trained by "
            "rows. Their CPU "
            "time is what updates cost; where they live on, no worker's death loses a step.",
        },
    ),
    (
        ("--epochs",),
        {
            "type": whole(least=1),
            "help": "Passes over the training data. [default: 1, or as a script says]",
        },
    ),
    (
        ("--global-batch-size",),
        {
            "type": whole(least=1),
            "help": "Samples per step, at any number of workers. [default: 512, or as a script "
            "says]",
        },
    ),
    (
        ("--micro-batches",),
        {
            "type": _PARTS,
            "help": "How many parts a step is computed in; auto: as few as the largest of "
            "--workers needs. "
            "[default: 8, or more for more workers]",
            "show_default": False,
        },
    ),
    (
        ("--seed",),
        {
            "type": whole(least=0),
            "default": 0,
            "help": "Seeds all that is random: the order of the data, dropout.",
        },
    ),
    (
        ("--run-dir",),
        {
            "type": click.Path(),
            "metavar": "DIR",
            "help": "Where to write the run's records. [default: runs/FILE-DATE]",
        },
    ),
    (
        ("--resume",),
        {
            "is_flag": True,
            "help": "Continue the run in --run-dir, or the latest, from its last checkpoint.",
        },
    ),
    (
        ("--faults",),
        {
            "type": FAULTS,
            "default": "",
            "show_default": False,
            "help": 'Things to break on purpose: "kill rank 1 at step 40; add 2 at step 60".',
        },
    ),
    (
        ("--exact/--no-exact",),
        {
            "default": True,
            "help": "Compute the same weights, bit for bit, at any number of workers; --no-exact "
            "is somewhat faster.",
        },
    ),
    (
        ("--clip-norm",),
        {
            "type": _Parsed("X", _number),
            "help": "Clip the gradient's 2-norm to this. [default: no clipping]",
        },
    ),
    (
        ("--on-nan",),
        {
            "type": choice(ON_NAN),
            "metavar": "|".join(ON_NAN),
            "default": "warn",
            "help": "Where a loss is not a number: train on, skip the update, or stop the run.",
        },
    ),
    (("--threads",), {"type": whole(least=1), "default": 1, "help": "Torch threads per worker."}),
    (
        ("--loaders",),
        {
            "type": whole(least=0),
            "help": "Processes per host that read data beside the step. [default: as a DataLoader "
            "says, else 0]",
            "show_default": False,
        },
    ),
    (
        ("--checkpoint-every",),
        {
            "type": _INTERVAL,
            "default": "0",
            "help": "Steps (50) or time (30s) between checkpoints; 0: after each epoch, and every "
            "5 minutes.",
        },
    ),
    (
        ("--checkpoints",),
        {
            "metavar": "PATH|URL",
            "default": "",
            "show_default": False,
            "help": "Where to write checkpoints: a path, or s3://bucket/run. [default: in the "
            "run's directory]",
        },
    ),
    (
        ("--keep",),
        {
            "type": whole(least=1),
            "default": 2,
            "help": "How many of the newest checkpoints to keep.",
        },
    ),
    (
        ("--keep-best",),
        {
            "type": _BEST,
            "help": "Keep the checkpoint with the best metric too: auc, or log_loss:min where "
            "lower is better.",
        },
    ),
    (
        ("--heartbeat-timeout",),
        {
            "type": _DURATION,
            "default": "3s",
            "help": "Silence after which a worker that is stopped is lost: 500ms, 3s, 1m.",
        },
    ),
    (
        ("--hang-timeout",),
        {
            "type": _LIMIT,
            "default": "30m",
            "help": "Time without progress after which a worker that hangs is killed; none: never.",
        },
    ),
    (
        ("--memory",),
        {
            "type": _SIZE_OR_NONE,
            "default": "none",
            "help": "Memory that a worker may have, with what it starts: 4GiB, 500MiB; one with "
            "more is replaced.",
        },
    ),
    (
        ("--log-limit",),
        {
            "type": _SIZE,
            "default": "256MiB",
            "help": "How much of what the processes print is kept on each host: the newest of "
            "every log.",
        },
    ),
    (
        ("--spares",),
        {
            "type": whole(least=0),
            "default": 1,
            "help": "Warm workers kept ready to replace a lost one.",
        },
    ),
    (
        ("--start-method",),
        {
            "type": choice(START_METHODS),
            "metavar": "|".join(START_METHODS),
            "default": "auto",
            "help": "fork workers from a process that has everything loaded, or start (spawn) each "
            "anew.",
        },
    ),
    (
        ("--transport",),
        {
            "type": choice(TRANSPORTS),
            "metavar": "|".join(TRANSPORTS),
            "default": "auto",
            "help": "auto: shared memory and TCP; distributed: torch.distributed (NCCL).",
        },
    ),
    (
        ("--device",),
        {
            "type": choice(DEVICES),
            "metavar": "|".join(DEVICES),
            "default": "auto",
            "help": "Where to compute.",
        },
    ),
    (
        ("--embeddings",),
        {
            "type": choice(EMBEDDINGS),
            "metavar": "|".join(EMBEDDINGS),
            "default": "auto",
            "help": "auto: train large embeddings by the rows in use, where the result stays the "
            "same.",
        },
    ),
    (
        ("--delay",),
        {
            "type": whole(least=0),
            "default": 0,
            "metavar": "STEPS",
            "help": "How many steps late embeddings that are trained by rows change. The result "
            "depends on it, "
            "and not on the workers; it costs quality.",
        },
    ),
    (
        ("--async", "asynchronous"),
        {
            "type": whole(least=0),
            "metavar": "K",
            "help": "Have each worker apply batches by itself, at most K ahead of the slowest: "
            "quicker where workers "
            "are uneven, but the result depends on timing. [default: all workers compute each step "
            "together]",
            "show_default": False,
        },
    ),
    (
        ("--listen",),
        {"type": ADDRESS, "help": "Address at which other hosts can join. [default: none can]"},
    ),
    (
        ("--agents",),
        {
            "type": whole(least=1),
            "default": 1,
            "help": "How many hosts to wait for before the first step.",
        },
    ),
    (
        ("--json", "as_json"),
        {"is_flag": True, "help": "Print the summary as one JSON object on stdout."},
    ),
)


def job_options(function: Decorated) -> Decorated:
    """Give a verb the options that describe a job."""
    return job_options_but()(function)


def job_options_but(*left_out: str) -> Callable[[Decorated], Decorated]:
    """Give a verb the options that describe a job, without those that are named."""

    def give(function: Decorated) -> Decorated:
        for names, attributes in reversed(_JOB_OPTIONS):
            if _value_name(names) not in left_out:
                function = option(*names, **{"show_default": True, **attributes})(function)
        return function

    return give


def some_job_options(**defaults: Any) -> Callable[[Decorated], Decorated]:
    """Give a verb those of the options that are named, with these defaults."""

    def give(function: Decorated) -> Decorated:
        for names, attributes in reversed(_JOB_OPTIONS):
            name = _value_name(names)
            if name in defaults:
                default = {"default": defaults[name]}
                function = option(*names, **{"show_default": True, **attributes, **default})(
                    function
                )
        return function

    return give


def _value_name(names: tuple[str, ...]) -> str:
    return names[-1].partition("/")[0].removeprefix("--").replace("-", "_")


def given(ctx: click.Context) -> set[str]:
    """Names of the values that came from the command line or the environment,
    not from a default.
    """
    return {
        name
        for name in ctx.params
        if ctx.get_parameter_source(name)
        in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    }


def parse_parameters(texts: tuple[str, ...]) -> dict[str, str]:
    """`("path=x.csv",)` as a dict; the value is everything after the first `=`.

    Raises:
        SpecError: no `=`, or a name that comes twice.

    >>> parse_parameters(("path=a=b.csv",))
    {'path': 'a=b.csv'}
    """
    parameters: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SpecError(
                "--set", got=repr(text), need="NAME=VALUE", hint="--set learning_rate=0.01"
            )
        if name in parameters:
            raise SpecError(
                f"--set {name}",
                got=f"{parameters[name]!r} and {value!r}",
                need="one value",
                hint="keep one",
            )
        parameters[name] = value
    return parameters


def parse_env(texts: tuple[str, ...], here: Mapping[str, str]) -> dict[str, str]:
    """`("A=1", "B")` as a dict; a name alone has the value that it has in `here`.

    Raises:
        SpecError: a name alone that has none.

    >>> parse_env(("A=1", "B"), {"B": "x=y"})
    {'A': '1', 'B': 'x=y'}
    """
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in here:
            raise SpecError(
                f"--env {name}",
                got="a variable that is not set here",
                need="NAME=VALUE, or the NAME of one that is",
                hint=f"--env {name}=VALUE",
            )
        variables[name] = value if equals else here[name]
    return variables


LOGGERS = option(
    "--logger",
    "loggers",
    multiple=True,
    metavar="NAME",
    help="Send each step to tensorboard, mlflow, wandb or FILE.py:NAME; may be repeated.",
)

STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    envvar="BRIM_HOME",
    metavar="DIR",
    help="Where the scheduler keeps its state. [default: ~/.local/state/brim]",
)


def _parts(chosen: int | str | None, workers: WorkerRange) -> int:
    """As `JobSpec.micro_batches` has it: what is recorded is a number, whoever chose it."""
    return fewest_micro_batches(workers) if chosen == _AUTO else int(chosen or 0)


def build_spec(
    values: Mapping[str, Any], *, file: str = "", command: tuple[str, ...] = ()
) -> JobSpec:
    """The spec that the options describe.

    Raises:
        SpecError: values that are wrong by themselves or beside each other.
    """
    own = (
        "as_json", "run_dir", "resume", "listen", "parameters", "env", "micro_batches", "epochs",
        "global_batch_size",
    )  # fmt: skip
    fields = {name: value for name, value in values.items() if name not in own}
    fields["checkpoints"] = absolute(values["checkpoints"])
    return JobSpec(
        file=file,
        command=command,
        directory=os.getcwd(),
        parameters=parse_parameters(values["parameters"]),
        env=parse_env(values["env"], os.environ),
        micro_batches=_parts(values["micro_batches"], values["workers"]),
        epochs=values["epochs"] or 0,
        global_batch_size=values["global_batch_size"] or 0,
        **fields,
    )
