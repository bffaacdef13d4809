"""Values of options, as click reads them: by their kinds, whose errors are brim's."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from brim.domain.options import Kind


class Value(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """The values of a kind, whose errors name the option as its user gave it."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.metavar
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return self._kind.read(value, _as_given(param, ctx))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self._kind.words if word.startswith(incomplete)]


def _as_given(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The option as its user gave it, with the environment variable where it came from there."""
    if param is None or param.name is None:
        return "value"
    name = max(param.opts, key=len) if isinstance(param, click.Option) else param.name.upper()
    if ctx and ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT:
        return f"{name} (from {param.envvar})"
    return name
