"""The operator at scale, on nodes that only seem to run pods: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.report import Report, table
from brim.kubernetes.access import find_access
from brim.kubernetes.api_server import ApiServer
from brim.kubernetes.identities import JOB, ROLE, WORKER
from brim.kubernetes.known_objects import ObjectChange
from brim.kubernetes.pod_requests import PODS
from brim.kubernetes.record import ELASTIC_JOBS
from brim.kubernetes.reflector import Reflector
from brim.kubernetes.resources import PlainObject, Resource
from brim.kubernetes.schemas import crds
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

HERE = Path(__file__).parent
OWN, TEAM = "brim-system", "team"
OPERATOR = f"system:serviceaccount:{OWN}:brim-operator"  # requests of accounts have their own share
_GROUP = "system:serviceaccounts"
_SLOT = {"cpu": "1", "memory": "1Gi"}
_CLIENTS = 32  # requests of the benchmark at once
_LIMIT = 1200.0  # seconds for anything
_LAST_LINES = 60  # of the operator's log
NODES = Resource("v1", "nodes", PlainObject, namespaced=False)
KubePod = PODS.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of it there is.

    Args:
        workers: of each job.
        burst: jobs that come at once, once all others run.
        idle: seconds in which nothing happens.
    """

    nodes: int
    jobs: int
    workers: int
    burst: int
    idle: float

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.jobs:,} jobs of {self.workers} workers"


QUICK = (Size(nodes=5, jobs=10, workers=4, burst=5, idle=5.0),)
FULL = (
    Size(nodes=100, jobs=1000, workers=4, burst=200, idle=60.0),
    Size(nodes=1000, jobs=1000, workers=9, burst=200, idle=60.0),
)


@dataclass(slots=True)
class Found:
    """What one size has shown; times in seconds, `requests` by verb and kind."""

    size: Size
    made: float = 0.0
    running: float = 0.0
    to_run: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    cpu: float = 0.0
    peak_mib: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    server_cpu: dict[str, float] = field(default_factory=dict)
    idle_cpu_a_minute: float = 0.0
    idle_requests: int = 0
    alone: float = 0.0
    behind: float = 0.0
    burst: float = 0.0
    restart: float = 0.0
    restart_cpu: float = 0.0
    restart_requests: dict[str, int] = field(default_factory=dict)


class Pods:
    """The workers' pods of jobs as the server tells of them, and when each did what."""

    def __init__(self) -> None:
        self.made: dict[str, float] = {}  # by uid
        self.running: dict[str, set[str]] = {}  # uids by job
        self.complete: dict[str, float] = {}  # when a job had all its workers, by job
        self.wanted = 0
        self.ended: dict[str, float] = {}
        self.moved = asyncio.Event()
        self.check: Callable[[], None] = lambda: None

    def changed(self, change: ObjectChange[Any]) -> None:
        now, pod = time.monotonic(), change.after or change.before
        assert pod is not None
        labels = pod.metadata.labels
        if labels.get(ROLE) != WORKER:
            return
        job, uid = labels[JOB], pod.metadata.uid
        here = self.running.setdefault(job, set())
        if change.after is None:
            here.discard(uid)
            self.ended[uid] = now
        else:
            self.made.setdefault(uid, now)
            if change.after.status.phase == "Running" and not change.after.is_leaving:
                here.add(uid)
                if len(here) >= self.wanted:
                    self.complete.setdefault(job, now)
        self.moved.set()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _LIMIT
        while not holds():
            self.moved.clear()
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not in {_LIMIT:.0f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.moved.wait(), 1.0)


class OperatorProcess:
    """The operator as a process of its own, in the place of a Deployment's pod."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        self.cycles_file = folder / "cycles.jsonl"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        module = f"{__package__}.timed_operator"
        command = [sys.executable, "-m", module, str(self.cycles_file), "operator"]
        command += ["--state", str(self._folder / "state"), "--namespace", OWN]
        command += ["--image", "registry.example/brim:1", "--watch", TEAM]
        for name, amount in _SLOT.items():
            command += ["--slot", f"{name}={amount}"]
        with (self._folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "KUBECONFIG": str(self._config)}
            )

    @property
    def _there(self) -> psutil.Process:
        assert self._process is not None
        if self._process.poll() is not None:
            said = (self._folder / "operator.log").read_text().splitlines()[-_LAST_LINES:]
            raise RuntimeError("the operator has ended:\n" + "\n".join(said))
        return psutil.Process(self._process.pid)

    @property
    def cpu(self) -> float:
        times = self._there.cpu_times()
        return float(times.user + times.system)

    @property
    def peak_mib(self) -> float:
        status = Path(f"/proc/{self._there.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024.0

    def cycles(self) -> list[float]:
        lines = self.cycles_file.read_text().splitlines()
        return [json.loads(line)[0] for line in lines]

    def check(self) -> None:
        """Raises RuntimeError where it has ended."""
        assert self._there

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(60)
            self._process = None


class Audit:
    """Requests of the operator as the API server's audit log has them."""

    def __init__(self, folder: Path) -> None:
        self.log, self._policy = folder / "audit.log", folder / "audit.json"
        rules = [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}]
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
                about = event.get("objectRef", {})
                kind = "/".join(filter(None, [about.get("resource"), about.get("subresource")]))
                is_watch = event["verb"] == "watch" and event["stage"] == "ResponseComplete"
                if kind != "leases" and not is_watch:
                    code = event.get("responseStatus", {}).get("code", 0)
                    refused = f" ({code})" if code >= 400 else ""
                    found[f"{event['verb']} {kind}{refused}"] += 1
        return found


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[ControlPlane, Audit, Path]]:
    """A control plane whose audit log has what the operator asks, and the operator's kubeconfig."""
    audit = Audit(folder)
    token = os.urandom(16).hex()
    with control_plane(
        folder / "plane",
        programs=(CONTROLLERS, SCHEDULER, KWOK),
        api_server_flags=audit.flags,
        tokens={OPERATOR: (token, _GROUP)},
    ) as plane:
        for name in (OWN, TEAM):
            body = {"metadata": {"name": name}}
            plane.api.ask("/api/v1/namespaces", method="POST", body=body)
        for each in crds().values():
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            plane.api.ask(path, method="POST", body=each)
        plane.api.ask(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            method="POST",
            body={
                "metadata": {"name": "operator"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [{"kind": "User", "name": OPERATOR}],
            },
        )
        config = folder / "operator.kubeconfig"
        config.write_bytes(kubeconfig(plane.url, plane.api.authority, token))
        yield plane, audit, config


@contextlib.asynccontextmanager
async def client(plane: ControlPlane) -> AsyncIterator[ApiServer]:
    access = find_access({"KUBECONFIG": str(plane.kubeconfig)})
    async with ApiServer(access, qps=5000, burst=5000, timeout=60.0) as server:
        yield server


async def at_once(work: list[Callable[[], Awaitable[Any]]]) -> None:
    """Do all of it, a bounded number at a time."""
    gate = asyncio.Semaphore(_CLIENTS)

    async def one(each: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            await each()

    await asyncio.gather(*map(one, work))


def a_job(name: str, workers: int) -> PlainObject:
    return {
        "apiVersion": "brim.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"file": "/opt/train.py", "workers": {"min": workers, "max": workers}},
    }


async def submit(server: ApiServer, names: list[str], workers: int) -> None:
    await at_once(
        [
            lambda name=name: server.create(ELASTIC_JOBS, a_job(name, workers), namespace=TEAM)  # type: ignore[misc]
            for name in names
        ]
    )


async def lose(server: ApiServer, pods: Pods, job: str) -> float:
    """Take a pod away at once, and return the seconds until the one in its place is there."""
    victim = sorted(pods.running[job])[0]
    there = await server.list(PODS, namespace=TEAM, labels=f"{JOB}={job}")
    (pod,) = [each for each in there.items if each.metadata.uid == victim]
    began = time.monotonic()
    await server.delete(PODS, pod.metadata.name, namespace=TEAM, grace=0)

    known = set(pods.running[job])

    def has_new() -> bool:
        return bool(pods.running[job] - known)

    await pods.until(has_new, "a lost pod has another in its place")
    return time.monotonic() - began


def servers_cpu(plane: ControlPlane) -> dict[str, float]:
    found = {}
    for name in (ETCD, API_SERVER, CONTROLLERS, SCHEDULER, KWOK):
        times = psutil.Process(plane[name].pid).cpu_times()
        found[name] = float(times.user + times.system)
    return found


async def measure(size: Size, folder: Path, report: Report) -> Found:
    found = Found(size)
    with cluster(folder) as (plane, audit, config):
        async with client(plane) as server, asyncio.TaskGroup() as tasks:
            began = time.monotonic()
            names = await asyncio.to_thread(plane.add_fake_nodes, size.nodes, {"cpu": "64"})
            report.say(f"{len(names)} nodes in {time.monotonic() - began:.0f} s")
            pods = Pods()
            pods.wanted = size.workers
            watching = Reflector(server, PODS, changed=pods.changed, namespace=TEAM)
            watch = tasks.create_task(watching.run())
            await watching.synced()
            operator = OperatorProcess(folder, config)
            operator.start()
            pods.check = operator.check
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
    operator: OperatorProcess,
    audit: Audit,
    plane: ControlPlane,
    report: Report,
) -> None:
    names = [f"job-{number}" for number in range(size.jobs)]
    audit.new()
    cpu, servers = operator.cpu, servers_cpu(plane)
    began = time.monotonic()
    await submit(server, names, size.workers)
    found.made = time.monotonic() - began
    report.say(f"{size.jobs} jobs made in {found.made:.1f} s")
    await pods.until(lambda: len(pods.complete) >= size.jobs, "all jobs run")
    found.running = max(pods.complete.values()) - began
    found.to_run = sorted(at - began for at in pods.complete.values())
    report.say(f"all run after {found.running:.1f} s")
    await asyncio.sleep(20.0 if size.jobs > 100 else 5.0)  # statuses are written
    found.cpu = operator.cpu - cpu
    found.server_cpu = {name: at - servers[name] for name, at in servers_cpu(plane).items()}
    found.requests = dict(audit.new().most_common())
    found.cycles = operator.cycles()
    report.say(f"{found.cpu:.1f} CPU s; {found.requests}")

    cpu, at = operator.cpu, time.monotonic()
    await asyncio.sleep(size.idle)
    found.idle_cpu_a_minute = (operator.cpu - cpu) * 60.0 / (time.monotonic() - at)
    found.idle_requests = sum(audit.new().values())
    report.say(
        f"idle: {found.idle_cpu_a_minute:.2f} CPU s a minute, {found.idle_requests} requests"
    )

    alone = [await lose(server, pods, names[number]) for number in range(3)]
    found.alone = statistics.median(alone)
    began, known = time.monotonic(), len(pods.complete)
    more = [f"more-{number}" for number in range(size.burst)]
    await submit(server, more, size.workers)
    await asyncio.sleep(0.2)
    found.behind = await lose(server, pods, names[5])
    await pods.until(lambda: len(pods.complete) >= known + size.burst, "the burst runs")
    found.burst = time.monotonic() - began
    found.peak_mib = operator.peak_mib
    report.say(
        f"lost pod: alone {found.alone:.3f} s, behind the burst {found.behind:.3f} s; "
        f"burst after {found.burst:.1f} s; {found.peak_mib:.0f} MiB"
    )

    await asyncio.sleep(20.0 if size.jobs > 100 else 5.0)
    operator.stop()
    audit.new()
    operator.cycles_file.write_text("")
    began = time.monotonic()
    operator.start()
    while not operator.cycles_file.stat().st_size:  # it has looked at all, and decided
        await asyncio.sleep(0.05)
        if time.monotonic() - began > _LIMIT:
            raise RuntimeError("the operator does not come up")
    found.restart, found.restart_cpu = time.monotonic() - began, operator.cpu
    await asyncio.sleep(10.0)
    found.restart_requests = dict(audit.new().most_common())
    report.say(
        f"restart: {found.restart:.1f} s, {found.restart_cpu:.1f} CPU s, {found.restart_requests}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, without a report")
    parser.add_argument("--size", type=int, choices=(1, 2), help="only one of the two sizes")
    given = parser.parse_args()
    report = Report(HERE, "The operator at scale", seed=0)
    sizes = QUICK if given.quick else FULL
    if given.size and not given.quick:
        sizes = (FULL[given.size - 1],)
    found = []
    for size in sizes:
        report.say(str(size))
        with tempfile.TemporaryDirectory(prefix="brim-scale-") as folder:
            found.append(asyncio.run(measure(size, Path(folder), report)))
    report.add(shown(found))
    if not given.quick:
        report.write({"sizes": [asdict(each) for each in found], "kubernetes": VERSION})


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))] if ordered else 0.0


def shown(found: list[Found]) -> str:
    """The figures as a table: a column for each size."""
    per_job = [sum(each.requests.values()) / each.size.jobs for each in found]
    rows: list[list[object]] = [
        ["jobs made, s", *(f"{each.made:.1f}" for each in found)],
        ["all running, s", *(f"{each.running:.1f}" for each in found)],
        ["median job running, s", *(f"{percentile(each.to_run, 0.5):.1f}" for each in found)],
        [
            "cycle p50 / p99, s",
            *(
                f"{percentile(each.cycles, 0.5):.3f} / {percentile(each.cycles, 0.99):.3f}"
                for each in found
            ),
        ],
        ["operator, CPU s", *(f"{each.cpu:.1f}" for each in found)],
        ["operator, peak MiB", *(f"{each.peak_mib:.0f}" for each in found)],
        ["API server, CPU s", *(f"{each.server_cpu[API_SERVER]:.0f}" for each in found)],
        ["requests a job", *(f"{each:.1f}" for each in per_job)],
        ["idle, CPU s a minute", *(f"{each.idle_cpu_a_minute:.2f}" for each in found)],
        ["idle, requests", *(str(each.idle_requests) for each in found)],
        ["lost pod replaced, s", *(f"{each.alone:.3f}" for each in found)],
        ["the same behind a burst, s", *(f"{each.behind:.3f}" for each in found)],
        ["the burst running, s", *(f"{each.burst:.1f}" for each in found)],
        ["restart to the first cycle, s", *(f"{each.restart:.1f}" for each in found)],
    ]
    return table(["", *(str(each.size) for each in found)], rows)


if __name__ == "__main__":
    main()
