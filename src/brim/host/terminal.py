"""The way to the terminal: all text passes `printable`, from any source."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from brim.domain.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


class _Guarded:
    """A stream of text on which control characters are escaped.

    In all else it is the stream within.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guarded(stream: TextIO) -> TextIO:
    """Return a stream that writes printable text to this one."""
    return stream if isinstance(stream, _Guarded) else cast(TextIO, _Guarded(stream))


@contextlib.contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard stdout and stderr of this process, pipes as well: many a pipe ends at a terminal."""
    with (
        contextlib.redirect_stdout(guarded(sys.stdout)),
        contextlib.redirect_stderr(guarded(sys.stderr)),
    ):
        yield


def console(stream: TextIO, **options: Any) -> Console:
    """Return rich's console on a stream.

    Its drawing is guarded, and it alone may move the cursor.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Guarding(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    file = stream.stream if isinstance(stream, _Guarded) else stream
    return Guarding(file=file, **options)
