"""The state that all pages of one dashboard share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from nicegui import context, ui

from brim.client import Client
from brim.dashboard.following import Following
from brim.dashboard.guard import SIGNED_OUT
from brim.dashboard.rows import Clock
from brim.dashboard.sentences import of_effects
from brim.dashboard.sight import ClusterSight
from brim.wire.cluster import Proposal

_TO_LEAVE = 0.3  # seconds until a session that was signed out is over
_REFRESH = 0.2  # seconds between two looks at whether there is something new to show
T = TypeVar("T")
Row = dict[str, Any]


class Desk:
    """One dashboard.

    Args:
        client: of the scheduler, with its person's token.
        following: keeps the sight current.
        folder: jobs are submitted from files in it.
        clock: says a time as people read it.
        sign_out: ends the session of this value.

    Attributes:
        dark: whether pages are dark; None: as the browser's system is.
    """

    def __init__(
        self,
        client: Client,
        following: Following,
        *,
        folder: Path,
        clock: Clock,
        sign_out: Callable[[str], None],
    ) -> None:
        self.client, self._following = client, following
        self.folder, self.clock = folder, clock
        self._sign_out = sign_out
        self.dark: bool | None = None

    @property
    def sight(self) -> ClusterSight:
        return self._following.sight

    def keep_showing(self, refresh: Callable[[int], None]) -> None:
        """Call `refresh` whenever there is something new, as long as the page is open.

        It is handed the version of the call before; 0 at first.
        """
        version_shown = 0

        def look() -> None:
            nonlocal version_shown
            version = self.sight.version
            if version != version_shown and self.sight.cluster is not None:
                refresh(version_shown)
                version_shown = version

        ui.timer(_REFRESH, look)

    async def call(self, ask: Callable[[Client], T]) -> T:
        """Ask the scheduler, in a thread; the pages show the result as soon as it has one."""
        answer = await asyncio.to_thread(ask, self.client)
        self._following.wake.set()
        return answer

    async def foresee(self, proposal: Proposal) -> list[str]:
        """Describe the consequences of a change for each job."""
        effects = await asyncio.to_thread(self.client.consequences, proposal)
        ends = proposal.action in ("suspend", "cancel")  # that it has no workers then was said
        effects = [effect for effect in effects if not (ends and effect.job == proposal.job)]
        return of_effects(effects, self.sight.jobs, self.clock)

    def open_job(self, job: str) -> None:
        """Go to the page of a job."""
        ui.navigate.to(f"/jobs/{quote(job, safe='')}")

    def sign_out(self) -> None:
        """End the session of the page that asks."""
        value = context.client.request.scope.get("brim.session", "")
        ui.navigate.to(SIGNED_OUT)
        # Not before the page has heard of it.
        asyncio.get_running_loop().call_later(_TO_LEAVE, self._sign_out, value)

    def replace_rows(
        self, grid: ui.aggrid, key: str, old_rows: list[Row], new_rows: list[Row]
    ) -> None:
        """Bring the rows of a table up to date, which keeps its place and its focus."""
        old = {row[key]: row for row in old_rows}
        new = {row[key]: row for row in new_rows}
        grid.run_grid_method(
            "applyTransaction",
            {
                "add": [row for name, row in new.items() if name not in old],
                "update": [row for name, row in new.items() if name in old and old[name] != row],
                "remove": [{key: name} for name in old if name not in new],
            },
        )
