"""The parts that all pages are made of: frame, cards, tables, charts, and the question before a change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import unescape
from importlib import resources
from typing import Any

from nicegui import ui
from nicegui.element import Element

from brim.dashboard.desk import Desk
from brim.errors import BrimError
from brim.wire.cluster import Proposal

_NAV = {
    "/": "Cluster",
    "/jobs": "Jobs",
    "/nodes": "Nodes",
    "/tenants": "Tenants",
    "/compare": "Compare",
    "/submit": "Submit",
}
_THEMES: dict[bool | None, tuple[str, str]] = {
    None: ("brightness_auto", "Colours follow the system; now light"),
    False: ("light_mode", "Light; now dark"),
    True: ("dark_mode", "Dark; now as the system"),
}
_NEXT: dict[bool | None, bool | None] = {None: False, False: True, True: None}
_STYLE = resources.files("brim.dashboard").joinpath("style.css").read_text(encoding="utf-8")
# The id of the row that an event is in: the table's own events do not say which key it was.
_ROW_OF = (
    '(e) => { const r = e.target.closest("[row-id]"); if (r) emit(r.getAttribute("row-id")); }'
)


@contextmanager
def page_of(desk: Desk, path: str, title: str) -> Iterator[None]:
    """The frame of a page; its content goes inside.

    Args:
        path: of the entry that is marked in the navigation.
        title: its heading; empty: it has its own.
    """
    ui.add_css(_STYLE)
    dark = ui.dark_mode(desk.dark)
    problem = ui.label().classes("problem").props("role=status")
    content = ui.element("div").classes("content")
    ui.skip_link("Skip to the content", target=content)
    with ui.header(elevated=False).classes(replace="top"):
        ui.link("brim", "/").classes("brand").props('aria-label="brim, to the cluster"')
        with ui.element("nav").props('aria-label="Pages"'):
            for target, name in _NAV.items():
                link = ui.link(name, target)
                if target == path:
                    link.props("aria-current=page")
        with ui.element("div").classes("side"):
            status = ui.label().classes("status")
            theme = ui.button(icon=_THEMES[desk.dark][0], color=None).props("flat round dense")
            leave = ui.button(icon="logout", on_click=desk.sign_out, color=None)
            leave.props('flat round dense aria-label="Sign out"')

    def show_theme() -> None:
        icon, name = _THEMES[desk.dark]
        theme.props(f'icon={icon} aria-label="{name}"')

    def next_theme() -> None:
        desk.dark = dark.value = _NEXT[desk.dark]
        show_theme()

    theme.on_click(next_theme)
    show_theme()

    def look() -> None:
        sight = desk.sight
        problem_text = sight.problem or (sight.cluster.problem if sight.cluster else "")
        problem.set_text(problem_text)
        problem.set_visibility(bool(problem_text))
        caller = desk.client.namespace or sight.tenant or "administrator"
        status.set_text(
            "not connected" if sight.problem or sight.cluster is None else f"{caller} · live"
        )

    look()
    ui.timer(0.5, look)
    with content:
        if title:
            heading(title, 1)
        yield


def heading(text: str, level: int) -> ui.label:
    """A heading."""
    label = ui.label(text)
    label.tag = f"h{level}"
    return label


@contextmanager
def card(title: str) -> Iterator[Element]:
    """A part of a page; with a title, under a heading."""
    with ui.element("section").classes("card") as section:
        if title:
            heading(title, 2)
            section.props["aria-label"] = title
        yield section


@contextmanager
def outlined() -> Iterator[None]:
    """A row of controls that wraps."""
    with ui.element("div").classes("bar"):
        yield


def tiles(*names: str) -> Callable[..., None]:
    """Large numbers; returns the function that fills them: (number, note) for each name."""
    labels = []
    with ui.element("dl").classes("tiles"):
        for name in names:
            with ui.element("div").classes("tile"):
                _tagged("dt", name)
                labels.append((_tagged("dd", "–"), _tagged("dd", "").classes("note")))

    def show(*values: tuple[str, str]) -> None:
        for (number, note), (text, comment) in zip(labels, values, strict=True):
            number.set_text(text)
            note.set_text(comment)

    return show


def facts(names: Sequence[str], *, wide: Sequence[str] = ()) -> Callable[[Mapping[str, str]], None]:
    """A list of facts; returns the function that fills it.

    Args:
        wide: those that have a line of their own.
    """
    labels = {}
    with ui.element("dl").classes("facts"):
        for name in names:
            with ui.element("div") as part:
                _tagged("dt", name)
                part.classes("wide" if name in wide else "")
                labels[name] = (part, _tagged("dd", ""))

    def show(values: Mapping[str, str]) -> None:
        for name, (part, label) in labels.items():
            label.set_text(values.get(name, ""))
            part.set_visibility(bool(values.get(name)))

    return show


def _tagged(tag: str, text: str) -> ui.label:
    label = ui.label(text)
    label.tag = tag
    return label


def button(text: str, action: Callable[[], Any] | None = None, *, kind: str = "plain") -> ui.button:
    """A button.

    Args:
        kind: `plain`, `main` or `danger`.
    """
    return ui.button(text, on_click=action, color=None).props("no-caps unelevated").classes(kind)


def toggle(options: Mapping[Any, str], value: Any, name: str) -> ui.toggle:
    """A choice of a few."""
    chosen = ui.toggle(dict(options), value=value).props("dense no-caps flat")
    chosen.props["aria-label"] = name
    return chosen


def chart(name: str, *, small: bool = False) -> ui.echart:
    """An empty chart."""
    plot = ui.echart({}, renderer="svg").classes("chart small" if small else "chart")
    plot.props["aria-label"] = name
    return plot.props("role=img")


def redraw(plot: ui.echart, options: dict[str, Any]) -> None:
    """Show other options in a chart.

    All but the first go to the chart itself: as properties of an element, each number of them
    would be watched for changes.
    """
    if not plot.options:
        plot.options.update(options)
        plot.update()
    else:
        plot.run_chart_method("setOption", options, {"replaceMerge": ["series"]})


def lines_list() -> Any:
    """A list of times and sentences, the newest first; returns the function that fills it."""
    with ui.element("ul").classes("lines").props('tabindex="0"') as element:
        pass
    lines_shown: list[tuple[str, str]] = []

    def show(lines: list[tuple[str, str]]) -> None:
        nonlocal lines_shown
        known_count = len(lines_shown)
        is_longer = lines[:known_count] == lines_shown
        fresh = lines[known_count:] if is_longer else None
        if fresh is None:
            element.clear()
            fresh = lines
        lines_shown = list(lines)
        for moment, text in fresh:
            with element:
                with ui.element("li") as item:
                    time = ui.label(moment)
                    time.tag = "time"
                    span = ui.label(text)
                    span.tag = "span"
                item.move(target_index=0)

    return show


def grid(
    name: str,
    columns: Sequence[Mapping[str, Any]],
    *,
    key: str,
    height: str,
    opens: Callable[[str], None] | None = None,
) -> ui.aggrid:
    """A table that sorts and filters in the browser, thousands of rows at once.

    Args:
        key: the field that names a row.
        height: `tall` or `medium`.
        opens: is called with the name of a row that was clicked, or on which Enter was pressed.
    """
    element = ui.aggrid(
        {
            "columnDefs": [dict(column) for column in columns],
            "defaultColDef": {"sortable": True, "resizable": True, "suppressMovable": True},
            "rowData": [],
            ":getRowId": f"p => String(p.data.{key})",
            "animateRows": False,
            "overlayNoRowsTemplate": "nothing to show",
            "enableBrowserTooltips": True,
            "rowHeight": 36,
            "headerHeight": 38,
        }
    ).classes(f"grid {height}")
    element.props["aria-label"] = f"{name}, as a table"
    element.props("role=region")
    if opens is not None:
        element.classes("opens")
        for event in ("click", "keydown.enter"):
            # Tables escape the names of rows, though it is an attribute that they set.
            element.on(event, lambda event: opens(unescape(str(event.args))), js_handler=_ROW_OF)
    return element


def ask(
    desk: Desk,
    question: str,
    lines: Sequence[str],
    verb: str,
    carry_out: Callable[[], Awaitable[str]],
    *,
    proposal: Proposal,
    danger: bool = False,
) -> None:
    """Say the consequences of a change, and make it if they are confirmed.

    Args:
        carry_out: makes it; returns a sentence about it.
        proposal: the change, for the scheduler to foresee its consequences.
    """
    with ui.dialog(value=True) as dialog, ui.element("div").classes("ask"):
        dialog.props["aria-label"] = question
        heading(question, 2)
        with ui.element("ul"):
            for line in lines:
                _tagged("li", line)
        with ui.element("div") as meaning:
            heading("What it means for jobs", 3)
            with ui.element("div").props("role=status"), ui.element("ul") as effects:
                _tagged("li", "being foreseen…")
        with ui.element("div").classes("bar end"):
            button("Leave it", dialog.close).props("autofocus")
            confirm = button(verb, kind="danger" if danger else "main")
    dialog.on_value_change(lambda event: None if event.value else dialog.delete())

    async def foresee() -> None:
        try:
            found = await desk.foresee(proposal)
        except BrimError as error:
            found = [f"It cannot be foreseen: {error}"]
        effects.clear()
        with effects:
            for line in found:
                _tagged("li", line)

    async def confirmed() -> None:
        confirm.disable()
        try:
            message = await carry_out()
        except BrimError as error:
            complain(error)
            confirm.enable()
            return
        ui.notify(message, type="positive")
        dialog.close()

    confirm.on_click(confirmed)
    if desk.client.namespace is None:
        ui.timer(0.0, foresee, once=True)
    else:  # objects do not say it
        meaning.set_visibility(False)


def complain(error: BrimError) -> None:
    """Show why something was not done, until it is closed."""
    ui.notify(str(error), type="negative", multi_line=True, timeout=0, close_button="Close")
