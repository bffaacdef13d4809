"""The verbs of Kubernetes as processes: their work on a real API server, and their refusals."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim.host.installation import command_for
from brim.kubernetes.install.manifests import NAME
from brim.kubernetes.kubeflow.schemas import kubeflow_crds
from brim.kubernetes.objects.schemas import crds, in_yaml
from brim_lab.kubernetes.control_plane import ControlPlane

PATIENCE = 60.0
IMAGE = "images/brim:1"
ROOT = Path(__file__).parents[2]


def environment(**variables: str) -> dict[str, str]:
    own_variables = {
        name: value for name, value in os.environ.items() if not name.startswith("BRIM_")
    }
    return own_variables | variables


def brim(*words: str, env: Mapping[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brim", *words],
        capture_output=True, text=True, env=dict(env), timeout=300, input=stdin,
    )  # fmt: skip


def make_namespace(plane: ControlPlane, name: str) -> None:
    body = {"metadata": {"name": name}}
    plane.api.ask("/api/v1/namespaces", method="POST", body=body)


# brim operator ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--image: got nothing"),
        (
            ["--image", IMAGE, "--volume-size", "much"],
            "--volume-size: got 'much', need an amount of storage",
        ),
        (["--image", IMAGE, "--slot", "cpu"], "--slot: got 'cpu', need NAME=AMOUNT"),
        (["--image", IMAGE, "--slot", "cpu=one"], "--slot: got 'one', need an amount of cpu"),
        (["--image", IMAGE, "--slot", "cpu=1", "--slot", "cpu=2"], "--slot: got cpu twice"),
        (["--image", IMAGE, "--slot", "cpu=0"], "--slot: got nothing"),
        (["--image", IMAGE, "--grace", "soon"], "--grace: got 'soon'"),
        (
            ["--image", IMAGE, "--usage-half-life", "5s"],
            "--usage-half-life: got 5s, need a time from 1m to 3650d",
        ),
        (
            ["--image", IMAGE, "--grace", "30s"],
            "--grace: got 30s, need at least 34s: a pod has 30s",
        ),
        (
            ["--image", IMAGE, "--service-url", "http://metrics:9090"],
            "--service-url: got 'http://metrics:9090', need the beginning of a URL",
        ),
        (["--image", IMAGE], "KUBECONFIG: got /no/such/file, need at least one file that exists"),
    ],
)
def test_an_invalid_operator_is_refused_before_start(
    words: list[str], message: str, tmp_path: Path
) -> None:
    env = {"KUBECONFIG": "/no/such/file", "HOME": str(tmp_path)}
    done = CliRunner().invoke(cli, ["operator", *words], env=env)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize("verb", ["operator", "install"])
def test_without_the_extra_it_says_what_to_install(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(cli, [verb, "--image", IMAGE], env={"HOME": str(tmp_path)})
    assert done.exit_code == 2
    assert f"hint: {command_for('kubernetes')}" in done.stderr


# Behind those that the kernel gives to whoever asks for any: an operator finds them free seconds later.
PORTS = itertools.count(61_000 + os.getpid() % 4_000)


def free_port() -> int:
    while True:
        port = next(PORTS)
        with contextlib.suppress(OSError), socket.socket() as once:
            once.bind(("127.0.0.1", port))
            return port


def answer_of(port: int, path: str) -> str:
    """The answer of a process there; empty while it is silent, or says no."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def until(holds: Callable[[], object]) -> None:
    end = monotonic() + PATIENCE
    while not holds():
        assert monotonic() < end
        sleep(0.1)


def test_a_manual_operator_holds_the_lease(
    api_server: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    text = "---\n".join(map(in_yaml, crds().values()))
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    make_namespace(api_server, namespace)
    words = ["operator", "--image", IMAGE, "--namespace", namespace, "--watch", namespace]
    env = environment(KUBECONFIG=str(api_server.kubeconfig))
    ports = {"one": free_port(), "two": free_port()}

    def start_operator(name: str) -> subprocess.Popen[bytes]:
        options = ["--state", str(tmp_path / name), "--identity", name]
        options += ["--listen", f"127.0.0.1:{ports[name]}"]
        return subprocess.Popen([sys.executable, "-m", "brim", *words, *options], env=env)

    def metrics(name: str) -> list[str]:
        return answer_of(ports[name], "/metrics").splitlines()

    process, standby = start_operator("one"), None
    try:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{NAME}"
        end, holder = monotonic() + PATIENCE, ""
        while not holder and monotonic() < end:
            try:
                holder = api_server.api.ask(path)["spec"].get("holderIdentity") or ""
            except EnvironmentFault:
                sleep(0.1)
        assert holder.startswith("one_")
        until(lambda: answer_of(ports["one"], "/readyz") == "ok\n")
        assert answer_of(ports["one"], "/healthz") == "ok\n"
        until(lambda: "brim_lease_held 1" in metrics("one"))
        until(lambda: 'brim_jobs{state="running"} 0' in metrics("one"))
        lists = 'brim_api_requests_total{verb="list",code="200"} 5'
        until(lambda: lists in metrics("one"))  # nodes, pods, jobs, tenants and Services
        standby = start_operator("two")
        until(lambda: answer_of(ports["two"], "/readyz") == "ok\n")
        assert "brim_lease_held 0" in metrics("two")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        until(lambda: "brim_lease_held 1" in metrics("two"))
        standby.send_signal(signal.SIGTERM)
        assert standby.wait(PATIENCE) == 0
        assert not api_server.api.ask(path)["spec"].get("holderIdentity")
    finally:
        for program in filter(None, (process, standby)):
            program.kill()
            program.wait()


# brim install -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--image: got nothing"),
        (["--image", "a b"], "--image: got 'a b', need the name of an image"),
        (["--image", IMAGE, "--namespace", "Team_1"], "--namespace: got 'Team_1'"),
        (["--image", IMAGE, "--namespace", ""], "--namespace: got ''"),
        (
            ["--image", IMAGE, "--watch", "brim-system"],
            "--watch: got brim-system, the operator's own",
        ),
        (["--image", IMAGE, "--replicas", "0"], "--replicas: got '0'"),
        (["--image", IMAGE, "--slot", "cpu=-1"], "--slot: got cpu: -1"),
        (["--image", IMAGE, "--grace", "20s"], "--grace: got 20s, need at least 34s"),
        (
            ["--image", IMAGE, "--service-url", "http://metrics:9090"],
            "--service-url: got 'http://metrics:9090', need the beginning of a URL",
        ),
        (["--image", IMAGE], "KUBECONFIG: got /no/such/file, need at least one file that exists"),
    ],
)
def test_invalid_installations_are_refused_before_applying(
    words: list[str], message: str, tmp_path: Path
) -> None:
    env = {"KUBECONFIG": "/no/such/file", "HOME": str(tmp_path)}
    done = CliRunner().invoke(cli, ["install", *words], env=env)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert not done.stdout


@pytest.fixture
def whole_server(api_server: ControlPlane, namespace: str) -> Iterator[dict[str, str]]:
    """The environment of an administrator of a server, from which the rights of brim go again."""
    env = environment(KUBECONFIG=str(api_server.kubeconfig))
    yield env
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        api_server.kubectl("delete", kind, f"{NAME}-{namespace}", "--ignore-not-found")


@pytest.mark.parametrize("is_single", [True, False], ids=["of one namespace", "of all"])
def test_installation_reports_each_object(
    api_server: ControlPlane, whole_server: dict[str, str], namespace: str, is_single: bool
) -> None:
    words = ["install", "--image", IMAGE, "--namespace", namespace]
    if is_single:
        make_namespace(api_server, f"{namespace}-team")
        words += ["--watch", f"{namespace}-team"]
    first = brim(*words, env=whole_server)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert f"created    Deployment {namespace}/{NAME}" in lines
    second_run = brim(*words, env=whole_server)
    assert [line.split()[1:] for line in second_run.stdout.splitlines()] == [
        line.split()[1:] for line in lines
    ]
    assert {line.split()[0] for line in second_run.stdout.splitlines()} == {"unchanged"}
    assert "nothing to change" in second_run.stderr
    words += ["--headroom", "2", "--usage-half-life", "7d"]
    changed_run = brim(*words, "--json", env=whole_server)
    changed = [
        load for load in json.loads(changed_run.stdout)["applied"] if load["outcome"] != "unchanged"
    ]
    assert [(item["kind"], item["outcome"]) for item in changed] == [("Deployment", "changed")]
    deployed = api_server.api.ask(f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}")
    container = deployed["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["--headroom=2", "--usage-half-life=7d"]


def test_dry_runs_print_what_is_installed(
    api_server: ControlPlane, whole_server: dict[str, str], namespace: str
) -> None:
    words = ["install", "--image", IMAGE, "--namespace", namespace]
    printed = brim(*words, "--dry-run", env=environment(KUBECONFIG="/no/such/file"))
    assert printed.returncode == 0, printed.stderr
    assert not printed.stderr
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=printed.stdout)
    applied = brim(*words, env=whole_server)
    assert applied.returncode == 0, applied.stderr
    # That its fields have another manager now is no conflict: they say the same.
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=printed.stdout)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}"
    assert api_server.api.ask(path)["metadata"]["generation"] == 1


def test_existing_kubeflow_definitions_are_kept(
    api_server: ControlPlane, whole_server: dict[str, str], namespace: str
) -> None:
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    foreign_definition = {**kubeflow_crds()["kubeflow-pytorchjobs.yaml"]}
    foreign_definition["metadata"] = foreign_definition["metadata"] | {
        "annotations": {"of": "kubeflow"}
    }
    names = [kubeflow_crd["metadata"]["name"] for kubeflow_crd in kubeflow_crds().values()]
    for name in names:
        with contextlib.suppress(EnvironmentFault):
            api_server.api.ask(f"{kinds}/{name}", method="DELETE")
    end = monotonic() + PATIENCE
    while "kubeflow.org" in api_server.kubectl("get", "crds", "-o", "name") and monotonic() < end:
        sleep(0.1)
    api_server.api.ask(kinds, method="POST", body=foreign_definition)
    try:
        words = ["install", "--image", IMAGE, "--namespace", namespace, "--kubeflow"]
        done = brim(*words, env=whole_server)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert f"kept       CustomResourceDefinition {names[0]}" in lines
        assert all(f"created    CustomResourceDefinition {name}" in lines for name in names[1:])
        assert f"left unchanged, since others created them: {names[0]}" in done.stderr
        metadata = api_server.api.ask(f"{kinds}/{names[0]}")["metadata"]
        assert (metadata["annotations"], metadata.get("labels")) == ({"of": "kubeflow"}, None)
        second_output = brim(*words, env=whole_server).stdout.splitlines()
        assert f"kept       CustomResourceDefinition {names[0]}" in second_output
        assert f"unchanged  CustomResourceDefinition {names[1]}" in second_output
        # kubectl does the same with the file.
        for name in names[1:]:
            api_server.kubectl("delete", "crd", name)
        create = ["create", "-f", str(ROOT / "deploy" / "kubeflow-kinds.yaml")]
        with pytest.raises(EnvironmentFault, match=f'"{names[0]}" already exists'):
            api_server.kubectl(*create)
        there_now = api_server.kubectl("get", "crds", "-o", "name")
        assert all(name in there_now for name in names)
    finally:
        for name in names:
            api_server.kubectl("delete", "crd", name, "--ignore-not-found")


def test_missing_rights_to_install_are_listed(
    api_server: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    make_namespace(api_server, namespace)
    api_server.kubectl("create", "serviceaccount", "ann", "-n", namespace)
    token = api_server.kubectl("create", "token", "ann", "-n", namespace).strip()
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    done = brim("install", "--image", IMAGE, "--namespace", f"{namespace}-own",
                env=environment(KUBECONFIG=str(file)))  # fmt: skip
    assert done.returncode == 1
    assert "nothing was applied" in done.stderr
    assert "create clusterroles of the whole cluster" in done.stderr
    assert f"patch deployments in namespace {namespace}-own" in done.stderr
    assert "hint: as an administrator, brim install --dry-run" in done.stderr
    with pytest.raises(EnvironmentFault, match="404"):
        api_server.api.ask(f"/api/v1/namespaces/{namespace}-own")


def test_a_server_that_is_not_there(tmp_path: Path, api_server: ControlPlane) -> None:
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = "https://127.0.0.1:9"
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    done = brim("install", "--image", IMAGE, env=environment(KUBECONFIG=str(file)))
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
