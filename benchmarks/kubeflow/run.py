"""The guide's elastic PyTorchJob under brim's operator and under Kubeflow's: see README.md."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.report import Report, table
from brim.errors import EnvironmentFault
from brim_lab.kubernetes.cluster import NodeCluster, is_up
from brim_lab.kubernetes.guide import NAME, Guide
from brim_lab.kubernetes.jobs import GPU, until
from brim_lab.kubernetes.peers import TRAINING_OPERATOR, install_peer, peer_manifests

BENCHMARK = Path(__file__).parent
FILES = BENCHMARK.parents[1] / "tests" / "kubernetes" / "files"
SLOT = {"cpu": "100m", "memory": "512Mi", GPU: "8"}  # one pod on each node
LIMIT = 90.0  # seconds for what may never happen


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was done to the job.

    Args:
        what: was done.
        seconds: until torch trained with as many pods as there was room for; None: not within `LIMIT`.
        after: the pods at that time.
    """

    what: str
    seconds: float | None
    after: str


class Story:
    """The operations on the job, on a cluster of three nodes of which each takes one pod."""

    def __init__(self, guide: Guide, say: Callable[[str], None]) -> None:
        self.guide, self.say = guide, say
        self.events: list[Event] = []

    def run(self) -> list[Event]:
        guide = self.guide
        manifest = yaml.safe_load((FILES / "pytorchjob.yaml").read_text())
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["resources"] = {"limits": {GPU: "8"}}
        guide.kubectl("apply", "-f", str(FILES / "priorityclasses.yaml"))
        started = time.monotonic()
        guide.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        self._running(started)
        self._until("apply, until both train", 2, started)
        self._after("scale to 1", 1, "scale", "pytorchjob", NAME, "--replicas=1")
        self._after("scale to 2", 2, "scale", "pytorchjob", NAME, "--replicas=2")
        nodes = guide.nodes()
        spare = next(node for node in guide.cluster.nodes if node not in nodes.values())
        guide.occupy("spare", spare, "inference-pc")
        started = time.monotonic()
        guide.occupy("theirs", nodes.get(f"{NAME}-worker-1", spare), "inference-pc")
        self._until("inference takes the node of worker 1, no other is free", 1, started)
        self._after("inference ends", 2, "delete", "pod", "theirs", "spare", "--ignore-not-found")
        if first := guide.nodes().get(f"{NAME}-worker-0"):
            started = time.monotonic()
            guide.occupy("first", first, "inference-pc")
            self._until("inference takes the node of worker 0, another is free", 2, started)
        return self.events

    def _running(self, started: float) -> None:
        until(lambda: self.guide.conditions().get("Running") == "True", self.guide.told_of_guide)
        self._note(Event("apply, until Running", time.monotonic() - started, ""))
        self.processes = self.guide.processes()

    def _after(self, description: str, pods: int, *words: str) -> None:
        started = time.monotonic()
        self.guide.kubectl(*words)
        self._until(description, pods, started)

    def _until(self, description: str, pods: int, started: float) -> None:
        while time.monotonic() < started + LIMIT:
            try:
                if self.guide.trains_with(pods, self.processes):
                    self._note(Event(description, time.monotonic() - started, self._state()))
                    return
            except EnvironmentFault:  # a pod has gone since its name was read
                pass
            time.sleep(0.1)
        self._note(Event(description, None, self._state()))

    def _state(self) -> str:
        """The condition that holds, and the pods by phase."""
        conditions = [kind for kind, holds in self.guide.conditions().items() if holds == "True"]
        phases = [
            f"{pod['metadata']['name'].removeprefix(f'{NAME}-')} {pod['status']['phase']}"
            for pod in self.guide.pods_of_job()
        ]
        return (
            f"{conditions[-1] if conditions else 'no condition'}: {', '.join(phases) or 'no pod'}"
        )

    def _note(self, event: Event) -> None:
        self.events.append(event)
        duration_text = "never" if event.seconds is None else f"{event.seconds:.1f} s"
        self.say(f"{event.what}: {duration_text}; {event.after}")


@contextmanager
def brim_operator(guide: Guide) -> Iterator[None]:
    """Have brim's operator on the cluster, with the objects of `brim install --kubeflow`."""
    try:
        guide.install(SLOT, kubeflow=True, security="baseline")
        yield
    finally:
        guide.uninstall()


@contextmanager
def training_operator(guide: Guide) -> Iterator[None]:
    """Have Kubeflow's operator on the cluster, as its manifests install it."""
    text = peer_manifests(guide.cluster, TRAINING_OPERATOR, excluded_kind="Webhook")
    try:
        install_peer(guide.cluster, TRAINING_OPERATOR, text)
        meta = {"name": guide.namespace}
        guide.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        yield
    finally:
        guide.kubectl("delete", "pytorchjobs", "--all", "--timeout=60s")
        guide.cluster.kubectl("delete", "namespace", guide.namespace, "--timeout=90s")
        guide.cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)


SIDES = {"training-operator": training_operator, "brim": brim_operator}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, help="this one alone, and no report")
    arguments = parser.parse_args()
    if not is_up():
        raise SystemExit("no cluster is up: make cluster NODES=3")
    cluster = NodeCluster()
    report = Report(BENCHMARK, "The guide's elastic PyTorchJob", seed=0)
    events_of: dict[str, list[Event]] = {}
    for side in [arguments.side] if arguments.side else SIDES:
        report.say(side)
        guide = Guide(cluster, f"guide-{side}")
        guide.add_its_image()
        with SIDES[side](guide):
            events_of[side] = Story(guide, report.say).run()
    if arguments.side:
        print(json.dumps([asdict(event) for event in events_of[arguments.side]], indent=1))
        return
    report.add(_table(events_of))
    report.write(
        {"events": {side: [asdict(event) for event in events_of[side]] for side in events_of}}
    )


def _table(told: dict[str, list[Event]]) -> str:
    def cell(side: str, description: str) -> str:
        for event in told[side]:
            if event.what == description:
                took = (
                    f"not in {LIMIT:.0f} s" if event.seconds is None else f"{event.seconds:.1f} s"
                )
                return f"{took}; {event.after}" if event.after else took
        return "was not reached"

    events: dict[str, Any] = {event.what: None for side in told for event in told[side]}
    return table(["", *told], [[event, *(cell(side, event) for side in told)] for event in events])


if __name__ == "__main__":
    main()
