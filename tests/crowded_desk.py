"""A dashboard of a cluster that is made up: thousands of jobs, hundreds of nodes, and texts of strangers.

Run as a program it serves one, and prints the address that opens it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from brim.client import Client
from brim.domain.course import Change
from brim.wire.cluster import (
    ClusterView,
    Effect,
    JobView,
    Logs,
    News,
    NodeView,
    Proposal,
    TenantView,
    Times,
    UsageRow,
    UsageView,
    WorkerStack,
)

DEVICES = 8  # of a node
WORKERS = 8  # of a running job
TENANTS = 5
NAMES = ("ranker", "flights", "wide-deep", "bert", "sweep")
MARKUP = '<b onclick="alert(1)">bold<img src=x onerror="document.title=\'gone\'">'
_TIMES = Times(count=1, median_ms=1.0, p99_ms=2.0)


class MadeUpScheduler:
    """Answers as a scheduler's client does, of jobs that make progress with each answer.

    Args:
        jobs: that have not ended.
        nodes: of the cluster; a job runs on each of them, but no more than 100.
        markup: put where users put names and reasons.
    """

    is_elsewhere = False
    namespace = None
    address = "http://127.0.0.1:1"

    def __init__(self, *, jobs: int, nodes: int, markup: str = "") -> None:
        self._count, self._markup, self._asked = jobs, markup, 0
        self._running = min(jobs, nodes, 100)
        self._start = time.time() - 3600.0
        self._nodes = [
            NodeView(
                node=f"n{k}{markup}", devices=DEVICES, held=WORKERS if k < self._running else 0, switch=k // 16,
                address=f"10.0.{k // 250}.{k % 250}", state="up", drained=False, problem=markup,
            )
            for k in range(nodes)
        ]  # fmt: skip
        self.asked: list[str] = []

    def jobs(self, *, unfinished: bool = False) -> list[JobView]:
        return [self._job(k) for k in range(self._count)]

    def news(self, place: str = "", *, wait: float = 0.0) -> News:
        if place:
            time.sleep(min(wait, 0.5))
        self._asked += 1
        return News(
            place="x.1.1",
            complete=bool(place),
            jobs=[self._job(k) for k in range(self._running)],
            forgotten=[],
            changes=[] if place else list(self._story()),
            cluster=ClusterView(
                policy="brim", devices=DEVICES * len(self._nodes), headroom=0, held=WORKERS * self._running,
                nodes={}, unfinished=self._count, cycles=_TIMES, looks=_TIMES, problem=self._markup,
            ),
            nodes=self._nodes,
            tenants=[
                TenantView(tenant=f"t{k}{self._markup}", guaranteed=320, holds=160, borrows=0, jobs=1000)
                for k in range(TENANTS)
            ],
            tenant=None,
            timestamp=time.time(),
        )  # fmt: skip

    def plan(self) -> list[Change]:
        """Return the ends of the running jobs, each of which makes room for one that waits."""
        now = time.time()
        changes = []
        for k in range(min(self._running, self._count - self._running)):
            at = now + 120.0 + 150.0 * k
            waiting = self._name(self._running + k)
            changes.append(Change(at, self._name(k), "workers", WORKERS, 0, "finished"))
            changes.append(Change(at, waiting, "workers", 0, WORKERS, "surplus"))
        return changes

    def usage(self, month: str = "", **_: Any) -> UsageView:
        row = UsageRow(name=f"t0{self._markup}", tenant=f"t0{self._markup}", used_seconds=3600.0)
        return UsageView(
            month=month or "2026-11", group_by="tenant", start=0.0, end=1.0, until=1.0,
            first_month="2026-11", rows=[row],
        )  # fmt: skip

    def explain(self, job: str) -> list[Change]:
        return [Change(self._start, job, "submitted", detail=self._markup)]

    def log_lines(self, job: str, *, place: str = "", **_: Any) -> Logs:
        text = f"a line {self._markup}"
        return Logs(lines=[] if place else [("w1", text)], after="{}", ended=False)

    def consequences(self, wish: Proposal) -> list[Effect]:
        return [
            Effect(
                job=f"other{self._markup}",
                workers=1,
                workers_after=2,
                finish=None,
                finish_after=None,
            )
        ]

    def stacks(self, job: str) -> list[WorkerStack]:
        line = f'  File "job.py", line 3, in loss{self._markup}'
        return [WorkerStack(worker="w1 (rank 0)", stack=line), WorkerStack(worker="w2", stack="")]

    def cancel(self, job: str) -> JobView:
        self.asked.append(f"cancel {job}")
        return self._job(0)

    def job(self, job: str) -> JobView:
        return self._job(0)

    def _name(self, k: int) -> str:
        return f"{NAMES[k % len(NAMES)]}{self._markup}-{k + 1}"

    def _story(self) -> Iterator[Change]:
        for k in range(self._running):
            at = self._start + 3000.0 * k / self._running
            yield Change(at, self._name(k), "submitted")
            yield Change(at, self._name(k), "workers", 0, WORKERS, "surplus", self._markup)
            yield Change(at, self._name(k), "running")

    def _job(self, k: int) -> JobView:
        runs = k < self._running
        return JobView(
            job=self._name(k), state="running" if runs else "admitted", wish="run", run="/nowhere",
            tenant=f"t{k % TENANTS}{self._markup}", priority="preemptible", minimum=1, maximum=WORKERS,
            nodes={f"n{k}{self._markup}": WORKERS} if runs else {}, workers=WORKERS * runs, planned=WORKERS * runs,
            step=20_000 + 5_000 * (k % 9) + 3 * self._asked if runs else 0, steps=100_000,
            submitted=self._start + k, started=None, ended=None,
            deadline=self._start + 90_000.0 + k if k % 3 == 0 else None, promised=k % 2 == 0, judged=True,
            reason="surplus-by-marginal-return",
            detail=f"0 needed, {WORKERS} from the surplus {self._markup}",
            earliest=None, estimate=None, finish=self._start + 80_000.0 + k, first_estimate=None,
            half_estimate=None, attained_seconds=3600.0 * runs, launches=1, problem="", summary={},
        )  # fmt: skip


def main(jobs: int, nodes: int, markup: str) -> None:
    from brim.dashboard.server import serve

    serve(
        cast(Client, MadeUpScheduler(jobs=jobs, nodes=nodes, markup=markup)),
        port=0,
        folder=Path.cwd(),
        opens=lambda url: print(url, flush=True),  # noqa: T201
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), MARKUP if "markup" in sys.argv else "")
