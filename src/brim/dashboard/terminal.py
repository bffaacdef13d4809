"""The dashboard on a terminal: the tree of a cluster, and the words about its chosen line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from brim.client import Client
from brim.dashboard.following import Following, answer_of
from brim.dashboard.rows import Clock
from brim.dashboard.sight import ClusterSight
from brim.dashboard.tree import (
    NODES,
    TENANTS,
    Line,
    Words,
    label_of,
    lines_of,
    place_of,
    plain,
    summary,
    words_of,
)
from brim.domain.course import Change
from brim.errors import BrimError, EnvironmentFault

_REFRESH = 0.2  # seconds between two looks at whether there is something new to show
_NARROW = 70  # columns below which the words are shown under the tree
_KEYS = "↑↓ move  ←→ close, open  Tab details  / filter  g group  e ended  q quit"


def show_on_terminal(client: Client, *, clock: Clock) -> None:
    """Show the cluster on this process's terminal until the viewer quits.

    Args:
        clock: says a time as people read it.

    Raises:
        EnvironmentFault: the scheduler refuses the token.
    """
    application = ClusterTop(client, clock=clock)
    application.run(mouse=False)
    if application.sight.ended:
        raise EnvironmentFault(application.sight.problem)


class ClusterTree(ScrollView, can_focus=True):
    """Thousands of lines, of which only those on the screen are drawn."""

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("left", "close_group", show=False),
        Binding("right", "open_group", show=False),
        Binding("enter", "toggle_group", show=False),
    ]

    class Chosen(Message):
        """Another line was chosen, or a group was opened or closed."""

    def __init__(self, sight: ClusterSight) -> None:
        super().__init__()
        self._sight = sight
        self._lines: list[Line] = []
        self._index = 0
        self.grouping, self.filter_text, self.with_ended = TENANTS, "", False
        self._closed_groups: set[str] = set()

    @property
    def chosen(self) -> Line | None:
        """The line with the cursor; None where there are no lines."""
        return self._lines[self._index] if self._lines else None

    def show_sight(self) -> None:
        """Show the lines as they are now; the cursor stays on its line or job while that is there."""
        last = self.chosen
        self._lines = lines_of(
            self._sight,
            grouping=self.grouping,
            closed=self._closed_groups,
            with_ended=self.with_ended,
            filter_text=self.filter_text,
        )
        if last is not None:
            self._index = place_of(last, self._lines, otherwise=self._index)
        self._index = max(0, min(self._index, len(self._lines) - 1))
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        self._show_cursor()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        place = y + self.scroll_offset.y
        if place >= len(self._lines):
            return Strip.blank(width, Style())  # with none, textual 8.2 fails under NO_COLOR
        line = self._lines[place]
        text = label_of(
            line,
            self._sight,
            grouping=self.grouping,
            is_closed=line.group in self._closed_groups,
            width=width,
        )
        style = Style(reverse=place == self._index, bold=not line.job)
        return Strip([Segment(text, style)]).adjust_cell_length(width, style)

    def on_resize(self) -> None:
        self.show_sight()

    def action_move(self, count: int) -> None:
        self._index = max(0, min(self._index + count, len(self._lines) - 1))
        self._show_cursor()
        self.post_message(self.Chosen())

    def action_page(self, count: int) -> None:
        self.action_move(count * max(1, self.scrollable_content_region.height - 1))

    def action_close_group(self) -> None:
        if (line := self.chosen) is not None:
            self._closed_groups.add(line.group)
            self._choose(Line(line.group))

    def action_open_group(self) -> None:
        if (line := self.chosen) is not None:
            self._closed_groups.discard(line.group)
            self._choose(line)

    def action_toggle_group(self) -> None:
        line = self.chosen
        if line is not None and not line.job:
            self._closed_groups ^= {line.group}
            self._choose(line)

    def _choose(self, line: Line) -> None:
        self._index = self._lines.index(line)
        self.show_sight()
        self.post_message(self.Chosen())

    def _show_cursor(self) -> None:
        self.scroll_to_region(Region(0, self._index, 1, 1), animate=False, force=True)
        self.refresh()


class ClusterTop(App[None]):
    """A viewer's terminal: a client of a scheduler like any other."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary, #keys { height: 1; text-style: bold; }
    #keys { text-style: none; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.shown { display: block; }
    #parts { layout: horizontal; height: 1fr; }
    ClusterTree { width: 1fr; height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; }
    #details { width: 1fr; height: 1fr; padding: 0 0 0 1; border-left: ascii; scrollbar-size: 1 1; }
    #details:focus { border-left: heavy; }
    .-narrow #parts { layout: vertical; }
    .-narrow #details { border-left: none; border-top: ascii; padding: 0; }
    .-narrow #details:focus { border-top: heavy; }
    """
    BINDINGS: ClassVar = [
        Binding("ctrl+c,ctrl+q", "quit", priority=True, show=False),
        Binding("q", "quit", show=False),
        Binding("g", "group", show=False),
        Binding("e", "ended", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "leave_filter", show=False),
    ]

    def __init__(self, client: Client, *, clock: Clock) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours, be it light or dark
        self.theme = "ansi-dark"
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_NARROW, "-wide")]
        self._client, self._clock = client, clock
        self._following = Following(client, looked_at=lambda: True, refused=self.exit)
        self._tree = ClusterTree(self.sight)
        self._version_shown = -1
        self._story: list[Change] = []
        self._story_of: tuple[str, int] = ("", -1)  # the job, and its version

    @property
    def sight(self) -> ClusterSight:
        return self._following.sight

    def compose(self) -> ComposeResult:
        yield Static(id="summary", markup=False)
        with Container(id="parts"):
            yield self._tree
            with VerticalScroll(id="details"):
                yield Static(id="words", markup=False)
        yield Input(
            id="filter", placeholder="a job, tenant, state or reason; Enter keeps it, Esc ends it"
        )
        yield Static(_KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self._tree.focus()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self.run_worker(self._following.run())
        self.set_interval(_REFRESH, self._look)
        self._show()

    def _look(self) -> None:
        if self.sight.version != self._version_shown:
            self._show()

    def _show(self) -> None:
        self._version_shown = self.sight.version
        self._tree.show_sight()
        self.query_one("#summary", Static).update(plain(summary(self.sight)))
        self._show_words()

    @on(ClusterTree.Chosen)
    def _show_words(self) -> None:
        line = self._tree.chosen
        if line is None:
            text = "no jobs" if self.sight.cluster is not None else ""
            self.query_one("#words", Static).update(text)
            return
        wanted = (line.job, self.sight.changed.get(line.job, 0))
        if line.job and wanted != self._story_of:
            if line.job != self._story_of[0]:
                self._story = self.sight.story_of(line.job)
            self._story_of = wanted
            self.run_worker(self._read_story(line.job), exclusive=True, group="story")
        words = words_of(
            line, self.sight, self._story, grouping=self._tree.grouping, clock=self._clock
        )
        self.query_one("#words", Static).update(_drawn(words))

    async def _read_story(self, job: str) -> None:
        """Read all decisions on a job; those of the time before this began are not in its sight."""
        try:
            story = await answer_of(lambda: self._client.explain(job))
        except BrimError:
            return  # the first line says so, or the job is gone
        if self._story_of[0] == job and story != self._story:
            self._story = story
            self._show_words()

    def action_group(self) -> None:
        self._tree.grouping = NODES if self._tree.grouping == TENANTS else TENANTS
        self._show()

    def action_ended(self) -> None:
        self._tree.with_ended = not self._tree.with_ended
        self._show()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def action_leave_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("shown")
        self._tree.focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._tree.filter_text = event.value
        self._show()

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self._tree.focus()


def _drawn(words: Words) -> Group:
    """The words about a line, in two columns below their title."""
    facts = [(name, value) for name, value in words.facts.items() if value]
    parts: list[RenderableType] = [Text(plain(words.title), style="bold"), _columns(facts)]
    if words.story:
        parts += [Text("\nDecisions, the newest first", style="bold"), _columns(words.story)]
    return Group(*parts)


def _columns(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(plain(value)))
    return table
