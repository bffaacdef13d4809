"""Views of a run: redrawn in place on a terminal or in a notebook, else line by line."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from brim.domain.step_records import StepRecord
from brim.host.clock import SystemClock
from brim.telemetry.events import Event
from brim.telemetry.history import RunHistory


class View(Protocol):
    """Shows a run to a person."""

    def show(self, fresh: list[Event | StepRecord], history: RunHistory) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


def choose_view() -> View:
    """The view that fits where this process writes to."""
    if in_notebook():
        from brim.runs.notebook import NotebookView

        return NotebookView(clock=SystemClock())
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from brim.host.terminal import console
        from brim.runs.live import LiveView

        return LiveView(console(sys.stderr), clock=SystemClock())
    from brim.runs.plain import PlainView

    return PlainView(sys.stderr, clock=SystemClock())


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook: a shell of IPython without a terminal."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
