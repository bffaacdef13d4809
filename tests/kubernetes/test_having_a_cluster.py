"""How tests come by a cluster, and their messages where there is none."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brim.errors import BrimError, EnvironmentFault, SpecError
from brim_lab.kubernetes import binaries, groups
from brim_lab.kubernetes.cluster import check_machine, down, is_up, up
from brim_lab.kubernetes.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    SCHEDULER,
    Features,
    kubectl,
)
from brim_lab.kubernetes.groups import members
from brim_lab.kubernetes.jobs import until
from brim_lab.kubernetes.settings import ClusterSettings, group_of
from clusters import need, no_cluster

OTHER = f"other-{secrets.token_hex(3)}"


def asked(**changes: object) -> ClusterSettings:
    facts = {"name": OTHER, "nodes": 1, "resources": {}, "gates": [], "apis": [], "shares": []}
    return ClusterSettings(**{**facts, **changes})  # type: ignore[arg-type]


def need_nodes() -> None:
    need(*binaries.BINARIES)
    try:
        check_machine()
    except BrimError as error:
        no_cluster(str(error))


@pytest.fixture
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(binaries.VARIABLE, str(tmp_path))
    return tmp_path


def test_a_test_skips_and_says_what_to_type(
    nothing_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIM_TEST_NEED_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"brim_lab.kubernetes build etcd$"):
        need("etcd")


def test_needed_clusters_make_skips_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_TEST_NEED_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="none is up"):
        no_cluster("none is up")


def test_a_program_that_cannot_be_built_leaves_nothing(
    nothing_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = nothing_built / "tools" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'no such module' >&2\ntouch \"$6\"\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    with pytest.raises(EnvironmentFault, match="no such module"):
        binaries.build(["etcd"])
    assert binaries.missing(["etcd"]) == ["etcd"]
    with pytest.raises(EnvironmentFault, match=r"hint: python -m brim_lab\.kubernetes build etcd"):
        binaries.binary("etcd")


def test_without_go_there_is_a_hint(nothing_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nothing_built))
    with pytest.raises(EnvironmentFault, match=r"go is not on PATH(?s:.*)hint: "):
        binaries.build(["etcd"])


def test_features_are_flags() -> None:
    features = Features(gates=("One", "Two=false"), apis=("a/v1", "b/v1"))
    assert features.gate_flags() == ["--feature-gates=One=true,Two=false"]
    assert features.flags()[1:] == ["--runtime-config=a/v1=true,b/v1=true"]
    assert Features().flags() == []


@pytest.mark.parametrize(
    "wrong", [{"name": "../x"}, {"name": "Upper"}, {"shares": ["/no/such"]}, {"shares": ["/run"]}]
)
def test_a_cluster_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        up(asked(**wrong))


def test_a_failing_cluster_says_why() -> None:
    need_nodes()
    settings = asked(gates=["NoSuchFeature"])
    try:
        with pytest.raises(EnvironmentFault, match="NoSuchFeature"):
            up(settings)
        assert not members(group_of(OTHER))
        assert not is_up(OTHER)
        assert "NoSuchFeature" in (settings.folder / "cluster.log").read_text()
    finally:
        down(OTHER)


def test_control_groups_2_are_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
    monkeypatch.setattr(groups, "_MOUNTS", mounts)
    with pytest.raises(EnvironmentFault, match=r"version 1(?s:.*)hint: .*BRIM_TEST_KUBECONFIG"):
        groups.need_version_1()


def test_control_c_ends_a_manual_control_plane(tmp_path: Path) -> None:
    need(ETCD, API_SERVER, CONTROLLERS, SCHEDULER)
    command = [sys.executable, "-m", "brim_lab.kubernetes", "control-plane"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        word, _, config = process.stdout.readline().strip().partition("=")
        assert word == "export KUBECONFIG"
        assert kubectl(Path(config), "get", "--raw", "/readyz") == "ok"
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    assert list(tmp_path.iterdir()) == []


def test_no_folder_outside_is_removed() -> None:
    with pytest.raises(SpecError):
        down("../bin")


def test_files_that_nodes_would_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(binaries.VARIABLE, "/run/kubernetes")
    with pytest.raises(SpecError, match="hint: export BRIM_TEST_KUBERNETES="):
        up(asked())


def devices() -> set[str]:
    """The network devices of this machine."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return {line.partition(":")[0].strip() for line in lines if ":" in line}


def test_two_clusters_are_independent() -> None:
    need_nodes()
    settings = asked()
    names = devices()
    try:
        cluster = up(settings)
        assert cluster.kubectl("get", "nodes", "--no-headers").split()[:2] == ["node-1", "Ready"]
        with pytest.raises(EnvironmentFault, match="hint: export KUBECONFIG="):
            up(settings)
        assert members(group_of(OTHER))
    finally:
        down(OTHER)
    assert not is_up(OTHER)
    assert not settings.folder.exists()
    assert not members(group_of(OTHER))
    assert f"clusters/{OTHER}" not in Path("/proc/mounts").read_text()
    # Those that other tests make are moved elsewhere at once.
    until(lambda: devices() <= names, devices, within=30.0)
    assert not down(OTHER)
