"""A run as a live block on a terminal: progress, speed, workers, and latest events."""

from __future__ import annotations

import contextlib
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brim.domain.step_records import StepRecord
from brim.interfaces import Clock
from brim.runs.times import clock_time, time_left
from brim.telemetry.events import (
    CheckpointPublished,
    CommandProgressed,
    Event,
    RoundFormed,
    RunFailed,
    RunStarted,
    WorkerChanged,
    WorldReFormed,
)
from brim.telemetry.history import RunHistory, describe_event, milliseconds

# (glyph, style) per worker: shape says it too, for those who see no colour.
_GLYPHS = {
    "started": ("○", "dim"),
    "ready": ("◔", "cyan"),
    "active": ("●", "green"),
    "suspect": ("◌", "bold yellow"),
    "leaving": ("◑", "yellow"),
    "lost": ("✗", "bold red"),
    "left": ("·", "dim"),
}
# How long a worker that is gone stays in the strip, seconds.
_LINGER = 8.0


class Drawing:
    """A few lines that show where a run stands, to be drawn at each look at the run.

    Args:
        clock: stamps what is not in the records.
        happenings: how many lines of "what just happened" to keep.
    """

    def __init__(self, *, clock: Clock, happenings: int = 5) -> None:
        self._happenings: deque[tuple[float, str]] = deque(maxlen=happenings)
        self._clock = clock
        self._cause = self._departure = ""
        self._members = ""
        self._history = RunHistory()

    def show(self, fresh: list[Event | StepRecord], history: RunHistory) -> None:
        self._history = history
        for record in fresh:
            if not isinstance(record, StepRecord):
                self._remember(record)

    def note(self, text: str) -> None:
        self._happenings.append((self._clock.wall(), text))

    def _remember(self, event: Event) -> None:
        """Keep the events for people; a loss, its round and its pause become one line."""
        match event:
            case RunStarted() | CheckpointPublished() | CommandProgressed() | RunFailed():
                return
            case WorkerChanged(state="leaving" | "left" | "suspect"):
                return  # the strip shows it
            case WorkerChanged(state="lost"):
                # Its round's line will say it; until then, and if none comes, it stands alone.
                text = self._departure = describe_event(event, self._history)
            case RoundFormed():
                self._cause, self._members = (event.cause if event.round > 1 else ""), event.members
                return
            case WorldReFormed():
                text = self._describe_round(event)
            case _:
                text = describe_event(event, self._history)
        if text:
            self._happenings.append((event.at, text))

    def _describe_round(self, event: WorldReFormed) -> str:
        """Return a line such as `w1 lost (signal 9) · round 3 · 3 workers · 24 ms`.

        It takes the place of the line that said how the change began.
        """
        if self._departure and self._happenings and self._happenings[-1][1] == self._departure:
            self._happenings.pop()
        parts = [
            self._cause or self._departure,
            f"round {event.round}",
            self._members,
            milliseconds(event.seconds),
            f"{event.redone} redone" if event.redone else "",
        ]
        self._departure = self._cause = ""
        return " · ".join(filter(None, parts))

    def draw(self) -> Group:
        """The lines now."""
        history = self._history
        if not history.started:
            return Group(Text("starting …", style="dim"), *self._happening_lines())
        lines: list[RenderableType] = [self._title(), self._bar(), self._numbers(), self._workers()]
        return Group(*lines, *self._happening_lines())

    def _happening_lines(self) -> list[Text]:
        return [
            Text.assemble((f"  {clock_time(moment)} ", "dim"), text)
            for moment, text in self._happenings
        ]

    def _title(self) -> Text:
        started = self._history.started
        assert started is not None
        subject = started.file or " ".join(started.command)
        return Text.assemble((subject, "bold"), ("  " + started.run, "dim"))

    def _bar(self) -> Table:
        started = self._history.started
        assert started is not None
        if self._history.verb == "restart":
            return self._bar_of_command()
        step, per_epoch = self._history.step, max(1, started.steps_per_epoch)
        epochs = max(1, round(started.steps / per_epoch))
        epoch = min(step // per_epoch, epochs - 1)
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Text(f"epoch {epoch + 1}/{epochs}"),
            ProgressBar(
                total=per_epoch, completed=step - epoch * per_epoch, width=36, complete_style="cyan"
            ),
            Text(f"step {step:,}/{started.steps:,}"),
        )
        return row

    def _bar_of_command(self) -> Table:
        step, planned = self._history.step, self._history.planned
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(
            total=planned or None,
            completed=step,
            width=36,
            complete_style="cyan",
            pulse=not planned,
        )
        row.add_row(bar, Text(f"step {step:,}/{planned:,}" if planned else "no total reported"))
        return row

    def _numbers(self) -> Text:
        history = self._history
        loss = history.steps[-1].loss if history.steps else None
        text = Text()
        if history.verb == "train":
            text.append("loss ", "dim").append(f"{loss:.4f}" if loss is not None else "–").append(
                "   "
            )
        if history.verb == "restart":
            text.append(history.command.words if history.command else "no progress reported")
        else:
            text.append(f"{history.samples_per_second():,.0f}").append(" samples/s", "dim")
        seconds = history.seconds_left()
        if seconds is not None and not history.ended:
            text.append("   ").append(time_left(seconds)).append(" left", "dim")
        return text

    def _workers(self) -> Text:
        history = self._history
        now = max(
            history.steps[-1].at if history.steps else 0.0,
            history.events[-1].at if history.events else 0.0,
        )
        strip = Text.assemble(("workers ", "dim"))
        for life in history.workers.values():
            if life.until is None or now - life.until < _LINGER:
                strip.append(*_GLYPHS.get(life.state, ("?", "")))
        size = history.round.world_size if history.round else 0
        strip.append(f" {size}")
        if history.round and history.round.servers:
            strip.append("   servers ", "dim").append(str(history.round.servers))
        if history.round and history.round.is_uneven:
            shares = ", ".join(map(str, history.round.shares))
            strip.append("   shares ", "dim").append(shares)
        return strip


class LiveView(Drawing):
    """Redraws a few lines in place; NO_COLOR and narrow terminals are rich's business.

    Args:
        console: where to draw; on stderr, so that stdout stays data.
    """

    def __init__(self, console: Console, *, clock: Clock, happenings: int = 5) -> None:
        super().__init__(clock=clock, happenings=happenings)
        self._live = Live(
            console=console,
            get_renderable=self.draw,
            refresh_per_second=8,
            transient=False,
            auto_refresh=True,
        )
        self._live.start()

    def say(self, line: str) -> None:
        """Print a line above the block, for good."""
        with contextlib.suppress(OSError):  # a terminal that is gone must not end the training
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()
