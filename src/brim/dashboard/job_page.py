"""The page of one job: its state, the reasons for it, its records and logs, and its buttons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from brim.client import Client
from brim.dashboard import charts, sentences
from brim.dashboard.desk import Desk
from brim.dashboard.elements import (
    ask,
    button,
    card,
    chart,
    facts,
    grid,
    heading,
    lines_list,
    outlined,
    redraw,
)
from brim.dashboard.records import JobRecordReader
from brim.dashboard.rows import Clock, facts_of, progress_of, state_of, time_rows
from brim.dashboard.series import workers_over_time
from brim.domain.course import Change, sentence_of
from brim.domain.job import WorkerRange
from brim.errors import BrimError, SpecError
from brim.runs.in_words import describe_stack
from brim.wire.cluster import JobView, Proposal

_FACTS = (
    "State", "Tenant", "Workers", "Serves", "Steps", "Deadline", "Ends", "Margin", "Expected", "On",
    "Device hours", "Throughput", "Loss", "Why", "Records",
)  # fmt: skip
_TIME_COLUMNS = [
    {"field": "part", "headerName": "Part", "minWidth": 180, "flex": 3, "tooltipField": "part"},
    {"field": "seconds", "headerName": "Seconds", "minWidth": 95, "flex": 1},
    {"field": "share", "headerName": "Percent", "minWidth": 90, "flex": 1},
]
_LOOK = 1.0  # seconds between two looks at records and logs
_MOST_LINES = 1_000  # of a log
_LOG_AT_ONCE = 200  # lines that a page takes at once


def show_job(desk: Desk, job: str) -> None:
    """The content of the page."""
    page = _JobPage(desk, job)
    desk.keep_showing(page.refresh)
    ui.timer(_LOOK, page.look)


class _JobPage:
    def __init__(self, desk: Desk, job: str) -> None:
        self._desk, self._job = desk, job
        self._view: JobView | None = None
        self._records = JobRecordReader(desk.client, job)
        self._story: list[Change] = []
        self._story_of = -1
        self._time_rows: list[dict[str, Any]] = []
        self._places = ""
        self._logs_end = False
        with outlined():
            heading(job, 1)
            self._badge = ui.label().classes("faint")
            way = f"/compare?{urlencode({'first': job})}"
            button("Compare…", lambda: ui.navigate.to(way))
        self._missing = ui.label().classes("bad")
        with ui.element("div").classes("stack") as self._content:
            self._show_content()
        self._content.set_visibility(False)

    def _show_content(self) -> None:
        with ui.element("div").classes("bar") as self._buttons:
            self._make_buttons()
        self._progress = ui.linear_progress(value=0.0, show_value=False, size="8px")
        self._progress.props["aria-label"] = "steps done"
        with card(""):
            self._facts = facts(_FACTS, wide=("Why", "Records"))
        with ui.element("div").classes("two"):
            with card("Workers over time"):
                self._workers = chart("Workers of this job over time", small=True)
            with card("Loss") as loss:
                self._loss = chart("Loss over time", small=True)
            with card("Samples a second") as rate:
                self._rate = chart("Samples a second over time", small=True)
            with card("Where the time went") as times:
                self._times = grid("Parts of the time", _TIME_COLUMNS, key="part", height="medium")
            with card("Rounds and events") as events:
                self._events = lines_list()
        self._recorded = (loss, rate, times, events)
        for part in self._recorded:
            part.set_visibility(False)
        with card("Decisions, and why"):
            self._decisions = lines_list()
        with card("Log"):
            self._log = ui.log(max_lines=_MOST_LINES).classes("log")
            self._log.props["aria-label"] = "What the processes of this job print"
            self._log.props('tabindex="0" role=log')

    def _make_buttons(self) -> None:
        stacks = button("Stacks", self._show_stacks)
        stacks.set_visibility(self._desk.client.namespace is None)
        self._suspend = button("Suspend…", self._ask_suspend)
        self._resume = button("Resume…", self._ask_resume)
        button("Resize…", self._ask_resize)
        button("Cancel job…", self._ask_cancel)

    def refresh(self, _: int) -> None:
        """Show the scheduler's last answer."""
        view = self._desk.sight.jobs.get(self._job)
        self._missing.set_visibility(view is None)
        self._content.set_visibility(view is not None)
        if view is None:
            self._missing.set_text("There is no such job, or none that you may see.")
            return
        self._buttons.set_visibility(not view.has_ended)
        self._view = view
        clock = self._desk.clock
        self._badge.set_text(state_of(view))
        is_held = view.wish == "hold"
        self._suspend.set_visibility(not is_held)
        self._resume.set_visibility(is_held)
        progress = progress_of(view)
        self._progress.set_visibility(progress is not None)
        self._progress.set_value((progress or 0.0) / 100.0)
        self._facts(
            facts_of(view, clock)
            | {"Throughput": self._records.throughput, "Loss": self._records.loss}
        )

    async def look(self) -> None:
        """Read the news of the job's story, records and logs."""
        if self._view is None:
            return
        try:
            await self._look_at_story()
            await self._look_at_records()
            await self._look_at_logs()
        except BrimError:
            return  # the frame says that the scheduler does not answer

    async def _look_at_story(self) -> None:
        seen = self._desk.sight.changed.get(self._job, 0)
        if seen != self._story_of:
            self._story_of = seen
            story = await asyncio.to_thread(self._desk.client.explain, self._job)
            if story != self._story:
                clock = self._desk.clock
                self._story = story
                self._decisions([(clock(line.at), sentence_of(line)) for line in story])
        view = self._view
        assert view is not None
        end = view.ended if view.ended is not None else self._desk.sight.timestamp
        steps = workers_over_time(view, self._story, now=end)
        redraw(self._workers, charts.workers_chart(steps, view.submitted, end))

    async def _look_at_records(self) -> None:
        if not await asyncio.to_thread(self._records.look):
            return
        for part in self._recorded:
            part.set_visibility(True)
        course = self._records.course
        redraw(self._loss, charts.loss_chart(course))
        redraw(self._rate, charts.rate_chart(course))
        times = time_rows(self._records.time_parts)
        self._desk.replace_rows(self._times, "part", self._time_rows, times)
        self._time_rows = times
        self._events([(self._desk.clock(moment), text) for moment, text in self._records.events])

    async def _look_at_logs(self) -> None:
        if self._logs_end:
            return
        ask_for = self._desk.client.log_lines
        logs = await asyncio.to_thread(ask_for, self._job, place=self._places)
        self._places, self._logs_end = logs.after, logs.ended
        for worker, text in logs.lines[-_MOST_LINES:]:
            self._log.push(f"{worker}  {text}"[: _LOG_AT_ONCE * 10])

    async def _show_stacks(self) -> None:
        """Show where the Python code of each worker is, in a window."""
        with ui.dialog(value=True) as dialog, ui.element("div").classes("ask"):
            dialog.props["aria-label"] = f"Stacks of {self._job}"
            heading(f"Where each worker of {self._job} is now", 2)
            shown = ui.label("The workers are asked…").classes("stacks").props("role=status")
            with ui.element("div").classes("bar end"):
                button("Close", dialog.close)
        try:
            found = await self._desk.call(lambda client: client.stacks(self._job))
        except BrimError as error:
            shown.set_text(str(error))
            return
        texts = [describe_stack(each.worker, each.stack) for each in found]
        shown.set_text("\n\n".join(texts) or "It has no workers now.")

    def _ask_suspend(self) -> None:
        proposal = Proposal(action="suspend", job=self._job)
        self._ask(proposal, sentences.on_suspend, lambda client: client.suspend(self._job))

    def _ask_resume(self) -> None:
        proposal = Proposal(action="resume", job=self._job)
        self._ask(proposal, sentences.on_resume, lambda client: client.resume(self._job))

    def _ask_cancel(self) -> None:
        proposal = Proposal(action="cancel", job=self._job)
        self._ask(
            proposal, sentences.on_cancel, lambda client: client.cancel(self._job), danger=True
        )

    def _ask(
        self,
        proposal: Proposal,
        words: Callable[[JobView, Clock], list[str]],
        change: Callable[[Client], JobView],
        *,
        danger: bool = False,
    ) -> None:
        if self._view is None:
            return

        async def carry_out() -> str:
            view = await self._desk.call(change)
            return f"{self._job}: {state_of(view)}"

        verb = f"{proposal.action.capitalize()} {self._job}"
        lines = words(self._view, self._desk.clock)
        ask(self._desk, f"{verb}?", lines, verb, carry_out, proposal=proposal, danger=danger)

    def _ask_resize(self) -> None:
        view = self._view
        if view is None:
            return
        with ui.dialog(value=True) as dialog, ui.element("div").classes("ask"):
            dialog.props["aria-label"] = f"Resize {self._job}"
            heading(f"How many workers may {self._job} have?", 2)
            field = ui.input(
                "Workers: a number, or FEWEST:MOST", value=f"{view.minimum}:{view.maximum}"
            )
            field.props("outlined dense autofocus")
            wrong = ui.label().classes("bad").props("role=alert")
            with ui.element("div").classes("bar end"):
                button("Leave it", dialog.close)
                go_on = button("What would it do?", kind="main")

        def check() -> None:
            try:
                workers = WorkerRange.parse(field.value or "")
            except SpecError as error:
                wrong.set_text(str(error))
                return
            dialog.close()

            def change(client: Client) -> JobView:
                return client.resize(self._job, workers)

            minimum, maximum = workers.minimum, workers.maximum
            self._ask(
                Proposal(action="resize", job=self._job, minimum=minimum, maximum=maximum),
                lambda view, _: sentences.on_resize(view, minimum, maximum),
                change,
            )

        go_on.on_click(check)
        field.on("keydown.enter", check)
