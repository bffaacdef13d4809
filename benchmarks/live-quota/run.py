"""Two tenants lend and reclaim under load, on real jobs, one of which refuses to give way: see
README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_cluster import FILE, BrimCluster, Kind, replay_line
from benchmarks.harness.report import Report, table
from benchmarks.harness.waiting import GLOBAL_BATCH, MICRO_BATCHES
from brim.domain.schedule import Reason
from brim.scheduler.cycles import decode_cycle
from brim.storage.contact import read_contact
from brim.telemetry.events import RoundFormed, RunStarted, WorkerChanged
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
SLOTS, GUARANTEED, GRACE = 8, 4, 5.0
TENANTS = ("ads", "web")
LENDER, BORROWER = "web", "ads"
KIND = Kind(name="job", wait=0.05)
_BORROWERS, _OWNERS = 2, 10  # jobs of the borrower, and epochs of one of the owner's
_HEARTBEAT = 60.0  # so that nobody but the scheduler sees to a worker that is stopped

Workers = list[tuple[float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """One return of lent devices; times are seconds since the beginning.

    Args:
        how: the fault of the job that has to give, if any.
        submitted: the owner's job.
        asked: when the plan took the devices from the borrower.
        given: when the owner's job was started on them.
        forced: the message to the borrower's jobs, where the grace period had to be enforced.
    """

    how: str
    job: str
    submitted: float
    asked: float
    given: float
    forced: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.given - self.asked


class Scene:
    """The cluster, its borrowers, and the events so far."""

    def __init__(self, cluster: BrimCluster, *, epochs: int, say: Callable[[str], None]) -> None:
        self.cluster, self.say = cluster, say
        self.origin = time.time()
        self.reclaims: list[Reclaim] = []
        self.owners: list[str] = []
        self.epochs = epochs
        self.borrowers = [self._submit(BORROWER, epochs) for _ in range(_BORROWERS)]

    def _submit(self, tenant: str, epochs: int, *, maximum: int = 8) -> str:
        submission = replace(KIND, maximum=maximum).submission(epochs=epochs, tenant=tenant)
        spec = replace(submission.spec, heartbeat_timeout=_HEARTBEAT)
        return self.cluster.submit(tenant, replace(submission, spec=spec))

    def until_all_is_lent(self) -> None:
        """Until the borrower's jobs train on every slot."""
        self.cluster.until(
            "all slots with the borrower",
            lambda: sum(self.worlds(job)[-1][1] for job in self.borrowers) == SLOTS,
        )

    def reclaim(self, manner: str = "", jobs: int = 1) -> None:
        """The owner comes back, and is served; then it leaves again."""
        asked_at = time.time()
        own_jobs = [self._submit(LENDER, _OWNERS, maximum=GUARANTEED // jobs) for _ in range(jobs)]
        self.owners += own_jobs
        self.cluster.until(
            f"{own_jobs[0]} running",
            lambda: all(self._when(job, "running") is not None for job in own_jobs),
        )
        served_at = max(self._when(job, "running") or 0.0 for job in own_jobs)
        requested_at = min(
            change.at
            for job in self.borrowers
            for change in self.cluster.client.explain(job)
            if change.reason == Reason.RECLAIMED and change.at >= asked_at
        )
        forced = tuple(
            f"{job}: {change.detail}"
            for job in self.borrowers
            for change in self.cluster.client.explain(job)
            if change.event == "forced" and change.at >= asked_at
        )
        found = Reclaim(
            how=manner, job=", ".join(own_jobs), submitted=asked_at - self.origin, asked=requested_at - self.origin,
            given=served_at - self.origin, forced=forced,
        )  # fmt: skip
        self.say(
            f"reclaimed for {found.job} within {found.seconds:.2f} s{f' ({manner})' if manner else ''}"
        )
        self.reclaims.append(found)
        self.cluster.until(
            "the owner's end",
            lambda: all(self.cluster.asked[job].last.has_ended for job in own_jobs),
        )

    def stop_a_worker(self) -> int:
        """SIGSTOP the last worker of a borrower; its process id."""
        job = max(self.borrowers, key=lambda job: self.worlds(job)[-1][1])
        history = self.cluster.history(job)
        assert history.round is not None
        return _stop(history.workers[history.round.workers[-1]].pid)

    def stop_a_master(self) -> int:
        """SIGSTOP the master of a borrower."""
        job = max(self.borrowers, key=lambda job: self.worlds(job)[-1][1])
        contact = read_contact(Path(self.cluster.asked[job].last.run))
        assert contact is not None
        return _stop(contact.pid)

    def worlds(self, job: str) -> Workers:
        """(when, workers of the world from then on); 0 before the first."""
        events = self.cluster.history(job).events
        return [
            (0.0, 0),
            *((e.at - self.origin, e.world_size) for e in events if isinstance(e, RoundFormed)),
        ]

    def processes(self, job: str) -> Workers:
        """(when, workers that have a process from then on), as devices are held."""
        events: list[tuple[float, str, int]] = []
        for event in self.cluster.history(job).events:
            match event:
                case WorkerChanged(state="lost" | "left", worker=worker):
                    events.append((event.at, worker, 0))
                case WorkerChanged(worker=worker, pid=pid) if pid:
                    events.append((event.at, worker, 1))
                case RunStarted():
                    events.append((event.at, "", 0))
        for change in self.cluster.client.explain(job):
            if change.event in ("suspended", "done"):
                events.append((change.at, "", 0))
        workers_present: set[str] = set()
        found: Workers = [(0.0, 0)]
        for moment, worker, is_present in sorted(events):
            workers_present = (
                set()
                if not worker
                else workers_present | {worker}
                if is_present
                else workers_present - {worker}
            )
            found.append((moment - self.origin, len(workers_present)))
        return found

    def _when(self, job: str, event: str) -> float | None:
        return next(
            (change.at for change in self.cluster.client.explain(job) if change.event == event),
            None,
        )


def _stop(pid: int) -> int:
    os.kill(pid, signal.SIGSTOP)
    return pid


def play(scene: Scene, *, quick: bool) -> None:
    """Lend, reclaim in two ways, and reclaim from jobs that refuse."""
    scene.until_all_is_lent()
    scene.reclaim()
    if not quick:
        scene.until_all_is_lent()
        scene.reclaim(jobs=2)
    stops: list[tuple[str, Callable[[], int]]] = [("a worker was stopped", scene.stop_a_worker)]
    if not quick:
        stops.append(("a master was stopped", scene.stop_a_master))
    for manner, stop in stops:
        scene.until_all_is_lent()
        pid = stop()
        scene.reclaim(manner)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # where nobody has killed it
    scene.cluster.until(
        "the borrowers' "
        "end", lambda: all(scene.cluster.asked[job].last.has_ended for job in scene.borrowers),
        timeout=300.0,
    )  # fmt: skip


def undisturbed(epochs: int) -> str:
    """The digest of the same job by `brim train`;
    nothing of it waits, for waiting changes no bit.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", str(FILE), "--workers", "1", "--epochs", str(epochs)]
        words += ["--run-dir", f"{folder}/run", "--json"]
        words += ["--global-batch-size", str(GLOBAL_BATCH), "--micro-batches", str(MICRO_BATCHES)]
        done = Driver().call(*words, timeout=300)
    return str(json.loads(done.stdout)["weights_sha256"])


def lost_within_quota(cluster: BrimCluster) -> list[str]:
    """Cycles in which a tenant that held no more than its own was left with less than it held,
    though it wanted it.
    """
    database, found = cluster.database(), []
    for row in database.cycles():
        snapshot, decision = decode_cycle(row.content)
        for tenant in TENANTS:
            own_states = [state for state in snapshot.jobs if state.job.tenant == tenant]
            workers_before = sum(state.workers for state in own_states)
            workers_after = sum(decision.workers.get(state.job.id, 0) for state in own_states)
            if workers_after < workers_before <= GUARANTEED:
                found.append(f"cycle {row.number}: {tenant} {workers_before} -> {workers_after}")
    database.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="A whole run takes about 3 minutes."
    )
    parser.add_argument(
        "--quick", action="store_true", help="one reclaim and one refusal: no report"
    )
    arguments = parser.parse_args()
    epochs = 50 if arguments.quick else 100
    report = Report(BENCHMARK, "Lend and reclaim between two tenants", seed=0)
    cluster_file = {
        "nodes": [{"name": "n1", "workers": SLOTS}],
        "grace": f"{GRACE:g}s",
        "tenants": [{"name": name, "guaranteed": GUARANTEED} for name in TENANTS],
    }
    with BrimCluster(cluster_file) as cluster:
        scene = Scene(cluster, epochs=epochs, say=report.say)
        play(scene, quick=arguments.quick)
        stories = {
            job: cluster.brim("explain", job) for job in [scene.borrowers[0], scene.owners[0]]
        }
        summaries = {
            job: cluster.asked[job].last.summary for job in [*scene.borrowers, *scene.owners]
        }
        replayed, lost = cluster.replay(), lost_within_quota(cluster)
        lines = {
            BORROWER: _held(scene, scene.borrowers),
            LENDER: _held(scene, scene.owners),
        }
    report.say("the same jobs undisturbed, for the digests")
    calm = {True: undisturbed(epochs), False: undisturbed(_OWNERS)}
    same_weights = {
        job: summary["weights_sha256"] == calm[job in scene.borrowers]
        for job, summary in summaries.items()
    }
    tell(report, scene.reclaims, summaries, same_weights, lost)
    report.add(replay_line("the journal", replayed))
    for job, story in stories.items():
        report.add(f"```console\n$ brim explain {job}\n{story.rstrip()}\n```")
    if not arguments.quick:
        data = {
            "reclaims": [asdict(reclaim) for reclaim in scene.reclaims],
            "held": lines,
            "same_weights": same_weights,
        }
        report.write(data, draw(lines, scene.reclaims))


def tell(
    report: Report,
    reclaims: Sequence[Reclaim],
    summaries: dict[str, dict[str, Any]],
    same_weights: dict[str, bool],
    lost: Sequence[str],
) -> None:
    """The tables."""
    head = ["reclaimed for", "what was done to a borrower", "seconds from plan to start", "forced"]
    rows = [[e.job, e.how or "-", f"{e.seconds:.2f}", "; ".join(e.forced) or "-"] for e in reclaims]
    owned = f"{GUARANTEED} guaranteed to each of {' and '.join(TENANTS)}"
    report.add(
        f"## {SLOTS} worker slots, {owned}, grace period {GRACE:g} s\n\n" + table(head, rows)
    )
    within_grace = sum(reclaim.seconds <= GRACE for reclaim in reclaims)
    report.add(
        f"Within the grace period: {within_grace} of {len(reclaims)} reclaims. "
        f"Tenants within their quota that lost a worker to another: {'; '.join(lost) or 'none'}."
    )
    rows = [
        [
            job,
            summary["exit"],
            str(summary["steps"]),
            str(summary["steps_redone"]),
            "yes" if same_weights[job] else "NO",
        ]
        for job, summary in summaries.items()
    ]
    report.add(table(["job", "ended", "steps", "redone", "weights of the undisturbed run"], rows))


def _held(scene: Scene, jobs: Sequence[str]) -> Workers:
    """Devices that these jobs hold together, over time."""
    points_of_jobs = [scene.processes(job) for job in jobs]
    times = sorted({moment for points in points_of_jobs for moment, _ in points})
    return [(moment, sum(_at(points, moment) for points in points_of_jobs)) for moment in times]


def _at(points: Workers, time: float) -> int:
    return [count for moment, count in points if moment <= time][-1]


def draw(lines: dict[str, Workers], reclaims: Sequence[Reclaim]) -> Any:
    """Devices by tenant over time, the guarantees, and each reclaim from the plan to the start."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axis = figure.subplots()
    times = sorted({moment for points in lines.values() for moment, _ in points})
    rows = [[_at(points, moment) for moment in times] for points in lines.values()]
    axis.stackplot(
        times, rows, step="post", labels=[f"held by {tenant}" for tenant in lines], alpha=0.6
    )
    axis.axhline(
        GUARANTEED,
        color="black",
        linestyle=":",
        linewidth=1,
        label=f"guaranteed to each: {GUARANTEED}",
    )
    axis.axhline(SLOTS, color="grey", linewidth=0.8)
    for number, reclaim in enumerate(reclaims):
        axis.axvspan(
            reclaim.asked,
            reclaim.given,
            color="C3",
            alpha=0.35,
            label=None if number else "reclaim: plan to start",
        )
        axis.annotate(
            f"{reclaim.seconds:.1f} "
            "s" + (f"\n{textwrap.fill(reclaim.how, 12)}:\nforced" if reclaim.forced else ""),
            (reclaim.given, SLOTS), (2, 4), textcoords="offset points", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    axis.set(xlabel="seconds", ylabel="worker processes", ylim=(0, SLOTS + 3), xlim=(0, None))
    axis.legend(loc="upper right", ncols=4, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
