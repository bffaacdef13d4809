"""A scheduler on one host and nodes that have joined from others, which share no disk with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DIGITS, check_ledger, lines, train

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
JOB = (DIGITS, "--epochs", "10", "--global-batch-size", "128")
PORT = 4001
HURRY = "/run/hurry"  # each host has its own
DEADLINE = 150.0  # imports of torch on several hosts at once, on a busy machine
TENANTS = "tenants: [{name: ads, guaranteed: 4}, {name: web, guaranteed: 2}]\n"


class Cluster:
    """A scheduler on the first of these hosts, with a node of 2 devices on each of the others."""

    def __init__(self, hosts: tuple[Host, ...]) -> None:
        self.hosts, self.home = hosts, hosts[0]
        self.state = self.home.folder / "state"
        self.file = self.home.folder / "cluster.yaml"
        self.file.write_text("nodes: [{name: home, workers: 0}]\ngrace: 60s\n" + TENANTS)
        self.driver = Driver(self.home.folder)
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        self.most = Counter[str]()

    def start(self, *words: str, host: Host | None = None, **variables: str) -> Any:
        host = host or self.home
        own = {"HOME": str(host.folder / "home"), "BRIM_HOME": str(host.folder / "state")}
        return self.driver.behind(host.prefix).start(*words, variables={**own, **variables})

    def brim(self, *words: str) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, err
        return str(out)

    def up(self) -> None:
        address = f"{self.home.address}:{PORT}"
        self.brim("up", "--cluster", str(self.file), "--nodes", address)

    def join(self, host: Host) -> None:
        token = (self.state / "nodes.token").read_text().strip()
        words = ("node", "--join", f"{self.home.address}:{PORT}", "--devices", "2")
        self.nodes[f"host-{host.number}"] = self.start(*words, host=host, BRIM_TOKEN=token)

    def told(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.brim("nodes", "--json"))["nodes"]
        return {each["node"]: each for each in found}

    def submit(self, *words: str, tenant: str = "ads") -> str:
        paced = ("--set", "pause=0.4", "--set", f"hurry={HURRY}")
        return self.brim("submit", *JOB, *paced, "--tenant", tenant, *words).strip()

    def events(self, job: str, kind: str) -> list[dict[str, Any]]:
        path = self.state / "jobs" / job / "events.jsonl"
        return [event for event in lines(path) if event["kind"] == kind] if path.exists() else []

    def step(self, job: str) -> int:
        path = self.state / "jobs" / job / "steps.jsonl"
        steps = lines(path) if path.exists() else []
        return int(steps[-1]["step"]) if steps else 0

    def on(self, job: str) -> dict[str, int]:
        """The workers that train, by node."""
        rounds = self.events(job, "round")
        agents = {e["worker"]: e["agent"] for e in self.events(job, "worker") if e.get("pid")}
        return dict(Counter(agents[worker] for worker in rounds[-1]["workers"])) if rounds else {}

    def workers_of(self, host: Host) -> list[int]:
        """The worker processes that a host has, whatever anybody says of it."""
        return [
            process.pid
            for process in psutil.process_iter(["name", "status"])
            if re.match(r"brim-w\d", process.info["name"] or "")
            and process.info["status"] != psutil.STATUS_ZOMBIE
            and host.has(process.pid)
        ]

    def processes_of(self, host: Host, name: str = "") -> list[int]:
        """All processes that a host has, or those with this name."""
        return [
            process.pid
            for process in psutil.process_iter(["name"])
            if process.info["name"] in (name or process.info["name"],) and host.has(process.pid)
        ]

    def signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and count meanwhile how many workers each host has."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            for host in self.hosts:
                here = len(self.workers_of(host))
                self.most[str(host.number)] = max(self.most[str(host.number)], here)
            assert time.monotonic() < deadline, f"{what} did not come; {self.words()}"
            time.sleep(0.05)

    def until_steps(self, job: str, more: int = 3) -> None:
        since = self.step(job)
        self.until(lambda: self.step(job) >= since + more, f"more steps of {job}")

    def words(self) -> str:
        return self.brim("nodes") + (self.state / "scheduler.log").read_text()[-2000:]

    def finish(self, job: str) -> dict[str, Any]:
        for host in self.hosts:
            (host.root / HURRY[1:]).touch()
        found: dict[str, Any] = json.loads(self.brim("status", job, "--wait", "--json"))
        assert found["state"] == "done", found
        check_ledger(self.state / "jobs" / job)
        return found

    def scheduler(self) -> int:
        return self.home.outside(json.loads((self.state / "scheduler.json").read_text())["pid"])


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    alone = train(tmp_path_factory.mktemp("calm") / "run", *JOB, "--workers", "1")
    return str(alone["weights_sha256"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as undo:
        cluster = Cluster(undo.enter_context(hosts_in(tmp_path, 4)))
        undo.callback(cluster.driver.mark.kill)
        cluster.up()
        for host in cluster.hosts[1:]:
            cluster.join(host)
        cluster.until(lambda: len(cluster.told()) == 4, "three nodes")
        yield cluster
        cluster.brim("down", "--kill")
        for name, node in cluster.nodes.items():
            node.terminate()
            _, err = node.communicate(timeout=60)
            assert node.returncode in (0, -signal.SIGKILL), f"{name}: {err}"
        assert max(cluster.most.values()) <= 2, f"a device was given twice: {cluster.most}"
        assert not cluster.driver.mark.left_after(20.0)
        for host in cluster.hosts[1:]:
            left = {
                path.name for path in (host.folder / "state" / "node").rglob("*") if path.is_file()
            }
            assert left <= {".lock", "node.json", "node.log"}


def test_a_job_outlives_a_killed_host_and_one_that_gives_way(cluster: Cluster, calm: str) -> None:
    job = cluster.submit("--workers", "4")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    first, second = sorted(cluster.on(job))
    by_name = {f"host-{host.number}": host for host in cluster.hosts}
    assert cluster.on(job) == {first: 2, second: 2}
    assert not cluster.workers_of(cluster.home)

    by_name[first].kill()
    cluster.until(lambda: cluster.told()[first]["state"] == "lost", "that it is lost")
    cluster.until(lambda: len(cluster.on(job)) == 2 and first not in cluster.on(job), "its place")
    by_name[first].start()
    cluster.nodes.pop(first).communicate()
    cluster.join(by_name[first])
    cluster.until(lambda: cluster.told()[first]["state"] == "up", "that it is back")

    leaver = cluster.nodes.pop(second)
    redone = len(cluster.events(job, "restored"))
    leaver.terminate()
    cluster.until(lambda: leaver.poll() is not None, "that it has given way")
    assert leaver.returncode == 0, leaver.communicate()
    assert second not in cluster.told()
    assert not cluster.workers_of(by_name[second])
    cluster.until(
        lambda: sum(cluster.on(job).values()) == 4 and second not in cluster.on(job), "others"
    )
    assert len(cluster.events(job, "restored")) == redone
    assert cluster.finish(job)["weights_sha256"] == calm
    leaver.communicate()


def test_a_scheduler_may_die_and_a_node_fall_silent(cluster: Cluster, calm: str) -> None:
    job = cluster.submit("--workers", "2")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    (name,) = cluster.on(job)
    host = next(each for each in cluster.hosts if f"host-{each.number}" == name)
    os.kill(cluster.scheduler(), signal.SIGKILL)
    before = set(cluster.workers_of(host))
    cluster.until_steps(job)
    cluster.brim("up", "--nodes", f"{cluster.home.address}:{PORT}")
    cluster.until(lambda: cluster.told()[name]["state"] == "up", "that it is known again")
    assert set(cluster.workers_of(host)) == before, "nobody noticed"

    host.cable.cut()
    cluster.until(lambda: cluster.told()[name]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(host), "it ended its workers before it was given up"
    cluster.until(lambda: name not in cluster.on(job), "a place elsewhere")
    host.cable.mend()
    cluster.until(lambda: cluster.told()[name]["state"] == "up", "that it is back")
    cluster.until_steps(job)
    assert cluster.finish(job)["weights_sha256"] == calm


def test_devices_are_lent_and_reclaimed_and_a_node_is_drained(cluster: Cluster, calm: str) -> None:
    borrower = cluster.submit("--workers", "4", tenant="web")  # of which 2 are lent
    cluster.until(lambda: sum(cluster.on(borrower).values()) == 4, "what it borrows")
    cluster.brim("resize", borrower, "2:4")
    owner = cluster.submit("--workers", "4", tenant="ads")
    cluster.until(lambda: sum(cluster.on(owner).values()) == 4, "what is its own")
    assert sum(cluster.on(borrower).values()) == 2
    drained = max(cluster.on(owner))
    cluster.brim("drain", drained)
    cluster.until(lambda: not cluster.told()[drained]["held"], "that nothing is there")
    host = next(each for each in cluster.hosts if f"host-{each.number}" == drained)
    cluster.until(lambda: not cluster.workers_of(host), "the end of its workers")
    cluster.brim("drain", drained, "--undo")
    cluster.until(lambda: cluster.told()[drained]["held"] > 0, "that it is used again")
    for job in (owner, borrower):
        assert cluster.finish(job)["weights_sha256"] == calm


def test_what_a_stopped_node_runs_ends_and_no_device_is_given_twice(
    cluster: Cluster, calm: str
) -> None:
    """SIGSTOP, to `brim node` alone and then to all processes of a host, whose kernel still answers.

    The teardown counts workers by host, also stopped ones.
    """
    job = cluster.submit("--workers", "2")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    by_name = {f"host-{host.number}": host for host in cluster.hosts}
    (first,) = cluster.on(job)
    stopped = cluster.processes_of(by_name[first], "brim-joined")
    assert len(stopped) == 1
    cluster.signal(stopped, signal.SIGSTOP)
    cluster.until(lambda: cluster.told()[first]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(by_name[first]), "they ended before it was given up"
    cluster.until(lambda: list(cluster.on(job)) not in ([], [first]), "a place elsewhere")
    cluster.until_steps(job)
    cluster.signal(stopped, signal.SIGCONT)
    cluster.until(lambda: cluster.told()[first]["state"] == "up", "that it is back")

    cluster.brim("resize", job, "4")
    cluster.until(lambda: len(cluster.on(job)) == 2, "two nodes")
    cluster.until_steps(job)
    second = min(cluster.on(job))
    frozen = cluster.processes_of(by_name[second])
    cluster.signal(frozen, signal.SIGSTOP)
    at = time.monotonic()
    cluster.until(lambda: second not in cluster.on(job), "a round without it")
    assert time.monotonic() - at < 12.0, "a master alone waits for 15 s"
    cluster.until_steps(job)
    assert cluster.workers_of(by_name[second]), "they cannot end, and do nothing"
    cluster.signal(frozen, signal.SIGCONT)
    cluster.until(lambda: cluster.told()[second]["state"] == "up", "that it is back")
    cluster.until_steps(job)
    assert cluster.finish(job)["weights_sha256"] == calm
