"""Errors of the command line: a wrong word becomes field, got, need, hint and exit code 2."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from brim.cli.shared.open_group import OpenGroup
from brim.domain.stability import mark_of_verb
from brim.errors import BrimError, SpecError, UserCodeError, did_you_mean
from brim.host.shortage import words_of_shortage
from brim.host.terminal import guarded_streams
from brim.user_code.plugins import VERBS, package_of, summary_of

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED = 0, 1, 2, 3


# What other programs call brim's verbs, and options of brim submit alone.
_STOP = "brim suspend RUN pauses a run, brim cancel JOB ends a job for good, brim down stops all"
_LIST = "brim jobs lists the scheduler's jobs, brim status shows a run"
_VERBS_ELSEWHERE = {
    **dict.fromkeys(("stop", "kill", "pause", "delete", "rm"), _STOP),
    **dict.fromkeys(("ps", "list", "ls", "queue", "squeue"), _LIST),
    **dict.fromkeys(
        ("start", "fit", "launch"), "brim train FILE.py, or brim run -- python loop.py"
    ),
    "init": "brim needs no setup: brim train FILE.py",
    "scale": "brim resize RUN WORKERS",
    "version": "brim --version",
}
_COUNTS_ELSEWHERE = frozenset(
    ("gpus", "num-gpus", "devices", "nproc-per-node", "nproc", "num-processes", "num-workers", "np")
)
_SUBMITTED = frozenset(("deadline", "tenant", "priority"))


class Verbs(OpenGroup):
    """A group that imports a verb only when it is used, and words errors as brim does.

    Args:
        verbs: group -> name -> one line of help, in the order in which help lists them. Each is
            the attribute of that name in the module of that name in `package`.
    """

    def __init__(
        self, *, package: str, verbs: dict[str, dict[str, str]], **attributes: Any
    ) -> None:
        super().__init__(subcommand_metavar="VERB ...", **attributes)
        self._package = package
        self._groups = {
            title: {name: f"{line} {mark_of_verb(name)}".rstrip() for name, line in group.items()}
            for title, group in verbs.items()
        }
        self._verbs = {
            name: line for group in self._groups.values() for name, line in group.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._verbs, *(name for name in self.added() if name not in self._verbs)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"{self._package}.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        _mark(command, mark_of_verb(cmd_name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
        hint = _VERBS_ELSEWHERE.get(args[0]) or did_you_mean(args[0], self.list_commands(ctx))
        if args[0].endswith(".py"):
            hint = f"brim train {args[0]}"
        raise SpecError("brim", got=repr(args[0]), need="one of brim's verbs", hint=hint)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs, then the options: readers of the help look for a verb."""
        sections = {title: list(verbs.items()) for title, verbs in self._groups.items()}
        for name, plugin in self.added().items():
            if name not in self._verbs:
                row = (name, summary_of(VERBS, name))
                sections.setdefault(f"From the package {package_of(plugin)}", []).append(row)
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])
        click.Command.format_options(self, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs with their line of help; none is imported for it."""
        verbs = [
            CompletionItem(name, help=self._verbs.get(name) or summary_of(VERBS, name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run the verb and leave with its exit code; brim's own errors have no stack trace."""
        extra["standalone_mode"] = False
        words = list(sys.argv[1:] if args is None else args)
        with guarded_streams():
            code = self._run(args, prog_name, words, extra)
        sys.exit(_written(code if isinstance(code, int) else EXIT_DONE))

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        words: Sequence[str],
        extra: dict[str, Any],
    ) -> Any:
        try:
            return super().main(args, prog_name or "brim", **extra)
        except click.exceptions.NoArgsIsHelpError as missing:
            click.echo(missing.format_message(), err=True)
            return EXIT_USAGE
        except click.ClickException as wrong:
            click.echo(str(explain(wrong, words)), err=True)
            return EXIT_USAGE
        except SpecError as wrong:
            click.echo(str(wrong), err=True)
            return EXIT_USAGE
        except UserCodeError as failed:
            click.echo(failed.trace, err=True)
            return EXIT_FAILED
        except BrimError as failed:
            click.echo(f"brim: {failed}", err=True)
            return EXIT_FAILED
        except (click.Abort, KeyboardInterrupt):
            return EXIT_FAILED
        except (OSError, MemoryError, RuntimeError) as error:
            if not (words := words_of_shortage(error)):
                raise
            with contextlib.suppress(OSError):  # it may be the disk with what is printed
                click.echo(f"brim: {words}", err=True)
            return EXIT_FAILED


def _written(code: int) -> int:
    """Return the exit code once what was printed is written, or cannot be.

    Python would try once more at its very end, and leave with an exit code of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            if stream is sys.stdout:
                code = code or EXIT_FAILED
    return code


def _mark(command: click.Command, mark: str) -> None:
    """Put the mark of a verb's stability behind the first paragraph of its help, once."""
    first, blank, rest = (command.help or "").partition("\n\n")
    if mark and not first.endswith(mark):
        command.help = f"{first} {mark}{blank}{rest}"


def warn(text: str) -> None:
    """Say something that stops nothing."""
    click.echo(f"brim: {text}", err=True)


def explain(wrong: click.ClickException, words: Sequence[str] = ()) -> SpecError:
    """Return an error of click, as field, got, need and hint.

    Args:
        words: the command line, from which hints take values.
    """
    ctx = wrong.ctx if isinstance(wrong, click.UsageError) else None
    path = ctx.command_path if ctx else "brim"
    hint = f"{path} --help shows what it takes"
    match wrong:
        case click.NoSuchOption():
            return SpecError(
                wrong.option_name,
                got=f"an option that {path} does not have",
                need="one of its options",
                hint=_hint_of_option(wrong.option_name, ctx, words) or hint,
            )
        case click.BadOptionUsage():
            return SpecError(
                wrong.option_name, got=_sentence(wrong), need="a value after it", hint=hint
            )
        case click.MissingParameter():
            return SpecError(
                _name(wrong.param), got="nothing", need=_need(wrong.param, wrong.ctx), hint=hint
            )
        case click.BadParameter():
            return SpecError(
                _name(wrong.param), got=_sentence(wrong), need="another value", hint=hint
            )
        case _:
            usage = ctx.command.get_usage(ctx).removeprefix("Usage: ") if ctx else path
            return SpecError(path, got=_sentence(wrong), need=" ".join(usage.split()), hint=hint)


def _hint_of_option(name: str, ctx: click.Context | None, words: Sequence[str]) -> str:
    """Return a hint for an option that does not exist; empty where there is none.

    It names the option that was meant, or says how one gives an option of a script or a parameter
    of the training file.
    """
    names = _long_options(ctx)
    verb = ctx.command.name if ctx else ""
    bare = name.lstrip("-").replace("_", "-")
    if bare in _COUNTS_ELSEWHERE and "--workers" in names:
        return f"--workers {_value_of(name, words)}: each worker takes one GPU, where there are any"
    if bare in _SUBMITTED and verb in ("train", "run"):
        return f"brim submit has it: brim submit FILE.py --{bare} {_value_of(name, words)}"
    # Without their hyphens, which would make any two of them alike.
    close = difflib.get_close_matches(
        name.lstrip("-"), [option.removeprefix("--") for option in names], n=1
    )
    if close:
        return f"did you mean '--{close[0]}'?"
    if "--set" not in names or not name.startswith("--"):
        return ""
    value = _value_of(name, words)
    if verb == "run" or "--" in words:
        return f"options of your script come after it: brim {verb} -- python loop.py {name} {value}"
    parameter = name.removeprefix("--").replace("-", "_")
    return f"--set {parameter}={value}, if the file reads {parameter!r} with brim.param"


def _value_of(name: str, words: Sequence[str]) -> str:
    """Return the value that follows an option: `0.1` of `--lr 0.1` and of `--lr=0.1`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and following and not following.startswith("--"):
            return following
    return "VALUE"


def _sentence(wrong: click.ClickException) -> str:
    """Click's message as the object of `got`."""
    text = wrong.message.rstrip(".").removeprefix("Got ")
    return text[:1].lower() + text[1:]


def _name(param: click.Parameter | None) -> str:
    if param is None:
        return "brim"
    return param.make_metavar(_NO_CONTEXT) if isinstance(param, click.Argument) else param.opts[0]


def _need(param: click.Parameter | None, ctx: click.Context | None) -> str:
    verb, name = ctx.command.name if ctx else "", _name(param).strip("[].")
    needs = {
        "apply FILE": "a cluster.yaml",
        "backup FILE": "the file to write",
        "restore FILE": "a file that brim backup wrote",
        "FILE": "a training file",
        "BUNDLE": "a directory that brim export --format bundle wrote",
        "RUN": "a run: a path, a name under runs, latest, or a job of the scheduler",
        "JOB": "the id of a job: brim jobs lists them",
        "SERVICE": "the id of a service: brim jobs lists them",
        "NODE": "the name of a node: brim nodes lists them",
        "TENANT": "the name of a tenant: brim tenants lists them",
        "RUN|CHECKPOINT": "a run that trained a model, or the directory of one of its checkpoints",
        "WORKERS": "a number of workers",
        "MASTER_ADDRESS": "the HOST:PORT that the run's first lines show",
    }
    return needs.get(f"{verb} {name}") or needs.get(name, "a value")


def _long_options(ctx: click.Context | None) -> list[str]:
    if ctx is None:
        return []
    return [
        name
        for param in ctx.command.params
        for name in [*param.opts, *param.secondary_opts]
        if name.startswith("--")
    ] + ["--help"]


_NO_CONTEXT = click.Context(click.Command("brim"))
