"""Jobs whose pods are pinned to no node, on a server with kube-scheduler and nodes that only seem to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from brim.kubernetes.objects.schemas import crds
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    control_plane,
)
from clusters import need
from kubernetes.test_gangs import bound, house, keep_out, uids, until
from kubernetes.test_operator import House, run

__all__ = ["house"]
NODES = ("fake-1", "fake-2", "fake-3")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with kube-scheduler, and three nodes of two slots."""
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    need(ETCD, API_SERVER, "kubectl", *programs)
    with control_plane(tmp_path_factory.mktemp("plane"), programs=programs) as plane:
        plane.add_kinds(crds().values())
        plane.add_fake_nodes(3, {"cpu": "2500m"})  # and room for a master
        yield plane


def planned(house: House) -> set[str]:
    """The nodes that plans have had for the workers of a job."""
    return set(house.workers())


def placement(house: House) -> Counter[str]:
    return Counter(bound(house).values())


def told_workers(house: House) -> Any:
    """The workers of a job by node, as its status has them."""
    return house.job()["status"]["workers"]["nodes"]


def submit(house: House) -> None:
    house.submit(workers={"min": 2, "max": 2}, mode="opportunistic")


def test_workers_count_on_any_node_they_run_on(house: House) -> None:
    for name in NODES[:2]:
        keep_out(house, name)  # of which plans know nothing

    async def work() -> None:
        async with house.operator():
            submit(house)
            await until(lambda: placement(house) == {"fake-3": 2}, house)
            assert planned(house) - {"fake-3"}, "the plan had it where kube-scheduler has"
            pods = house.kubelets.pods()
            assert not any("affinity" in pods[name]["spec"] for name in bound(house))
            await until(lambda: house.job()["status"]["workers"]["ready"] == 2, house)
            await until(lambda: told_workers(house) == {"fake-3": 2}, house)
            first = uids(house)
            house.change(workers={"min": 1, "max": 1})
            await until(lambda: placement(house) == {"fake-3": 1}, house)
            (remaining,) = uids(house)
            assert remaining in first
        async with house.operator():  # the next one finds it there
            house.change(workers={"min": 2, "max": 2})
            await until(lambda: placement(house) == {"fake-3": 2}, house)
            assert remaining in uids(house)
            assert all(name.startswith("flights-1-") for name in bound(house)), "one start"
            await until(lambda: told_workers(house) == {"fake-3": 2}, house)

    run(work)


def test_unbound_worker_does_not_count_and_goes_first(house: House) -> None:
    for name in NODES[:2]:
        keep_out(house, name)

    async def work() -> None:
        async with house.operator():
            submit(house)
            await until(lambda: placement(house) == {"fake-3": 2}, house)
            house.change(workers={"min": 2, "max": 3})
            await until(lambda: house.workers().total() == 3, house)
            had = uids(house)
            house.change(workers={"min": 2, "max": 2})
            await until(lambda: house.workers().total() == 2, house)
            assert uids(house) == had
            house.change(workers={"min": 2, "max": 3})
            house.kubelets.remove("alone-fake-1")
            await until(lambda: placement(house) == {"fake-3": 2, "fake-1": 1}, house)
            assert had < uids(house)

    run(work)
