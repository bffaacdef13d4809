"""Groups of verbs to which other packages add theirs, as entry points of the group `brim.verbs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import click

from brim.errors import EnvironmentFault, SpecError
from brim.user_code.plugins import VERBS, how_to_install, load_plugin, plugins

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class OpenGroup(click.Group):
    """A group that has its own verbs first, then those of other packages.

    Args:
        prefix: begins the names of entry points that belong here: `simulate.`.
    """

    def __init__(self, *args: Any, prefix: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._prefix = prefix

    def added(self) -> dict[str, EntryPoint]:
        """Return the verbs of other packages by name; none is imported."""
        names = {
            name.removeprefix(self._prefix): plugin
            for name, plugin in plugins(VERBS).items()
            if name.startswith(self._prefix)
        }
        return {name: plugin for name, plugin in names.items() if "." not in name}

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, *(name for name in self.added() if name not in names)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        plugin = self.added().get(cmd_name)
        return None if plugin is None else _command(cmd_name, plugin)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        install = how_to_install(VERBS, f"{self._prefix}{name}")
        if install and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise SpecError(
                ctx.command_path, got=repr(name), need="the package that has it", hint=install
            )
        return super().resolve_command(ctx, args)


def _command(name: str, plugin: EntryPoint) -> click.Command:
    """Return the command; where it cannot be imported, one that says so and breaks no other."""
    try:
        found = load_plugin(plugin)
        if not isinstance(found, click.Command):
            raise EnvironmentFault(f"{plugin.value} is no click command")
    except EnvironmentFault as error:
        return _broken(name, error)
    return found


def _broken(name: str, error: EnvironmentFault) -> click.Command:
    def fail(words: tuple[str, ...]) -> Never:
        raise error

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        short_help=f"({error})",
        help=str(error),
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
