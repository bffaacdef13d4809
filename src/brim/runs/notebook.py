"""A run as a live block below the cell of a notebook.

The block has the lines of the terminal, redrawn in place.
"""

from __future__ import annotations

import io
from typing import Any

from IPython.display import display
from rich.console import Console

from brim.domain.printable import printable
from brim.domain.step_records import StepRecord
from brim.host.clock import monotonic
from brim.interfaces import Clock
from brim.runs.live import Drawing
from brim.telemetry.events import Event
from brim.telemetry.history import RunHistory

_REDRAW = 0.25  # seconds between two pictures: each is a message to the browser
_FRAME = '<pre style="line-height:1.4;white-space:pre-wrap;margin:0">{code}</pre>'


class NotebookView(Drawing):
    """Draws below the running cell, and prints lasting lines there."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._drawn_at = monotonic()
        self._place: Any = display(self._bundle(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(self, fresh: list[Event | StepRecord], history: RunHistory) -> None:
        super().show(fresh, history)
        if fresh and monotonic() - self._drawn_at > _REDRAW:
            self._redraw()

    def note(self, text: str) -> None:
        super().note(text)
        self._redraw()

    def say(self, line: str) -> None:
        print(printable(line))  # noqa: T201 - that is where a notebook shows what is printed

    def close(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        self._drawn_at = monotonic()
        self._place.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """The lines, for a page and for a text."""
        console = Console(
            record=True, file=io.StringIO(), width=100, force_terminal=True, force_jupyter=False
        )
        console.print(self.draw())
        return {
            "text/html": console.export_html(inline_styles=True, code_format=_FRAME, clear=False),
            "text/plain": console.export_text(),
        }
