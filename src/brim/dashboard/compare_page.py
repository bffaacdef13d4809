"""The page that has two jobs side by side: options that differ, curves, facts and events."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from brim.dashboard import charts
from brim.dashboard.desk import Desk
from brim.dashboard.elements import card, chart, grid, lines_list, outlined, redraw
from brim.dashboard.records import JobRecordReader
from brim.dashboard.rows import comparison_rows, facts_of
from brim.dashboard.series import Steps, workers_over_time
from brim.errors import BrimError

_LOOK = 1.0  # seconds between two looks at records
_SIDES = ("first", "second")


def show_compare(desk: Desk, first: str, second: str) -> None:
    """The content of the page; without two jobs, the choice of them alone."""
    chosen = {"first": first, "second": second}
    with card(""), outlined():
        selects = {side: _select(desk, side, chosen) for side in _SIDES}
    if first and second:
        page = _Comparison(desk, (first, second))

        def refresh(version: int) -> None:
            _offer(desk, selects)
            page.refresh(version)

        desk.keep_showing(refresh)
        ui.timer(_LOOK, page.look)
    else:
        ui.label("Choose two jobs.").classes("faint")
        desk.keep_showing(lambda _: _offer(desk, selects))


def _select(desk: Desk, side: str, chosen: dict[str, str]) -> ui.select:
    def choose(event: Any) -> None:
        others = {**chosen, side: event.value or ""}
        ui.navigate.to(f"/compare?{urlencode(others)}")

    value = chosen[side]
    options = sorted({*desk.sight.jobs, *([value] if value else [])})
    select = ui.select(options, value=value or None, with_input=True, on_change=choose)
    select.props(f'outlined dense label="{side.capitalize()} job" aria-label="{side} job"')
    return select.classes("grow")


def _offer(desk: Desk, selects: dict[str, ui.select]) -> None:
    """Offer the jobs that there are now."""
    for select in selects.values():
        options = sorted({*desk.sight.jobs, *([select.value] if select.value else [])})
        if options != select.options:
            select.set_options(options)


class _Comparison:
    def __init__(self, desk: Desk, jobs: tuple[str, str]) -> None:
        self._desk, self._jobs = desk, jobs
        self._records = [JobRecordReader(desk.client, job) for job in jobs]
        self._rows: list[dict[str, Any]] = []
        self._workers: list[Steps] = [(), ()]
        columns = [
            {"field": "name", "headerName": "What", "pinned": "left", "minWidth": 130, "flex": 1},
            *(
                {"field": side, "headerName": job, "minWidth": 160, "flex": 2, "tooltipField": side}
                for side, job in zip(_SIDES, jobs, strict=True)
            ),
        ]
        with card("Options that differ, and facts"):
            self._grid = grid("Both jobs", columns, key="name", height="medium")
        with ui.element("div").classes("two"):
            self._charts = {}
            for title in ("Loss by step", "Loss by time", "Samples a second", "Workers"):
                with card(title):
                    self._charts[title] = chart(f"{title}, of both jobs", small=True)
            self._events = []
            for job in jobs:
                with card(f"Events of {job}"):
                    self._events.append(lines_list())

    def refresh(self, _: int) -> None:
        """Show the scheduler's last answer."""
        views = [self._desk.sight.jobs.get(job) for job in self._jobs]
        facts = [facts_of(view, self._desk.clock) if view is not None else {} for view in views]
        for part, records in zip(facts, self._records, strict=True):
            part |= {"Throughput": records.throughput, "Loss": records.loss, **records.metrics}
        rows = comparison_rows(*facts, *(records.options for records in self._records))
        if rows != self._rows:
            self._desk.replace_rows(self._grid, "name", self._rows, rows)
            self._rows = rows

    async def look(self) -> None:
        """Read the news of both jobs' records and stories, and draw them."""
        try:
            for place, job in enumerate(self._jobs):
                await asyncio.to_thread(self._records[place].look)
                view = self._desk.sight.jobs.get(job)
                if view is not None:
                    story = await asyncio.to_thread(self._desk.client.explain, job)
                    end = view.ended if view.ended is not None else self._desk.sight.timestamp
                    steps = workers_over_time(view, story, now=end)
                    self._workers[place] = [*steps, (end, steps[-1][1] if steps else 0)]
        except BrimError:
            return  # the frame says that the scheduler does not answer
        self._draw()
        self.refresh(0)

    def _draw(self) -> None:
        courses = [records.course for records in self._records]
        by_step = [list(zip(course.steps, course.loss, strict=True)) for course in courses]
        by_time = [charts.since_first(list(zip(c.times, c.loss, strict=True))) for c in courses]
        rates = [charts.since_first(list(zip(c.times, c.rate, strict=True))) for c in courses]
        workers = [charts.since_first(list(steps)) for steps in self._workers]
        pictures = {
            "Loss by step": charts.pair_chart(self._jobs, by_step, unit="step", from_zero=False),
            "Loss by time": charts.pair_chart(self._jobs, by_time, unit="s", from_zero=False),
            "Samples a second": charts.pair_chart(self._jobs, rates, unit="s"),
            "Workers": charts.pair_chart(self._jobs, workers, unit="s", holds=True),
        }
        for title, options in pictures.items():
            redraw(self._charts[title], options)
        for show, records in zip(self._events, self._records, strict=True):
            show([(self._desk.clock(moment), text) for moment, text in records.events])
