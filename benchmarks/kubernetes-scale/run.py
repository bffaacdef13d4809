"""The operator at scale, on nodes that only seem to run pods: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.report import Report, table
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.known_objects import ObjectChange
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.pods.pod_requests import PODS
from brim_lab.kubernetes.api import kubeconfig
from brim_lab.kubernetes.binaries import VERSION
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    control_plane,
)

from .sides import (  # noqa: TID252 - the folder is no name of Python
    TEAM,
    Brim,
    BrimWithSelectors,
    Side,
    TrainingOperator,
    TrainingOperatorByDefault,
    percentile,
)

BENCHMARK = Path(__file__).parent
_GROUP = "system:serviceaccounts"
_CLIENTS = 32  # requests of the benchmark at once
_LIMIT = 1800.0  # seconds for anything
_SLOT = {"cpu": "1", "memory": "1Gi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of it there is.

    Args:
        side: the operator that is measured.
        workers: of each job.
        burst: jobs that come at once, once all others run.
        idle: seconds in which nothing happens.
    """

    side: type[Side]
    nodes: int
    jobs: int
    workers: int
    burst: int
    idle: float

    def __str__(self) -> str:
        description = f"{self.nodes:,} nodes, {self.jobs:,} jobs of {self.workers} workers"
        return f"{self.side.name}: {description}"


SMALL = Size(side=Brim, nodes=100, jobs=1000, workers=4, burst=200, idle=60.0)
TINY = replace(SMALL, nodes=5, jobs=10, burst=5, idle=5.0)
QUICK = (TINY, replace(TINY, side=TrainingOperator))
FULL = (
    replace(SMALL, side=TrainingOperator),
    SMALL,
    replace(SMALL, side=TrainingOperatorByDefault, jobs=100, burst=20),
    replace(SMALL, nodes=1000, workers=9),
    replace(SMALL, side=BrimWithSelectors, nodes=1000, workers=9),
)


@dataclass(slots=True)
class Found:
    """The figures of one size; times in seconds, `requests` by verb and kind."""

    size: Size
    made: float = 0.0
    running: float = 0.0
    to_run: list[float] = field(default_factory=list)
    reconcile: tuple[float, float] = (0.0, 0.0)
    cpu: float = 0.0
    peak_mib: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    server_cpu: dict[str, float] = field(default_factory=dict)
    idle_cpu_a_minute: float = 0.0
    idle_requests: int = 0
    alone: float = 0.0
    alone_made: float = 0.0  # when the pod in its place was made
    behind: float = 0.0
    behind_made: float = 0.0
    burst: float = 0.0
    restarts: int = 0  # of the operator, by itself
    restart: float = 0.0
    restart_cpu: float = 0.0
    restart_requests: dict[str, int] = field(default_factory=dict)


class Pods:
    """The workers' pods of jobs as the server tells of them, and the times of their events."""

    def __init__(self, size: Size) -> None:
        self.wanted, self._whose = size.workers, size.side.whose_worker
        self.made: dict[str, float] = {}  # by uid
        self.names: dict[str, str] = {}  # by uid
        self.running: dict[str, set[str]] = {}  # uids by job
        self.complete: dict[str, float] = {}  # when a job had all its workers, by job
        self.ended: dict[str, float] = {}
        self.moved = asyncio.Event()
        self.check: Callable[[], None] = lambda: None

    def changed(self, change: ObjectChange[Any]) -> None:
        now, pod = time.monotonic(), change.after or change.before
        assert pod is not None
        job, uid = self._whose(pod.metadata.labels), pod.metadata.uid
        if not job:
            return
        pods_of_job = self.running.setdefault(job, set())
        if change.after is None:
            pods_of_job.discard(uid)
            self.ended[uid] = now
        else:
            self.made.setdefault(uid, now)
            self.names[uid] = pod.metadata.name
            if change.after.status.phase == "Running" and not change.after.is_leaving:
                pods_of_job.add(uid)
                if len(pods_of_job) >= self.wanted:
                    self.complete.setdefault(job, now)
        self.moved.set()

    async def until(self, holds: Callable[[], bool], subject: str) -> None:
        deadline = time.monotonic() + _LIMIT
        while not holds():
            self.moved.clear()
            self.check()  # at least once a second
            if time.monotonic() > deadline:
                raise RuntimeError(f"{subject}: not in {_LIMIT:.0f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.moved.wait()


class Audit:
    """Requests of an operator as the API server's audit log has them.

    Args:
        user: the operator.
    """

    def __init__(self, folder: Path, user: str) -> None:
        self.log, self._policy = folder / "audit.log", folder / "audit.json"
        rules = [{"level": "Metadata", "users": [user]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        self._policy.write_text(json.dumps(policy | {"omitStages": ["RequestReceived"]}))
        self._at = 0

    @property
    def flags(self) -> list[str]:
        return [f"--audit-policy-file={self._policy}", f"--audit-log-path={self.log}"]

    def new(self) -> Counter[str]:
        """Count the requests since the last time, without those for its Lease."""
        found: Counter[str] = Counter()
        with self.log.open("rb") as log:
            log.seek(self._at)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                event = json.loads(line)
                object_ref = event.get("objectRef", {})
                kind = "/".join(
                    filter(None, [object_ref.get("resource"), object_ref.get("subresource")])
                )
                is_watch = event["verb"] == "watch" and event["stage"] == "ResponseComplete"
                if kind != "leases" and not is_watch:
                    code = event.get("responseStatus", {}).get("code", 0)
                    refused = f" ({code})" if code >= 400 else ""
                    found[f"{event['verb']} {kind}{refused}"] += 1
        return found


@contextlib.contextmanager
def cluster(folder: Path, side: type[Side]) -> Iterator[tuple[ControlPlane, Audit, Side]]:
    """A control plane whose audit log has the operator's requests, and the operator."""
    audit, user = Audit(folder, side.user()), side.user()
    token = os.urandom(16).hex()
    with control_plane(
        folder / "plane",
        programs=(CONTROLLERS, SCHEDULER, KWOK),
        api_server_flags=audit.flags,
        tokens={user: (token, _GROUP)},
    ) as plane:
        for name in (side.namespace, TEAM):
            body: dict[str, Any] = {"metadata": {"name": name}}
            plane.api.ask("/api/v1/namespaces", method="POST", body=body)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        body = {
            "metadata": {"name": "operator"},
            "roleRef": {**role, "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": user}],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        plane.api.ask(path, method="POST", body=body)
        config = folder / "operator.kubeconfig"
        config.write_bytes(kubeconfig(plane.url, plane.api.authority, token))
        operator = side(folder, config)
        operator.install(plane)
        yield plane, audit, operator


@contextlib.asynccontextmanager
async def client(plane: ControlPlane) -> AsyncIterator[ApiServer]:
    access = find_access({"KUBECONFIG": str(plane.kubeconfig)})
    async with ApiServer(access, qps=5000, burst=5000, timeout=60.0) as server:
        yield server


async def at_once(work: list[Callable[[], Awaitable[Any]]]) -> None:
    """Do all of it, a bounded number at a time."""
    gate = asyncio.Semaphore(_CLIENTS)

    async def bounded(action: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            await action()

    await asyncio.gather(*map(bounded, work))


async def submit(server: ApiServer, operator: Side, names: list[str], workers: int) -> None:
    def make(name: str) -> Awaitable[Any]:
        job = operator.a_job(name, workers, _SLOT)
        return server.create(operator.jobs, job, namespace=TEAM)

    await at_once([lambda name=name: make(name) for name in names])  # type: ignore[misc]


async def lose(server: ApiServer, pods: Pods, job: str) -> tuple[float, float]:
    """Take a pod away at once; return the seconds until one in its place runs, and was made."""
    victim = sorted(pods.running[job])[0]
    name = pods.names[victim]
    started = time.monotonic()
    await server.delete(PODS, name, namespace=TEAM, grace=0)

    pods_before = set(pods.running[job])

    def new() -> set[str]:
        return pods.running[job] - pods_before

    await pods.until(lambda: bool(new()), "a lost pod has another in its place")
    return time.monotonic() - started, min(pods.made[uid] for uid in new()) - started


def servers_cpu(plane: ControlPlane) -> dict[str, float]:
    found = {}
    for name in (ETCD, API_SERVER, CONTROLLERS, SCHEDULER, KWOK):
        times = psutil.Process(plane[name].pid).cpu_times()
        found[name] = float(times.user + times.system)
    return found


async def measure(size: Size, folder: Path, report: Report) -> Found:
    found = Found(size)
    with cluster(folder, size.side) as (plane, audit, operator):
        async with client(plane) as server, asyncio.TaskGroup() as tasks:
            started = time.monotonic()
            names = await asyncio.to_thread(plane.add_fake_nodes, size.nodes, {"cpu": "64"})
            report.say(f"{len(names)} nodes in {time.monotonic() - started:.0f} s")
            pods = Pods(size)
            watching = Reflector(server, PODS, changed=pods.changed, namespace=TEAM)
            watch = tasks.create_task(watching.run())
            await watching.synced()
            await asyncio.to_thread(operator.start)
            pods.check = operator.keep_up
            try:
                await asyncio.sleep(5.0)
                await stages(size, found, server, pods, operator, audit, plane, report)
            finally:
                operator.stop()
                watch.cancel()
    return found


async def stages(
    size: Size,
    found: Found,
    server: ApiServer,
    pods: Pods,
    operator: Side,
    audit: Audit,
    plane: ControlPlane,
    report: Report,
) -> None:
    names = [f"job-{number}" for number in range(size.jobs)]
    audit.new()
    cpu, servers = operator.cpu, servers_cpu(plane)
    started = time.monotonic()
    await submit(server, operator, names, size.workers)
    found.made = time.monotonic() - started
    report.say(f"{size.jobs} jobs made in {found.made:.1f} s")
    await pods.until(lambda: len(pods.complete) >= size.jobs, "all jobs run")
    found.running = max(pods.complete.values()) - started
    found.to_run = sorted(completed_at - started for completed_at in pods.complete.values())
    report.say(f"all run after {found.running:.1f} s")
    await asyncio.sleep(20.0 if size.jobs > 100 else 5.0)  # statuses are written
    found.cpu = operator.cpu - cpu
    found.server_cpu = {
        name: cpu_end - servers[name] for name, cpu_end in servers_cpu(plane).items()
    }
    found.requests = dict(audit.new().most_common())
    found.reconcile = operator.reconciles()
    report.say(f"{found.cpu:.1f} CPU s; {found.requests}")

    cpu, cpu_start = operator.cpu, time.monotonic()
    await asyncio.sleep(size.idle)
    found.idle_cpu_a_minute = (operator.cpu - cpu) * 60.0 / (time.monotonic() - cpu_start)
    found.idle_requests = sum(audit.new().values())
    report.say(
        f"idle: {found.idle_cpu_a_minute:.2f} CPU s a minute, {found.idle_requests} requests"
    )

    lone_losses = sorted([await lose(server, pods, names[number]) for number in range(3)])
    found.alone, found.alone_made = lone_losses[1]  # the median
    started, complete_before = time.monotonic(), len(pods.complete)
    burst_jobs = [f"more-{number}" for number in range(size.burst)]
    await submit(server, operator, burst_jobs, size.workers)
    await asyncio.sleep(0.2)
    found.behind, found.behind_made = await lose(server, pods, names[5])
    await pods.until(lambda: len(pods.complete) >= complete_before + size.burst, "the burst runs")
    found.burst = time.monotonic() - started
    found.peak_mib = operator.peak_mib
    report.say(
        f"lost pod: alone {found.alone:.3f} s ({found.alone_made:.3f} s until it was made), "
        f"behind the burst {found.behind:.3f} s ({found.behind_made:.3f} s); "
        f"burst after {found.burst:.1f} s; {found.peak_mib:.0f} MiB"
    )

    await asyncio.sleep(20.0 if size.jobs > 100 else 5.0)
    operator.stop()
    found.restarts = operator.restarts
    audit.new()
    started = time.monotonic()
    await asyncio.to_thread(operator.start)
    while not await asyncio.to_thread(operator.has_reconciled, size.jobs + size.burst):
        await asyncio.sleep(0.05)
        if time.monotonic() - started > _LIMIT:
            raise RuntimeError("the operator does not come up")
    found.restart, found.restart_cpu = time.monotonic() - started, operator.cpu
    await asyncio.sleep(10.0)
    found.restart_requests = dict(audit.new().most_common())
    report.say(
        f"restart: {found.restart:.1f} s, {found.restart_cpu:.1f} CPU s, {found.restart_requests}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, without a report")
    columns = [*range(1, len(FULL) + 1)]
    parser.add_argument("--columns", nargs="+", type=int, choices=columns, help="only these")
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "The operator at scale", seed=0)
    sizes = list(QUICK) if arguments.quick else [FULL[k - 1] for k in arguments.columns or columns]
    found: list[Found] = []
    for size in sizes:
        report.say(str(size))
        with tempfile.TemporaryDirectory(prefix="brim-scale-") as folder:
            found.append(asyncio.run(measure(size, Path(folder), report)))
        print(shown(found))  # the next one may take long
    report.add(shown(found))
    if not arguments.quick:
        sides = [
            {**asdict(result), "size": {**asdict(result.size), "side": result.size.side.name}}
            for result in found
        ]
        report.write({"sizes": sides, "kubernetes": VERSION})


def shown(found: list[Found]) -> str:
    """The figures as a table: a column for each size."""
    per_job = [sum(result.requests.values()) / result.size.jobs for result in found]
    rows: list[list[object]] = [
        ["jobs made, s", *(f"{result.made:.1f}" for result in found)],
        ["all running, s", *(f"{result.running:.1f}" for result in found)],
        ["median job running, s", *(f"{percentile(result.to_run, 0.5):.1f}" for result in found)],
        [
            "reconcile p50 / p99, s",
            *("{:.3f} / {:.3f}".format(*result.reconcile) for result in found),
        ],
        ["operator, CPU s", *(f"{result.cpu:.1f}" for result in found)],
        ["operator, peak MiB", *(f"{result.peak_mib:.0f}" for result in found)],
        ["API server, CPU s", *(f"{result.server_cpu[API_SERVER]:.0f}" for result in found)],
        ["ended by itself, times", *(str(result.restarts) for result in found)],
        ["requests a job", *(f"{per_job_count:.1f}" for per_job_count in per_job)],
        ["idle, CPU s a minute", *(f"{result.idle_cpu_a_minute:.2f}" for result in found)],
        ["idle, requests", *(str(result.idle_requests) for result in found)],
        ["lost pod replaced, s", *(f"{result.alone:.3f}" for result in found)],
        ["until it was made, s", *(f"{result.alone_made:.3f}" for result in found)],
        ["the same behind a burst, s", *(f"{result.behind:.3f}" for result in found)],
        ["until it was made, s", *(f"{result.behind_made:.3f}" for result in found)],
        ["the burst running, s", *(f"{result.burst:.1f}" for result in found)],
        ["restart until reconciled, s", *(f"{result.restart:.1f}" for result in found)],
        ["restart, writes", *(str(_writes(result.restart_requests)) for result in found)],
    ]
    return table(["", *(str(result.size) for result in found)], rows)


def _writes(requests: dict[str, int]) -> int:
    reads = ("get", "list", "watch")
    return sum(count for kind, count in requests.items() if not kind.startswith(reads))


if __name__ == "__main__":
    main()
