"""The page on which a job is forecast, and then submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from nicegui import ui

from brim.client import Client
from brim.dashboard import sentences
from brim.dashboard.desk import Desk
from brim.dashboard.elements import button, card
from brim.dashboard.typed import files_in, typed_request, words_of
from brim.errors import BrimError
from brim.runs.submitting import hand_in
from brim.wire.cluster import JobView, Submit

_PRIORITIES = ["preemptible", "preserved", "online"]


def show_submit(desk: Desk) -> None:
    """The content of the page."""
    form = _Form(desk)
    form.show()


class _Form:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def show(self) -> None:
        """Make the fields, the buttons and the place for the answer."""
        desk = self._desk
        with card("The job"):
            ui.label(f"Files in {desk.folder}, where brim dashboard was started.").classes("faint")
            with ui.element("div").classes("two"):
                self._file = ui.select(
                    files_in(desk.folder),
                    with_input=True,
                    new_value_mode="add-unique",
                    label="File",
                )
                self._file.props("outlined dense")
                self._workers = _field("Workers: a number, or FEWEST:MOST", "1:4")
                self._deadline = _field("Deadline: 2h, or 2026-12-01T08:00", "")
                # A namespace does not say which tenants it may use; where it is one, it needs no name.
                self._tenant = ui.select(
                    [],
                    label="Tenant",
                    new_value_mode=None if desk.client.namespace is None else "add-unique",
                )
                self._tenant.props("outlined dense")
                self._priority = ui.select(_PRIORITIES, value=_PRIORITIES[0], label="Priority")
                self._priority.props("outlined dense")
                self._options = _field("More options, as brim submit takes them", "")
            with ui.element("div").classes("bar"):
                self._ask = button("What if?", self._forecast)
                self._ask.set_visibility(desk.client.namespace is None)
                self._submit = button("Submit", self._hand_in, kind="main")
        with card("What would happen"), ui.element("div").props("role=status"):
            self._answer = ui.element("ul").classes("lines")
        desk.keep_showing(self._offer_tenants)
        self._say(
            ["“What if?” asks the scheduler, and submits nothing."]
            if desk.client.namespace is None
            else [f"The job becomes an ElasticJob of namespace {desk.client.namespace}."]
        )

    def _tenants(self) -> list[str]:
        sight = self._desk.sight
        if self._desk.client.namespace is not None:
            return sorted({view.tenant for view in sight.jobs.values()})
        if sight.tenant is not None:
            return [sight.tenant]
        return [view.tenant for view in sight.tenants] or ["default"]

    def _offer_tenants(self, _: int) -> None:
        tenants = self._tenants()
        if tenants != self._tenant.options:
            chosen = self._tenant.value if self._tenant.value in tenants else None
            is_clear = len(tenants) == 1 and self._desk.client.namespace is None
            self._tenant.set_options(tenants, value=chosen or (tenants[0] if is_clear else None))

    def _words(self) -> list[str]:
        return words_of(
            {
                "workers": self._workers.value or "",
                "deadline": self._deadline.value or "",
                "tenant": self._tenant.value or "",
                "priority": self._priority.value or "",
                "more": self._options.value or "",
                "file": self._file.value or "",
            }
        )

    async def _forecast(self) -> None:
        def forecast(client: Client, request: Submit) -> list[str]:
            dry = msgspec.structs.replace(request, bundle=b"")  # nothing of it is run
            return sentences.of_forecast(client.forecast(dry), self._desk.clock)

        await self._carry_out(self._ask, forecast)

    async def _hand_in(self) -> None:
        def submit(client: Client, request: Submit) -> list[str]:
            view: JobView = hand_in(client, request)
            job.append(view.job)
            return [f"{view.job} is submitted."]

        job: list[str] = []
        await self._carry_out(self._submit, submit)
        if job:
            self._desk.open_job(job[0])

    async def _carry_out(
        self, button: ui.button, work: Callable[[Client, Submit], list[str]]
    ) -> None:
        button.disable()
        try:
            words = self._words()
            request, notes = await asyncio.to_thread(typed_request, words, folder=self._desk.folder)
            lines = await self._desk.call(lambda client: work(client, request))
        except BrimError as error:
            self._say(str(error).splitlines(), bad=True)
        else:
            self._say([*lines, *notes])
        finally:
            button.enable()

    def _say(self, lines: list[str], *, bad: bool = False) -> None:
        self._answer.clear()
        with self._answer:
            for line in lines:
                with ui.element("li"):
                    label = ui.label(line).classes("bad" if bad else "")
                    label.tag = "span"


def _field(name: str, value: str) -> ui.input:
    return ui.input(name, value=value).props("outlined dense")
