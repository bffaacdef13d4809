"""Options of the command line.

They are those of `JobSpec` as click has them, the few that are no part of a spec, and the spec that
they make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from brim.domain.job import AUTOMATIC, OPTIONS, JobSpec, fewest_micro_batches
from brim.domain.options import PORTS_VARIABLE, Kind, read_ports
from brim.domain.stability import mark_of_option
from brim.domain.submission import check_spec
from brim.errors import SpecError
from brim.runs.values import Value
from brim.storage.file_stores import absolute

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _read_address(text: str, option: str) -> str:
    host, colon, port = text.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        hint = f"{option.split()[0]} [{host}]:{port}".removeprefix("MASTER_ADDRESS ")
        raise SpecError(option, got=repr(text), need="an IPv6 address in brackets", hint=hint)
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        hint = f"{option.split()[0]} 0.0.0.0:0 lets the system choose a port"
        raise SpecError(
            option,
            got=repr(text),
            need="HOST:PORT with a port from 0 to 65535",
            hint=hint.removeprefix("MASTER_ADDRESS "),
        )
    from brim.wire.listening import is_of_one_link

    if is_of_one_link(host.strip("[]")):
        raise SpecError(
            option.split()[0],
            got=f"{text!r}, an address of one link, for which each host has a name of its own",
            need="one that all hosts call this host by",
            hint="ip -6 address show scope global; where there is none: ip address add fd00::7/64 dev "
            "eth0",
        )
    return text


def _read_addresses(text: str, option: str) -> str:
    return ",".join(_read_address(address.strip(), option) for address in text.split(","))


ADDRESSES = Value(Kind(metavar="HOST:PORT[,HOST:PORT...]", read=_read_addresses))
ADDRESS = Value(Kind(metavar="HOST:PORT", read=_read_address))
WORKERS = Value(OPTIONS["workers"].kind)
INSECURE = click.option(  # typed, and no variable: it would be forgotten, and inherited
    "--insecure",
    is_flag=True,
    help="Listen for clients of other hosts by plain HTTP, behind a proxy or on a network that you "
    "trust.",
)


def check_insecure(listen: str, *, insecure: bool) -> None:
    """Raises SpecError where nothing would be encrypted anyway."""
    from brim.wire.listening import is_loopback, split_address

    if insecure and is_loopback(split_address(listen)[0]):
        actual = f"--listen {listen}, which no other host can reach: nothing is encrypted there"
        need = "--listen with an address that other hosts reach"
        raise SpecError("--insecure", got=actual, need=need, hint="leave --insecure out")


def option(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """`click.option` that can also be given as BRIM_<NAME> (flag > environment > default).

    Its help begins with the mark of its stability.
    """
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    attributes.setdefault(
        "envvar", "BRIM_" + long.removeprefix("--").removeprefix("no-").upper().replace("-", "_")
    )
    if mark := mark_of_option(long):
        attributes["help"] = f"{mark} {attributes['help']}"
    return click.option(*names, **attributes)


def job_option(name: str, **changes: Any) -> Callable[[Decorated], Decorated]:
    """The option of a field of `JobSpec`.

    Args:
        name: of the field.
        changes: what a verb has differently, as click names it: `default`, `help`, `envvar`.
    """
    declared = OPTIONS[name]
    attributes: dict[str, Any] = {
        "help": declared.help,
        "default": declared.default,
        "show_default": declared.default not in (None, ""),
    }
    if declared.kind.metavar:
        attributes |= {"type": Value(declared.kind), "metavar": declared.kind.metavar}
    elif "/" not in declared.flag:
        # What protection is given up by is typed: a variable would be forgotten, and inherited.
        attributes |= {"is_flag": True, "envvar": None}
    if declared.repeated:
        attributes |= {"multiple": True, "envvar": None, "default": None, "show_default": False}
    return option(declared.flag, name, **(attributes | changes))


def _keep_ports(_: click.Context, __: click.Parameter, ports: range | None) -> None:
    """Have all processes that this one starts on this host take ports of the range."""
    if ports is not None:
        os.environ[PORTS_VARIABLE] = f"{ports[0]}-{ports[-1]}"


PORTS = option(
    "--ports",
    envvar=PORTS_VARIABLE,
    type=Value(Kind(metavar="FIRST-LAST", read=read_ports)),
    expose_value=False,
    callback=_keep_ports,
    help="Restrict listening ports to this range (one for the master, one for each worker). "
    "[default: any that is free]",
)

# No part of a spec: where a run is kept, how other hosts find it, and who is told of it.
_OF_RUNS = (
    option(
        "--run-dir",
        type=click.Path(),
        metavar="DIR",
        help="Write the run's records to this directory. [default: runs/FILE-DATE]",
    ),
    option(
        "--resume",
        is_flag=True,
        help="Continue the run in --run-dir, or the latest, from its last checkpoint.",
    ),
    option(
        "--listen",
        type=ADDRESS,
        help="Let other hosts join at this address. [default: none can]",
    ),
    PORTS,
)
JSON = option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as one JSON object on stdout; draw no report.",
)
INCLUDE = option(
    "--include",
    multiple=True,
    envvar=None,
    metavar="GLOB",
    help="Send these files, too, with the code, by a glob in its folder: 'configs/*.yaml'. May be "
    "repeated. [default: FILE and what it imports from its folder]",
)
LOGGERS = option(
    "--logger",
    "loggers",
    multiple=True,
    metavar="NAME",
    help="Send each step to tensorboard, mlflow, wandb or FILE.py:NAME. May be repeated.",
)
HEARTBEAT = option(
    "--heartbeat-file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Touch this file once a second, for supervisors of this process; it says ready or waiting.",
)
SUMMARY_FILE = option(
    "--summary-file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Write the summary of the run to this file when it ends, as JSON. In a container of "
    "Kubernetes: /dev/termination-log.",
)
COMMAND = "brim.command"  # of a context: the words of a command, where they were named otherwise
STATE_VARIABLE = "BRIM_HOME"


def _unless_server(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Let a scheduler that the environment names come before a state directory that it names."""
    if ctx.get_parameter_source(str(param.name)) is not ParameterSource.ENVIRONMENT:
        return value
    from brim.client import SERVER

    return None if os.environ.get(SERVER) else value


STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    envvar=STATE_VARIABLE,
    callback=_unless_server,
    metavar="DIR",
    help="Use the scheduler whose state is in DIR. [default: ~/.local/state/brim]",
)


def run_options(function: Decorated) -> Decorated:
    """Give a verb the options of a run."""
    function = INCLUDE(LOGGERS(function))
    for of_runs in reversed(_OF_RUNS):
        function = of_runs(function)
    return _with_options(OPTIONS, function)


def scheduled_options(function: Decorated) -> Decorated:
    """Give a verb the options of a job that a scheduler runs."""
    scheduled = [name for name, option in OPTIONS.items() if option.scheduled]
    return _with_options(scheduled, INCLUDE(function))


def job_options(**defaults: Any) -> Callable[[Decorated], Decorated]:
    """Give a verb those options of `JobSpec` that are named, with these defaults."""

    def give(function: Decorated) -> Decorated:
        return _with_options([name for name in OPTIONS if name in defaults], function, defaults)

    return give


def _with_options(
    names: Iterable[str], function: Decorated, defaults: Mapping[str, Any] | None = None
) -> Decorated:
    """Help lists options in the order of `names`: the last decorator's come first."""
    for name in reversed(list(names)):
        changes = {"default": defaults[name]} if defaults else {}
        function = job_option(name, **changes)(function)
    return function


def options_given(ctx: click.Context) -> set[str]:
    """Names of the values that the command line or the environment gave, not a default."""
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


def parse_env(texts: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """`("A=1", "B")` as a dict; a name alone has the value that it has in `environment`.

    Raises:
        SpecError: a name alone that has none.

    >>> parse_env(("A=1", "B"), {"B": "x=y"})
    {'A': '1', 'B': 'x=y'}
    """
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in environment:
            raise SpecError(
                f"--env {name}",
                got="a variable that is not set here",
                need="NAME=VALUE, or the NAME of one that is",
                hint=f"--env {name}=VALUE",
            )
        variables[name] = value if equals else environment[name]
    return variables


def build_spec(
    values: Mapping[str, Any], *, file: str = "", command: tuple[str, ...] = ()
) -> JobSpec:
    """The spec that the options describe.

    Args:
        values: by field of `JobSpec`, as they were read; others are left alone.

    Raises:
        SpecError: values that are wrong by themselves or beside each other.
    """
    fields = {
        name: values[name]
        for name, option in OPTIONS.items()
        # None where nobody said, unless it is how a default is written: `--memory none`.
        if name in values and (values[name] is not None or option.default is not None)
    }
    fields["parameters"] = parse_parameters(values["parameters"])
    fields["env"] = parse_env(values["env"], os.environ)
    fields["checkpoints"] = absolute(values["checkpoints"])
    fields["runs"] = absolute(values["runs"])
    fields["include"] = tuple(values.get("include", ()))
    if values["micro_batches"] == AUTOMATIC:
        # What is recorded is a number, also where brim chose it.
        fields["micro_batches"] = fewest_micro_batches(values["workers"])
    spec = JobSpec(file=file, command=command, directory=os.getcwd(), **fields)
    check_spec(spec)
    return spec
