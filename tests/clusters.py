"""Kubernetes for tests, and the fate of tests where there is none.

`BRIM_TEST_KUBECONFIG` names the kubeconfig of any cluster (kind's, k3s', a team's own), and
`BRIM_TEST_IMAGE` an image there that has brim with torch. Without them tests use the cluster that
`make cluster` has made. Where there is none, they skip and say how to get it;
`BRIM_TEST_NEED_CLUSTER=1` makes a failure of that, for runs that must not pass by skipping.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from brim_lab.kubernetes.binaries import folder, missing
from brim_lab.kubernetes.cluster import NodeCluster, is_up
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    control_plane,
)
from brim_lab.kubernetes.images import BRIM

KUBECONFIG, IMAGE = "BRIM_TEST_KUBECONFIG", "BRIM_TEST_IMAGE"


def need(*programs: str) -> None:
    """Skip the test, or fail it, where programs are not built."""
    if absent := missing(programs):
        no_cluster(
            f"{', '.join(absent)} of Kubernetes not built in {folder()}; "
            f"to build: python -m brim_lab.kubernetes build {' '.join(absent)}"
        )


def no_cluster(reason: str) -> NoReturn:
    """Skip the test, or fail it where that must not be."""
    if os.environ.get("BRIM_TEST_NEED_CLUSTER", "0") not in ("", "0"):
        pytest.fail(f"BRIM_TEST_NEED_CLUSTER is set: {reason}")
    pytest.skip(reason)


def image() -> str:
    """The name of an image that has brim with torch."""
    return os.environ.get(IMAGE) or BRIM


@pytest.fixture
def namespace() -> str:
    """A name for a namespace of this test alone."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that nothing acts on: objects stay as they are put."""
    need(ETCD, API_SERVER, "kubectl")
    with control_plane(tmp_path_factory.mktemp("api-server")) as plane:
        yield plane


@pytest.fixture(scope="session")
def fake_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with controllers and scheduler, and three nodes that only seem to run pods."""
    programs = (CONTROLLERS, SCHEDULER, KWOK)
    need(ETCD, API_SERVER, "kubectl", *programs)
    with control_plane(tmp_path_factory.mktemp("fake-cluster"), programs=programs) as plane:
        plane.add_fake_nodes(3, {"example.com/gpu": "8"})
        yield plane


@pytest.fixture
def real_kubeconfig() -> Iterator[Path]:
    """The kubeconfig of a cluster whose nodes run pods, and stay up meanwhile."""
    if named := os.environ.get(KUBECONFIG):
        if not Path(named).is_file():
            pytest.fail(f"{KUBECONFIG}={named} names no file")
        if IMAGE not in os.environ:
            pytest.fail(
                f"{IMAGE} must name an image with brim that the cluster of {named} can have"
            )
        yield Path(named)
        return
    if not is_up():
        no_cluster(f"no cluster is up; to have one: make cluster (as root), or {KUBECONFIG}=FILE")
    cluster = NodeCluster()
    with _IN_USE.open(cluster.kubeconfig.with_name("in-use")):
        yield cluster.kubeconfig


@pytest.fixture
def node_cluster(real_kubeconfig: Path) -> Iterator[NodeCluster]:
    """The cluster that `make cluster` has made, whose nodes this test alone may kill and cut off."""
    if KUBECONFIG in os.environ:
        no_cluster(f"the nodes of {KUBECONFIG} are not ours to kill: unset it, and make cluster")
    cluster = NodeCluster()
    if len(cluster.nodes) < 2:
        no_cluster(
            "the cluster has one node, and this takes two: make cluster-down cluster NODES=2"
        )
    with _IN_USE.alone():
        yield cluster


class _Use:
    """The use of the cluster by this process; others run tests at the same time."""

    def __init__(self) -> None:
        self._lock = -1

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[None]:
        """Share the cluster with other tests."""
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(self._lock)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the cluster alone while it is open."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        yield
        fcntl.flock(self._lock, fcntl.LOCK_SH)


_IN_USE = _Use()
