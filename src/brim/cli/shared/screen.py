"""Shows a text and keeps it current: in place on a terminal, else whenever it has changed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import click

from brim.errors import EnvironmentFault
from brim.host.clock import sleep
from brim.host.terminal import console

_INTERVAL = 1.0


def keep_showing(look: Callable[[], str], *, interval: float = _INTERVAL) -> None:
    """Show a text, and bring it up to date until Ctrl-C.

    Where there is nothing to see for a while, that is said above what was seen last.

    Args:
        look: the text now. Raises EnvironmentFault where nobody can say.
    """
    seen = ""
    with contextlib.suppress(KeyboardInterrupt), _place() as show:
        while True:
            try:
                text = seen = look()
            except EnvironmentFault as error:
                if not error.retryable:
                    raise
                text = f"{error}; before:\n{seen}" if seen else str(error)
            show(text)
            sleep(interval)


@contextlib.contextmanager
def _place() -> Iterator[Callable[[str], None]]:
    """Open the place where a text is shown: a terminal's screen, or lines on stdout."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(sys.stdout), auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda text: live.update(Text(text, no_wrap=True), refresh=True)


class _Lines:
    """Prints a text that has changed."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, text: str) -> None:
        if text != self._last:
            click.echo(f"{text}\n")
        self._last = text
