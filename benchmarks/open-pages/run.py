"""What open pages of the dashboard cost a crowded scheduler, and whether anything grows: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from benchmarks.harness.asking import percentile, percentiles, scheduler_of, stepping, timed, used
from benchmarks.harness.brim_cluster import BrimCluster, Kind, Learnt
from benchmarks.harness.report import Report, table
from brim.domain.measuring import Measured
from brim.wire.cluster import Submit

BENCHMARK = Path(__file__).parent
WAITS = Kind(name="waits", wait=1.0, maximum=1)  # a step of 8 s: the jobs leave the processors free
_EPOCHS = 1000  # more than any of them makes
VIEWS = ("", "jobs", "nodes", "tenants", "jobs/waits-1")
_SETTLED = 60.0  # seconds for pages and caches to be there
_BETWEEN_SAMPLES = 30.0
_BETWEEN_ENDS = 5.0  # of a job, for which another one is submitted


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it is done.

    Args:
        questions: of each kind, a turn.
        soak: seconds.
    """

    jobs: int
    running: int
    pages: int
    turns: int
    questions: int
    soak: float


FULL = Size(jobs=5000, running=100, pages=10, turns=3, questions=100, soak=3600.0)
QUICK = Size(jobs=50, running=4, pages=2, turns=1, questions=10, soak=60.0)


@dataclass(slots=True)
class Side:
    """One side's figures, of all turns.

    Attributes:
        submits, statuses: seconds to an answer.
        shares: of one processor, that the scheduler used in each turn.
    """

    submits: list[float] = field(default_factory=list)
    statuses: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one time.

    Attributes:
        minute: since the begin of the soak.
        memory: MiB that are its own.
    """

    minute: float
    memory: float
    threads: int
    files: int


@dataclass(slots=True)
class Found:
    without: Side = field(default_factory=Side)
    open: Side = field(default_factory=Side)
    dashboard: list[float] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    ended: int = 0


def fill(cluster: BrimCluster, size: Size, report: Report) -> None:
    """Hand all jobs in, half of them with a deadline, and wait until as many as can run."""
    for number in range(size.jobs):
        submit(cluster, number)
        if number % 500 == 499:
            report.say(f"{number + 1} jobs are submitted")
    cluster.until(
        f"{size.running} jobs with a step",
        lambda: stepping(cluster.client) >= size.running,
        timeout=600,
    )
    report.say(f"{size.running} of them run")


def submit(cluster: BrimCluster, number: int) -> str:
    """Hand a job in; its id."""
    deadline = time.time() + 1e6 + 3600.0 * number if number % 2 else None
    submission = WAITS.submission(epochs=_EPOCHS, deadline=deadline)
    return cluster.client.submit(Submit(submission=submission, name="waits")).job


def turn(cluster: BrimCluster, size: Size, side: Side) -> None:
    """Submit, ask and cancel for a while."""
    scheduler = scheduler_of(cluster)
    used_before, started = used(scheduler), time.monotonic()
    for number in range(size.questions):
        asked = time.perf_counter()
        job = submit(cluster, number)
        side.submits.append(time.perf_counter() - asked)
        side.statuses.append(timed(partial(cluster.client.job, "waits-1")))
        cluster.client.cancel(job)
        time.sleep(0.1)
    side.shares.append((used(scheduler) - used_before) / (time.monotonic() - started))


@contextlib.contextmanager
def dashboard(cluster: BrimCluster) -> Iterator[tuple[psutil.Process, str]]:
    """A dashboard of its own process; yields it, and the address that opens it."""
    log = cluster.folder / "dashboard.log"
    with log.open("wb") as output:
        process = cluster.start("dashboard", "--no-browser", output=output)
    try:
        end = time.monotonic() + 60.0
        while not (found := re.search(r"http://\S+", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no dashboard: {log.read_text()}")
            time.sleep(0.1)
        yield psutil.Process(process.pid), found[0]
    finally:
        process.terminate()
        process.wait(30.0)


def enter(browser: Browser, url: str) -> BrowserContext:
    """Open a dashboard by its address, which is good for once; return what has its pages from now on."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000.0)
    page = context.new_page()
    page.goto(url)
    page.wait_for_url(f"{base_of(url)}/")
    page.close()
    return context


def base_of(url: str) -> str:
    return url.partition("/enter")[0]


@contextlib.contextmanager
def pages(context: BrowserContext, base: str, count: int) -> Iterator[None]:
    """Open pages, of each view as many as of the others or one more."""
    for _, view in zip(range(count), itertools.cycle(VIEWS), strict=False):
        page = context.new_page()
        page.goto(f"{base}/{view}")
        page.locator("h1").wait_for()
    yield
    for page in context.pages:
        page.close()


def soak(
    cluster: BrimCluster, size: Size, found: Found, report: Report, page: psutil.Process
) -> None:
    """End a job and submit another one, again and again, and look at the processes meanwhile."""
    watched = {"scheduler": scheduler_of(cluster), "dashboard": page}
    client, started = cluster.client, time.monotonic()
    sampled, number = -_BETWEEN_SAMPLES, size.jobs
    while (elapsed := time.monotonic() - started) < size.soak:
        if elapsed - sampled >= _BETWEEN_SAMPLES:
            sampled = elapsed
            for name, process in watched.items():
                found.samples.setdefault(name, []).append(look_at(process, elapsed / 60.0))
            found.sizes.append((elapsed / 60.0, database_mib(cluster)))
            last = {name: samples[-1] for name, samples in found.samples.items()}
            report.say(
                f"minute {elapsed / 60:.1f} of {size.soak / 60:.0f}: "
                + ", ".join(f"{name} {sample.memory:.0f} MiB" for name, sample in last.items())
            )
        views = client.jobs()
        running = [view.job for view in views if view.state == "running"]
        waiting = [view.job for view in views if not view.has_ended and view.state != "running"]
        # One that runs and one that waits, by turns.
        jobs = running if found.ended % 2 and running else waiting
        client.cancel(jobs[0])
        found.ended += 1
        number += 1
        submit(cluster, number)
        time.sleep(_BETWEEN_ENDS)


def look_at(process: psutil.Process, minute: float) -> Sample:
    """Look at a process."""
    memory = process.memory_full_info().uss / 2**20
    return Sample(minute, memory, process.num_threads(), process.num_fds())


def database_mib(cluster: BrimCluster) -> float:
    """MiB of the scheduler's database, with its journal."""
    return sum(path.stat().st_size for path in cluster.state.glob("scheduler.db*")) / 2**20


def measure(size: Size, found: Found, report: Report) -> None:
    learnt = Learnt(measured={WAITS.name: Measured({1: (20.0, 160.0 * WAITS.wait)})}, costs={})
    nodes = [{"name": f"n{k}", "workers": size.running // 4} for k in range(1, 5)]
    tenant = {"name": "default", "guaranteed": size.running, "jobs": 2 * size.jobs}
    content = {"nodes": nodes, "tenants": [tenant]}
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with (
        BrimCluster(content, learnt=learnt, kinds=[WAITS]) as cluster,
        sync_playwright() as playwright,
        dashboard(cluster) as (process, url),
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context, base = enter(browser, url), base_of(url)
        fill(cluster, size, report)
        for number in range(size.turns):
            report.say(f"turn {number + 1} of {size.turns}")
            turn(cluster, size, found.without)
            with pages(context, base, size.pages):
                time.sleep(min(_SETTLED, size.soak))
                used_before, started = used(process), time.monotonic()
                turn(cluster, size, found.open)
                found.dashboard.append((used(process) - used_before) / (time.monotonic() - started))
        if size.soak:
            with pages(context, base, size.pages):
                soak(cluster, size, found, report, process)
        browser.close()


def tell(report: Report, size: Size, found: Found) -> dict[str, Any]:
    rows = []
    for name in ("submits", "statuses"):
        values = [getattr(side, name) for side in (found.without, found.open)]
        rows.append(
            [
                f"`{name.removesuffix('s').removesuffix('e')}`, ms: median, p99",
                *(", ".join(percentiles(seconds)) for seconds in values),
                ", ".join(
                    f"{percentile(values[1], part) / percentile(values[0], part):.2f}"
                    for part in (0.5, 0.99)
                ),
            ]
        )
    shares = [statistics.median(side.shares) for side in (found.without, found.open)]
    rows.append(
        [
            "the scheduler's processor",
            *(f"{part:.1%}" for part in shares),
            f"{shares[1] / shares[0]:.2f}",
        ]
    )
    report.add(
        f"## {size.jobs:,} jobs, {size.running} of them running\n\n"
        + table(["what", "no page", f"{size.pages} pages", "ratio"], rows)
        + f"\n\nThe dashboard itself uses {statistics.median(found.dashboard):.1%} of one processor "
        "meanwhile (median of the turns)."
    )
    if size.soak:
        report.add(told_soak(size, found))
    return {
        "without": asdict(found.without),
        "open": asdict(found.open),
        "dashboard_share": found.dashboard,
        "soak": {
            name: [
                [sample.minute, sample.memory, sample.threads, sample.files] for sample in samples
            ]
            for name, samples in found.samples.items()
        },
        "database_mib": [list(pair) for pair in found.sizes],
        "jobs_ended": found.ended,
    }


def told_soak(size: Size, found: Found) -> str:
    """The table of what grew: the second sixth of the time beside the last."""
    end = size.soak / 60.0
    rows = []
    for name, samples in found.samples.items():
        first = [sample for sample in samples if end / 6 <= sample.minute < end / 3]
        last = [sample for sample in samples if sample.minute >= end * 5 / 6]
        rows.append(
            [
                name,
                *(
                    f"{middle(first, name)} → {middle(last, name)}"
                    for name in ("memory", "threads", "files")
                ),
            ]
        )
    head = ["process", "MiB of its own", "threads", "open files"]
    return (
        f"## {end:.0f} minutes with {size.pages} open pages\n\nA job ends every {_BETWEEN_ENDS:g} s, one that runs "
        f"and one that waits by turns, and another one is submitted ({found.ended} in all). Medians of minutes "
        f"{end / 6:.0f} to {end / 3:.0f}, and of the last {end / 6:.0f}.\n\n{table(head, rows)}\n\n"
        f"The database has {found.sizes[0][1]:.1f} MiB at first and {found.sizes[-1][1]:.1f} at the end: it keeps "
        "jobs that have ended, and the newest cycles, up to 256 MiB of them."
    )


def middle(samples: Sequence[Sample], field: str) -> str:
    """The median of a field, where a soak was long enough to have any."""
    values = [float(getattr(sample, field)) for sample in samples]
    return f"{statistics.median(values):.0f}" if values else "–"


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3))
    left, right = figure.subplots(1, 2)
    for label, side, style in (("no page", found.without, "--"), ("pages", found.open, "-")):
        for name, color in (("submits", "tab:blue"), ("statuses", "tab:orange")):
            ordered = sorted(1000.0 * value for value in getattr(side, name))
            parts = [(k + 1) / len(ordered) for k in range(len(ordered))]
            left.plot(ordered, parts, style, color=color, label=f"{name}, {label}")
    left.set_xscale("log")
    left.set_xlabel("milliseconds to the answer")
    left.set_ylabel("part of the questions")
    left.legend(fontsize="small")
    for name, samples in found.samples.items():
        right.plot(
            [sample.minute for sample in samples], [sample.memory for sample in samples], label=name
        )
    right.set_xlabel("minutes")
    right.set_ylabel("MiB of its own")
    right.set_ylim(0.0, 1.2 * max(right.get_ylim()))
    if found.samples:
        right.legend(fontsize="small")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} About 70 minutes.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument(
        "--soak", type=float, default=60.0, help="minutes in which nothing is to grow"
    )
    words = parser.parse_args()
    quick = words.quick
    size = QUICK if quick else replace(FULL, soak=60.0 * words.soak)
    report = Report(BENCHMARK, "What open pages cost, and what grows", seed=0)
    found = Found()
    measure(size, found, report)
    data = tell(report, size, found)
    if not quick:
        report.write(data, plot(found))


if __name__ == "__main__":
    main()
