"""A scheduler on one host, and nodes that have joined from others; tests may share them."""

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
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.domain.lifecycle import ENDED
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DEADLINE, LONG_JOB, check_ledger, lines, undisturbed, until

ON_HOSTS = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
PORT = 4001
PORTS = range(4100, 4140)  # on which all hosts listen for each other
HURRY = "/run/hurry"  # each host has its own
TENANTS = "tenants: [{name: ads, guaranteed: 4}, {name: web, guaranteed: 2}]\n"


def weights_alone() -> str:
    """Return the digest of what `Cluster.submit` submits where nothing happens to it."""
    return str(undisturbed(*LONG_JOB)["weights_sha256"])


def _workers() -> list[int]:
    """The worker processes of all hosts."""
    return [
        process.pid
        for process in psutil.process_iter(["name", "status"])
        if re.match(r"brim-w\d", process.info["name"] or "")
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


class Cluster:
    """A scheduler on the first of these hosts, for nodes of 2 devices on others.

    Args:
        standby: the last of them, on which the scheduler may go on.
    """

    def __init__(self, hosts: tuple[Host, ...], *, standby: bool = False) -> None:
        self.hosts, self.home = hosts, hosts[0]
        self.standby = hosts[-1] if standby else None
        self.places = hosts[1:-1] if standby else hosts[1:]
        self.state = self.home.folder / "state"
        self.file = self.home.folder / "cluster.yaml"
        self.file.write_text("nodes: [{name: home, workers: 0}]\ngrace: 60s\n" + TENANTS)
        self.driver = Driver(self.home.folder)
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        self.most = Counter[str]()

    @property
    def addresses(self) -> str:
        """Where the scheduler may be."""
        candidates = [self.hosts[0], *([self.standby] if self.standby else [])]
        return ",".join(f"{host.address}:{PORT}" for host in candidates)

    def start(self, *words: str, host: Host | None = None, **variables: str) -> Any:
        host = host or self.home
        own_variables = {
            "HOME": str(host.folder / "home"),
            "BRIM_HOME": str(host.folder / "state"),
            "BRIM_PORTS": f"{PORTS[0]}-{PORTS[-1]}",
        }
        return self.driver.with_prefix(host.prefix).start(
            *words, variables={**own_variables, **variables}
        )

    def brim(self, *words: str) -> str:
        process = self.start(*words)
        output, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, err
        return str(output)

    def up(self, *words: str) -> None:
        self.brim("up", "--nodes", f"{self.home.address}:{PORT}", *words)

    def move(self) -> None:
        """Have the state of the scheduler, whose host is gone, on the standby, and go on there."""
        assert self.standby is not None
        subprocess.run(["cp", "-a", str(self.state), str(self.standby.folder)], check=True)
        self.home, self.state = self.standby, self.standby.folder / "state"
        self.up()

    def tidy(self) -> None:
        """Have it as at its start, after any test."""
        for host in self.hosts:
            if not host.is_up:
                host.start()
            host.cable.mend()
            self.signal(self.processes_of(host), signal.SIGCONT)
            (host.root / HURRY[1:]).unlink(missing_ok=True)
        for job in json.loads(self.brim("jobs", "--json"))["jobs"]:
            if job["state"] not in ENDED:
                self.brim("cancel", job["job"])
        for host in self.places:
            node = self.nodes.get(f"host-{host.number}")
            if node is not None and node.poll() is None:
                continue
            if node is not None:
                node.communicate()
            self.join(host)
        for name, view in self.told().items():
            if view["drained"]:
                self.brim("drain", name, "--undo")

        def are_free() -> bool:
            views = self.told().values()
            count = sum(view["state"] == "up" and not view["held"] for view in views)
            return bool(count == len(views) == 1 + len(self.places))

        self.until(are_free, "that all nodes are up and free")

    def join(self, host: Host, **variables: str) -> None:
        token = (self.state / "nodes.token").read_text().strip()
        words = ("node", "--join", self.addresses, "--devices", "2")
        self.nodes[f"host-{host.number}"] = self.start(
            *words, host=host, BRIM_TOKEN=token, **variables
        )

    def give_way(self, name: str) -> str:
        """End a node by SIGTERM; return its output."""
        leaver = self.nodes.pop(name)
        leaver.terminate()
        self.until(lambda: leaver.poll() is not None, "that it has given way")
        _, explanation = leaver.communicate()
        assert leaver.returncode == 0, explanation
        return str(explanation)

    def told(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.brim("nodes", "--json"))["nodes"]
        return {row["node"]: row for row in found}

    def submit(self, *words: str, tenant: str = "ads") -> str:
        paced = ("--set", "pause=0.6", "--set", f"hurry={HURRY}")
        return self.brim("submit", *LONG_JOB, *paced, "--tenant", tenant, *words).strip()

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

    def named(self, node: str) -> Host:
        """The host of a node."""
        return next(host for host in self.hosts if f"host-{host.number}" == node)

    def rounds(self, job: str) -> list[tuple[float, int, str]]:
        """When each round formed, of how many workers, and why."""
        return [
            (event["at"], event["world_size"], event["cause"])
            for event in self.events(job, "round")
        ]

    def workers_of(self, host: Host) -> list[int]:
        """The worker processes that a host really has."""
        return [pid for pid in _workers() if host.contains(pid)]

    def ports_of(self, host: Host) -> set[int]:
        """The ports of a host on which something listens that others can call."""
        (inner_processes, *_) = self.processes_of(host)
        found = set()
        for line in Path(f"/proc/{inner_processes}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            if state == "0A" and not address.endswith("7F"):  # 127.…, its bytes turned round
                found.add(int(port, 16))
        return found

    def processes_of(self, host: Host, name: str = "") -> list[int]:
        """All processes that a host has, or those with this name."""
        return [pid for pid, called in host.processes().items() if name in ("", called)]

    def signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def until(self, condition: Callable[[], bool], subject: str) -> None:
        """Wait, and count meanwhile how many workers each host has."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            workers = _workers()
            for host in self.hosts:
                workers_here = sum(map(host.contains, workers))
                self.most[str(host.number)] = max(self.most[str(host.number)], workers_here)
            assert time.monotonic() < deadline, f"{subject} did not come; {self.words()}"
            time.sleep(0.1)

    def check_devices(self) -> None:
        """Check that no host has ever had more workers than devices."""
        assert max(self.most.values()) <= 2, f"a device was given twice: {self.most}"

    def until_steps(self, job: str, additional: int = 3) -> None:
        first_step = self.step(job)
        self.until(lambda: self.step(job) >= first_step + additional, f"more steps of {job}")

    def words(self) -> str:
        return self.brim("nodes") + (self.state / "scheduler.log").read_text()[-2000:]

    def finish(self, job: str) -> dict[str, Any]:
        for host in filter(lambda host: host.is_up, self.hosts):
            (host.root / HURRY[1:]).touch()
        found: dict[str, Any] = json.loads(self.brim("status", job, "--wait", "--json"))
        assert found["state"] == "done", found
        check_ledger(self.state / "jobs" / job)
        return found

    def kill_scheduler(self) -> None:
        pid = json.loads((self.state / "scheduler.json").read_text())["pid"]
        os.kill(self.home.outer_pid(pid), signal.SIGKILL)


@contextlib.contextmanager
def cluster_in(folder: Path, *, nodes: int = 3, standby: bool = False) -> Iterator[Cluster]:
    """A cluster of so many hosts with nodes; at the end nothing unrequested is left."""
    with contextlib.ExitStack() as undo:
        hosts = undo.enter_context(hosts_in(folder, 1 + nodes + standby))
        cluster = Cluster(hosts, standby=standby)
        undo.callback(cluster.driver.mark.kill)
        cluster.up("--cluster", str(cluster.file))
        cluster.tidy()
        yield cluster
        cluster.brim("down", "--kill")
        for name, node in cluster.nodes.items():
            node.terminate()
            _, err = node.communicate(timeout=DEADLINE)
            assert node.returncode in (0, -signal.SIGKILL), f"{name}: {err}"
        cluster.check_devices()
        assert not cluster.driver.mark.left_after(20.0)
        # A process that ends has no mark any more before it is gone.
        until(lambda: not any(host.processes() for host in hosts), "the end of all on each host")
        for host in cluster.places:
            leftovers = {Path(name).name for name in host.files() if "/node/" in name}
            assert leftovers <= {".lock", "node.json", "node.log"}
