"""The pages of the dashboard, as elements of NiceGUI: they show a sight and ask for changes.

Names, reasons and lines of logs come from others: each is the text of an element, never markup.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from brim.dashboard import charts, sentences
from brim.dashboard.compare_page import show_compare
from brim.dashboard.desk import Desk
from brim.dashboard.elements import ask, card, chart, grid, outlined, page_of, redraw, tiles, toggle
from brim.dashboard.job_page import show_job
from brim.dashboard.rows import job_row, node_rows, summary_of, tenant_rows, usage_rows
from brim.dashboard.series import picture_of
from brim.dashboard.submit_page import show_submit
from brim.dashboard.usage import usage_by_month
from brim.domain.quantities import counted
from brim.errors import BrimError
from brim.host.clock import monotonic
from brim.wire.cluster import JobView, Proposal

_SPANS = {900: "15 min", 3600: "1 h", 6 * 3600: "6 h", 24 * 3600: "1 day"}
_GROUPINGS = {"job": "by job", "tenant": "by tenant"}
_CHOICES = {"active": "Active", "ended": "Ended", "all": "All"}
_USAGE_EVERY = 60.0  # seconds between two looks at the usage of months, which is counted by minutes
_REDRAW_UNCHANGED = 5.0  # seconds between two pictures of the devices where none has changed hands

_JOB_COLUMNS = [
    {"field": "job", "headerName": "Job", "pinned": "left", "minWidth": 130, "flex": 2},
    {
        "field": "state",
        "headerName": "State",
        "minWidth": 110,
        "flex": 1,
        "cellClassRules": {"good": "x == 'running'", "bad": "x == 'failed' || x == 'refused'"},
    },
    {"field": "tenant", "headerName": "Tenant", "minWidth": 90, "flex": 1},
    {
        "field": "workers",
        "headerName": "Workers",
        "minWidth": 105,
        "flex": 1,
        ":valueFormatter": "p => p.data.workers_text",
    },
    {
        "field": "progress",
        "headerName": "Done",
        "minWidth": 90,
        "flex": 1,
        ":valueFormatter": "p => p.value === null ? p.data.steps_text : p.value + ' %'",
    },
    {
        "field": "deadline",
        "headerName": "Deadline",
        "minWidth": 190,
        "flex": 2,
        ":valueFormatter": "p => p.data.deadline_text",
        "cellClassRules": {"bad": "data.late"},
    },
    {
        "field": "finish",
        "headerName": "Ends",
        "minWidth": 110,
        "flex": 1,
        ":valueFormatter": "p => p.data.finish_text",
    },
    {"field": "why", "headerName": "Why", "minWidth": 260, "flex": 4, "tooltipField": "why"},
]
_NODE_COLUMNS = [
    {"field": "node", "headerName": "Node", "pinned": "left", "minWidth": 120, "flex": 1},
    {"field": "state", "headerName": "State", "minWidth": 110, "flex": 1},
    {"field": "devices", "headerName": "Devices", "minWidth": 95, "flex": 1},
    {"field": "held", "headerName": "In use", "minWidth": 90, "flex": 1},
    {"field": "free", "headerName": "Free", "minWidth": 80, "flex": 1},
    {"field": "jobs", "headerName": "Jobs", "minWidth": 180, "flex": 3},
    {"field": "host", "headerName": "Host", "minWidth": 130, "flex": 1},
    {"field": "problem", "headerName": "Problem", "minWidth": 180, "flex": 3},
]
_USAGE_COLUMNS: list[dict[str, Any]] = [
    {"field": "month", "headerName": "Month", "pinned": "left", "minWidth": 110, "flex": 1},
    {"field": "tenant", "headerName": "Tenant", "minWidth": 110, "flex": 2},
    *(
        {
            "field": name,
            "headerName": name.capitalize(),
            "minWidth": 105,
            "flex": 1,
            ":valueFormatter": "p => p.value === null ? '' : p.value.toFixed(2)",
        }
        for name in ("used", "owned", "borrowed", "lent")
    ),
]
_TENANT_COLUMNS = [
    {"field": "tenant", "headerName": "Tenant", "pinned": "left", "minWidth": 110, "flex": 2},
    {"field": "owed", "headerName": "Owed", "minWidth": 85, "flex": 1},
    {"field": "used", "headerName": "Used", "minWidth": 85, "flex": 1},
    {"field": "lent", "headerName": "Lent", "minWidth": 85, "flex": 1},
    {"field": "borrowed", "headerName": "Borrowed", "minWidth": 105, "flex": 1},
    {"field": "lately", "headerName": "Lately", "minWidth": 90, "flex": 1},
    {"field": "share", "headerName": "Share", "minWidth": 85, "flex": 1},
    {"field": "limit", "headerName": "Limit", "minWidth": 85, "flex": 1},
    {"field": "jobs", "headerName": "Jobs", "minWidth": 80, "flex": 1},
    {"field": "weight", "headerName": "Weight", "minWidth": 90, "flex": 1},
    {"field": "cohort", "headerName": "Cohort", "minWidth": 100, "flex": 1},
]


def add_pages(desk: Desk) -> None:
    """Register all pages of one dashboard."""

    @ui.page("/", title="Cluster · brim")
    def cluster() -> None:
        with page_of(desk, "/", "Cluster"):
            _show_cluster(desk)

    @ui.page("/jobs", title="Jobs · brim")
    def jobs() -> None:
        with page_of(desk, "/jobs", "Jobs"):
            _show_jobs(desk)

    @ui.page("/jobs/{job}")
    def job(job: str) -> None:
        ui.page_title(f"{job} · brim")
        with page_of(desk, "/jobs", ""):
            show_job(desk, job)

    @ui.page("/nodes", title="Nodes · brim")
    def nodes() -> None:
        with page_of(desk, "/nodes", "Nodes"):
            _show_nodes(desk)

    @ui.page("/tenants", title="Tenants · brim")
    def tenants() -> None:
        with page_of(desk, "/tenants", "Tenants"):
            _show_tenants(desk)

    @ui.page("/compare", title="Compare · brim")
    def compare(first: str = "", second: str = "") -> None:
        with page_of(desk, "/compare", "Compare two jobs"):
            show_compare(desk, first, second)

    @ui.page("/submit", title="Submit · brim")
    def submit() -> None:
        with page_of(desk, "/submit", "What if, and submit"):
            show_submit(desk)


def _show_cluster(desk: Desk) -> None:
    drawn_at, drawn_of = 0.0, ""
    show_tiles = tiles("Devices in use", "Jobs", "Nodes", "Policy")
    with card("Devices over time"):
        with outlined():
            grouping = toggle(_GROUPINGS, "job", "Colours")
            span = toggle(_SPANS, 3600, "Time shown")
        plot = chart("Devices in use over time, stacked, and what is planned")
        caption = ui.label().classes("faint")
    with card("Jobs that run or wait"):
        table = _job_grid(desk, "medium")

    def draw() -> None:
        nonlocal drawn_at, drawn_of
        picture = picture_of(
            desk.sight, grouping=str(grouping.value), seconds=float(span.value or 0)
        )
        words = charts.words_of(picture)
        now = desk.sight.timestamp
        if words != drawn_of or now - drawn_at >= _REDRAW_UNCHANGED:
            drawn_at, drawn_of = now, words
            redraw(plot, charts.devices_chart(picture))
            caption.set_text(words)

    def choose() -> None:
        nonlocal drawn_of
        drawn_of = ""
        if desk.sight.cluster is not None:
            draw()

    grouping.on_value_change(choose)
    span.on_value_change(choose)

    def refresh(version: int) -> None:
        sight = desk.sight
        view = sight.cluster
        if view is None:
            return
        usable = view.devices - view.headroom
        of = f"of {usable:,}, {100.0 * view.held / usable if usable else 0.0:.0f} %"
        speed = f"a cycle takes {view.cycles.median_ms:.1f} ms"
        if (namespace := desk.client.namespace) is not None:
            of, speed = "by jobs of this namespace", f"namespace {namespace}"
        up = sum(node.state == "up" and not node.drained for node in sight.nodes)
        show_tiles(
            (f"{view.held:,}", of),
            (f"{view.unfinished:,}", summary_of(sight.jobs)),
            (f"{up:,}", f"of {len(sight.nodes):,} take jobs"),
            (view.policy or "the operator's", speed),
        )
        draw()
        table(version)

    desk.keep_showing(refresh)


def _show_jobs(desk: Desk) -> None:
    with card(""):
        with outlined():
            search = (
                ui.input(placeholder="Filter: a job, tenant, state or reason")
                .props('outlined dense clearable aria-label="Filter jobs" debounce=150')
                .classes("grow")
            )
            choice = toggle(_CHOICES, "active", "Jobs shown")
            count = ui.label().classes("faint").props("role=status")
        table = _job_grid(desk, "tall", count=count)
        search.on_value_change(lambda event: table.filter(event.value or ""))
        choice.on_value_change(lambda event: table.choose(event.value))
        ui.label("Enter or a click opens a job; a click on a heading sorts.").classes("faint")
    desk.keep_showing(table)


class _JobTable:
    """A table of jobs, brought up to date by changed jobs alone."""

    def __init__(self, desk: Desk, element: ui.aggrid, count: ui.label | None) -> None:
        self._desk, self._element, self._count = desk, element, count
        self._choice = "active"
        self._rows: dict[str, dict[str, Any]] = {}

    def __call__(self, version: int) -> None:
        sight = self._desk.sight
        changed = sight.changed_after(version) if self._rows else list(sight.jobs.values())
        added, updated, removed = [], [], []
        for view in changed:
            row = job_row(view, self._desk.clock)
            old_row = self._rows.get(view.job)
            if not self._wants(view):
                if old_row is not None:
                    removed.append(self._rows.pop(view.job))
            elif old_row is None:
                added.append(row)
                self._rows[view.job] = row
            elif old_row != row:
                updated.append(row)
                self._rows[view.job] = row
        for job in sight.forgotten_after(version):
            if job in self._rows:
                removed.append(self._rows.pop(job))
        if added or updated or removed:
            self._element.run_grid_method(
                "applyTransaction",
                {
                    "add": added,
                    "update": updated,
                    "remove": [{"job": row["job"]} for row in removed],
                },
            )
        if self._count is not None:
            self._count.set_text(counted(len(self._rows), "job"))

    def choose(self, choice: str) -> None:
        """Show the active jobs, the ended ones, or all."""
        self._choice = choice
        views = [view for view in self._desk.sight.jobs.values() if self._wants(view)]
        self._rows = {view.job: job_row(view, self._desk.clock) for view in views}
        self._element.run_grid_method("setGridOption", "rowData", list(self._rows.values()))
        self(self._desk.sight.version)

    def filter(self, text: str) -> None:
        """Show the rows that have all words of a text."""
        self._element.run_grid_method("setGridOption", "quickFilterText", text)

    def _wants(self, view: JobView) -> bool:
        return self._choice == "all" or (self._choice == "ended") == view.has_ended


def _job_grid(desk: Desk, height: str, *, count: ui.label | None = None) -> _JobTable:
    element = grid("Jobs", _JOB_COLUMNS, key="job", height=height, opens=desk.open_job)
    return _JobTable(desk, element, count)


def _show_nodes(desk: Desk) -> None:
    last: list[dict[str, Any]] = []

    def drain(name: str) -> None:
        node = next((node for node in desk.sight.nodes if node.node == name), None)
        if node is None:
            return
        if desk.client.namespace is not None:
            ui.notify(f"kubectl drain {name} empties the node, and brim moves its jobs.")
            return
        if desk.sight.tenant is not None:
            ui.notify("Only the administrator drains nodes.")
            return
        undo = node.drained
        lines = (
            sentences.on_undrain(node)
            if undo
            else sentences.on_drain(node, desk.sight.jobs, desk.sight.nodes)
        )
        verb = "Open" if undo else "Drain"

        async def carry_out() -> str:
            await desk.call(lambda client: client.drain(name, undo=undo))
            return f"{name} is {'open again' if undo else 'drained'}"

        proposal = Proposal(action="undrain" if undo else "drain", node=name)
        ask(desk, f"{verb} {name}?", lines, f"{verb} {name}", carry_out, proposal=proposal)

    with card(""):
        element = grid("Nodes", _NODE_COLUMNS, key="node", height="tall", opens=drain)
        text = "Enter or a click on a node says what draining it would cost, and asks."
        if desk.client.namespace is not None:
            text = "The devices that jobs of this namespace hold, by node."
        elif desk.sight.tenant is not None:
            text = "Jobs of other tenants are not shown."
        ui.label(text).classes("faint")

    def refresh(_: int) -> None:
        nonlocal last
        rows = node_rows(desk.sight.nodes, desk.sight.jobs)
        if rows != last:
            desk.replace_rows(element, "node", last, rows)
            last = rows

    desk.keep_showing(refresh)


def _show_tenants(desk: Desk) -> None:
    last: list[dict[str, Any]] = []
    asked_at = -_USAGE_EVERY
    last_usage: list[dict[str, Any]] = []
    if desk.client.namespace is not None:
        ui.label("Tenants are objects of the whole cluster: kubectl get tenants.").classes("faint")
        return
    with card("Owed and used"):
        plot = chart("Devices that each tenant owns, uses, has lent and has borrowed")
    with card("Tenants"):
        element = grid("Tenants", _TENANT_COLUMNS, key="tenant", height="medium")
        ui.label(
            "Owed: guaranteed by the cluster's description. Lent: owed, idle, and held by tenants of "
            "the same cohort that borrow; it comes back within the grace period. Lately: borrowed on "
            "average, where the cluster's description has a half-life of use; share: of what all "
            "tenants have borrowed lately."
        ).classes("faint")
    with card("Device hours by month"):
        usage = grid("Device hours", _USAGE_COLUMNS, key="id", height="medium")
        ui.label(
            "Months are those of UTC; the newest is counted until now. brim usage has accounts and jobs."
        ).classes("faint")

    async def look() -> None:
        nonlocal asked_at, last_usage
        if monotonic() - asked_at < _USAGE_EVERY:
            return
        asked_at = monotonic()
        try:
            views = await asyncio.to_thread(usage_by_month, desk.client)
        except BrimError:
            return  # the frame says that the scheduler does not answer
        rows = usage_rows(views)
        desk.replace_rows(usage, "id", last_usage, rows)
        last_usage = rows

    ui.timer(1.0, look)

    def refresh(_: int) -> None:
        nonlocal last
        rows = tenant_rows(desk.sight.tenants)
        if rows != last:
            desk.replace_rows(element, "tenant", last, rows)
            redraw(plot, charts.tenants_chart(rows))
            last = rows

    desk.keep_showing(refresh)
