"""For any objects of people, the operator on a real API server names the wrong field, and goes on."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.kubernetes.nodes.node_selection import choice_in
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane
from edges.test_nonsense import ODD, places, with_other
from elastic_jobs import elastic_job, everything
from kube_objects import node
from kubernetes.test_operator import House, plane, run, say_of_node

__all__ = ["plane"]

COUNT = 200  # objects, of which about a third passes the schema
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "ads"}, "annotations": {"a": "b"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "containers": [
            {
                "name": "worker",
                "image": "images/flights:1",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "beside", "image": "i", "resources": {"limits": {"cpu": "1"}}},
        ],
        "initContainers": [{"name": "first", "image": "i"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"podAffinity": {}},
        "securityContext": {"fsGroup": 3},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["x"]}],
    },
}
WORDS = [
    "NaN",
    "Infinity",
    "1e999",
    "-1",
    "0x10",
    "9" * 40,
    "\u202e",
    "é" * 70,
    "../x",
    "a\nb",
    "~",
]


def strange() -> dict[str, Any]:
    """A job that says much, and is right."""
    whole = everything()["spec"] | {"template": TEMPLATE, "suspend": False}
    removed = {
        "deadline",
        "tenant",
        "priorityClassName",
        "volumeClaim",
        "checkpoints",
        "runs",
        "faults",
        "gang",
    }
    return {name: value for name, value in whole.items() if name not in removed}


def broken(spec: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The spec with one value in it that is another one, wherever it lies."""
    values = st.sampled_from([*ODD, *WORDS]) | st.integers() | st.text(max_size=20)
    place = st.sampled_from([path for path in places(spec) if path])
    return st.builds(with_other, st.just(spec), place, values)


PAIRS = st.fixed_dictionaries(
    {},
    optional={
        "deadline": st.sampled_from(["2031-01-01T00:00:00Z", "1999-01-01T00:00:00Z"]),
        "deadlineIn": st.sampled_from(["2h", "0s", "99999h"]),
        "command": st.just(["python", "x.py"]),
        "workers": st.builds(lambda a, b: {"min": a, "max": b}, st.integers(0, 9), st.integers(0, 9)),
        "microBatches": st.integers(0, 4),
        "servers": st.integers(0, 2),
        "volumeClaim": st.sampled_from([{"size": "1Gi"}, {"size": 0}, {"size": "1e99"}]),
        "bundle": st.just({"configMap": "none", "sha256": "0" * 64}),
        "priorityClassName": st.sampled_from(["none", "a b"]),
    },
)  # fmt: skip
SPECS = broken(strange()) | broken({"template": TEMPLATE}).map(
    lambda spec: strange() | spec
) | PAIRS.map(lambda pairs: strange() | pairs)  # fmt: skip


LABELS = {"disk": "ssd"}  # of the only node


@pytest.fixture
def house(plane: ControlPlane, namespace: str, tmp_path: Path) -> House:
    """A namespace with room for all."""
    capacity = {"cpu": "2000", "memory": "8000Gi", "pods": "4000"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    meta = {"name": "large", "labels": LABELS}
    body = {"metadata": meta, "status": {"allocatable": capacity, "capacity": capacity}}
    plane.api.ask("/api/v1/nodes", method="POST", body=body)
    say_of_node(plane, "large", conditions=ready)
    plane.api.ask(
        "/api/v1/nodes/large", method="PATCH", body={"spec": {"taints": None}}, kind=PATCH
    )
    return House(plane, namespace, tmp_path)


def drawn(count: int) -> list[dict[str, Any]]:
    """Specs that can be written as JSON."""
    found: list[dict[str, Any]] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(spec=SPECS)
    def draw(spec: dict[str, Any]) -> None:
        try:
            found.append(json.loads(json.dumps(spec, allow_nan=False)))
        except (ValueError, TypeError, OverflowError):
            return

    draw()
    return found


REFUSED = re.compile(r": (400|422): .*\"message\":\"(.*?)\",\"reason")


def refusal_of(house: House, name: str, spec: dict[str, Any]) -> str:
    """Return why the server refuses an object; empty where it takes it."""
    body = {**elastic_job(), "metadata": {"name": name}, "spec": spec}
    try:
        house.plane.api.ask(house.jobs, method="POST", body=body)
    except EnvironmentFault as fault:
        found = REFUSED.search(str(fault))
        if found is None:
            raise
        return found[2]
    return ""


def fate(thing: dict[str, Any], has_pods: bool) -> str:
    """Return the fate of an object, in a word; empty: none yet."""
    status = thing.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    stalled = conditions.get("Stalled", {})
    if stalled.get("status") == "True":
        assert re.search(r"\bspec\.", stalled["message"]), stalled
        return "told"
    if conditions.get("Admitted", {}).get("reason") == "OnNodesThatItsOwnerHasChosen":
        choice = choice_in(thing["spec"]["template"]["spec"])
        assert choice is not None
        assert not choice.allows(node(metadata={"labels": LABELS}))
        return "waits for a node"
    return "taken" if has_pods or thing["spec"].get("suspend") else ""


@pytest.mark.exhaustive
def test_strange_objects_hold_up_no_other_job(
    house: House,
) -> None:
    fates, specs = Counter[str](), drawn(COUNT)

    def submit_all() -> None:
        for number, spec in enumerate(specs):
            if refusal := refusal_of(house, f"odd-{number}", spec):
                assert re.search(r"\bspec\b", refusal), (refusal, spec)
                fates["refused"] += 1
        house.submit()

    def look() -> tuple[dict[str, str], list[str]]:
        pods = house.kubelets.pods().values()
        owners = Counter(
            pod["metadata"]["labels"]["brim.dev/role"]
            + " "
            + pod["metadata"]["labels"]["brim.dev/job"]
            for pod in pods
        )
        things = {job["metadata"]["name"]: job for job in house.plane.api.ask(house.jobs)["items"]}
        fates_now = {
            name: fate(thing, owners[f"worker {name}"] > 0) for name, thing in things.items()
        }
        lost = [
            json.dumps(
                {**things[name]["spec"], "said": things[name].get("status", {}).get("conditions")}
            )
            for name in fates_now
            if not fates_now[name]
        ]
        return fates_now, lost

    async def work() -> None:
        async with house.operator() as task:
            await asyncio.to_thread(submit_all)
            deadline = monotonic() + 120.0
            fates_now, lost = await asyncio.to_thread(look)
            while lost:
                assert not task.done(), task.exception()
                assert monotonic() < deadline, f"nothing came of {lost[0]}"
                await asyncio.sleep(0.2)
                fates_now, lost = await asyncio.to_thread(look)
            assert fates_now["flights"] == "taken"
            fates.update(fates_now.values())
            assert not task.done()

    run(work)
    assert min(fates["refused"], fates["taken"], fates["told"]) > COUNT / 20, fates
    assert fates.total() > COUNT * 0.9
