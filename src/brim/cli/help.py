"""`brim help`: the help of a verb, by a word rather than an option."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError, did_you_mean


def _verbs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    group = ctx.find_root().command
    verbs = group.list_commands(ctx) if isinstance(group, click.Group) else []
    return [CompletionItem(name) for name in verbs if name.startswith(incomplete)]


@click.command()
@click.argument("verb", metavar="[VERB]", nargs=-1, shell_complete=_verbs)
@click.pass_context
def help(ctx: click.Context, verb: tuple[str, ...]) -> int:
    """Show how VERB is used; without it, list the verbs.

    \b
    brim help train
    brim help simulate generate
    """
    context = ctx.find_root()
    for name in verb:
        group = context.command
        verbs = group.list_commands(context) if isinstance(group, click.Group) else []
        command = group.get_command(context, name) if isinstance(group, click.Group) else None
        if command is None:
            need = f"one of the verbs of {context.command_path}" if verbs else "no further word"
            raise SpecError("VERB", got=repr(name), need=need, hint=did_you_mean(name, verbs))
        context = click.Context(command, parent=context, info_name=name, **command.context_settings)
    click.echo(context.get_help())
    return EXIT_DONE
