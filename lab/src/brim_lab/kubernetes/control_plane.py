"""A control plane on loopback: etcd and an API server, and on request all that acts on objects.

It is ready within seconds, needs no root, and leaves nothing behind. There are no real nodes: pods
stay what the scheduler and `kwok` make of them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.storage.files import write_whole
from brim.wire.authority import Authority
from brim_lab.kubernetes.api import Api, kubeconfig
from brim_lab.kubernetes.binaries import STAGES, binary, folder, missing
from brim_lab.kubernetes.program import READY_WITHIN, LoggedProgram, wait_until

LOOPBACK = "127.0.0.1"
ETCD, API_SERVER = "etcd", "kube-apiserver"
CONTROLLERS, SCHEDULER, KWOK = "kube-controller-manager", "kube-scheduler", "kwok"

_DAYS = 30 * 86_400.0  # for which certificates are good
_FAST = ("--kube-api-qps", "300", "--kube-api-burst", "500")  # of requests, or they wait for that
HALF = "example.com/half"  # a label of fake nodes
_FAKE = "kwok.x-k8s.io/node"
# By default it has four requests on the way, and the pods of a large test wait for it.
_MANY_AT_ONCE = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {"podPlayStageParallelism": 32, "nodePlayStageParallelism": 32},
}
_UNROUTED = "192.0.2.1"  # an address for documentation: the server insists on one beside loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Parts of Kubernetes that are off by default.

    Args:
        gates: of features, such as `GenericWorkload`; `Name=false` turns one off.
        apis: such as `scheduling.k8s.io/v1beta1`.
    """

    gates: Sequence[str] = ()
    apis: Sequence[str] = ()

    def flags(self) -> list[str]:
        """Return those of the API server."""
        apis = ",".join(f"{api}=true" for api in self.apis)
        return [*self.gate_flags(), *([f"--runtime-config={apis}"] if apis else [])]

    def gate_flags(self) -> list[str]:
        """Return those of every other program."""
        gates = ",".join(
            f"{name}={str(is_enabled).lower()}" for name, is_enabled in self.by_name().items()
        )
        return [f"--feature-gates={gates}"] if gates else []

    def by_name(self) -> dict[str, bool]:
        """Each gate, and whether it is on."""
        parts = (gate.partition("=") for gate in self.gates)
        return {name: value.lower() != "false" for name, _, value in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place where an API server is.

    Args:
        address, port: that it listens on.
        url: by which clients outside reach it.
        names: further addresses and names in its certificate.
        services: the range of the services' addresses.
        advertised: the address by which pods reach it.
    """

    address: str
    port: int
    url: str
    names: tuple[str, ...] = ()
    services: str = "10.96.0.0/16"
    advertised: str = _UNROUTED


class ControlPlane:
    """A control plane; each of its programs can be stopped and started again.

    Args:
        folder: for its files, and its logs in `log/`; only this user may read it.
        site: of its API server.
        features: beside those that are on by default.
        programs: beside etcd and the API server: `CONTROLLERS`, `SCHEDULER`, `KWOK`.
        api_server_flags: further ones.
        tokens: further users: name -> token and group.

    Attributes:
        kubeconfig: the file with which clients find it and are its administrators.
        api: for requests.
    """

    def __init__(
        self,
        folder: Path,
        site: Site,
        *,
        features: Features | None = None,
        programs: Sequence[str] = (),
        api_server_flags: Sequence[str] = (),
        tokens: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.folder, self._site = folder, site
        self._features = features or Features()
        self._wanted, self._more_flags = tuple(programs), tuple(api_server_flags)
        self._sockets = Path()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "log").mkdir(exist_ok=True)
        admin = secrets.token_hex(16)
        self._certify()
        self._write_tokens({"admin": (admin, "system:masters"), **(tokens or {})})
        self.api = Api(site.url, self._file("ca.crt"), admin)
        self.kubeconfig = self._file("kubeconfig")
        self._write("kubeconfig", kubeconfig(site.url, self._file("ca.crt"), admin))
        self._programs: dict[str, LoggedProgram] = {}

    def __getitem__(self, name: str) -> LoggedProgram:
        """One of its programs, by name."""
        return self._programs[name]

    @property
    def url(self) -> str:
        """The API server's, https://HOST:PORT."""
        return self.api.url

    @contextlib.contextmanager
    def running(self) -> Iterator[ControlPlane]:
        """Run all of it; ready once inside, and gone at the end.

        Raises:
            EnvironmentFault: a program is not built, ends, or takes too long.
        """
        # A path of a Unix socket has at most 107 bytes, and a folder of pytest can be long.
        self._sockets = Path(tempfile.mkdtemp(prefix="brim-etcd-"))
        try:
            self._programs = {
                name: self._program(name) for name in (ETCD, API_SERVER, *self._wanted)
            }
            for name in (ETCD, API_SERVER):
                self[name].start()
            self.wait_ready()
            for name in self._wanted:
                self[name].start()
            yield self
        finally:
            for program in reversed(self._programs.values()):
                program.stop()
            shutil.rmtree(self._sockets, ignore_errors=True)

    def wait_ready(self) -> None:
        """Wait until the API server is ready, after its start or etcd's."""
        deadline = monotonic() + READY_WITHIN
        while not (self.api.is_ready() and self.api.can_read()):
            wait_until(deadline, "the API server was not ready", self[ETCD], self[API_SERVER])

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; return its output.

        Raises:
            EnvironmentFault: it failed; the message is what it says.
        """
        return kubectl(self.kubeconfig, *words, stdin=stdin)

    def add_fake_nodes(
        self, count: int, resources: Mapping[str, str] | None = None, *, first: int = 1
    ) -> list[str]:
        """Add nodes that `KWOK` keeps ready, and return their names.

        Every second one has the label `HALF` with the value `even`, the others `odd`.

        Args:
            resources: what each has beside 32 CPUs, 256 GiB of memory and room for 110 pods.
            first: the number of the first one.
        """
        names = []
        for number in range(first, first + count):
            names.append(f"fake-{number}")
            half = "odd" if number % 2 else "even"
            body = _fake_node(names[-1], resources or {}, half)
            self.api.ask("/api/v1/nodes", method="POST", body=body)
        return names

    def add_kinds(self, definitions: Iterable[Mapping[str, Any]]) -> None:
        """Have the API server know kinds of objects, and wait until it serves them.

        Args:
            definitions: CustomResourceDefinitions.

        Raises:
            EnvironmentFault: it has one of that name, does not take it, or does not serve it in time.
        """
        paths, deadline = [], monotonic() + READY_WITHIN
        for definition in definitions:
            self._add_kind(definition, deadline)
            kind = definition["spec"]
            paths += [
                f"/apis/{kind['group']}/{version['name']}/{kind['names']['plural']}"
                for version in kind["versions"]
                if version["served"]
            ]
        for path in paths:
            self._until_served(path, deadline)

    def _add_kind(self, definition: Mapping[str, Any], deadline: float) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        while True:
            try:
                self.api.ask(path, method="POST", body=definition)
                return
            except EnvironmentFault as fault:  # one of that name may not be gone yet
                if "object is being deleted" not in str(fault):
                    raise
                wait_until(deadline, f"{path} still had an older one")

    def _until_served(self, path: str, deadline: float) -> None:
        while True:
            try:
                self.api.ask(path)
                return
            except EnvironmentFault:
                wait_until(deadline, f"{path} was not served")

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self._file(name), content, mode=0o600)

    def _certify(self) -> None:
        authority = Authority.make("cluster")
        addresses = (self._site.address, LOOPBACK, "localhost", *self._site.names)
        self._write("ca.crt", authority.certificate)
        for role, names in (("apiserver", addresses), ("nodes-client", ()), ("accounts", ())):
            identity = authority.issue(role, addresses=tuple(dict.fromkeys(names)), for_s=_DAYS)
            self._write(f"{role}.key", identity.key)
            self._write(f"{role}.crt", identity.certificate)

    def _write_tokens(self, users: Mapping[str, tuple[str, str]]) -> None:
        lines = (f'{token},{name},{name},"{group}"\n' for name, (token, group) in users.items())
        self._write("tokens.csv", "".join(lines).encode())

    def _program(self, name: str) -> LoggedProgram:
        commands = {
            ETCD: self._etcd,
            API_SERVER: self._api_server,
            CONTROLLERS: self._controllers,
            SCHEDULER: self._scheduler,
            KWOK: self._kwok,
        }
        log = self.folder / "log" / f"{name}.log"
        return LoggedProgram(name, [str(binary(name)), *commands[name]()], log)

    def _etcd(self) -> list[str]:
        client, peer = f"unix://{self._sockets}/client", f"unix://{self._sockets}/peer"
        return [
            f"--data-dir={self._file('etcd')}",
            "--unsafe-no-fsync",  # what a power cut loses is of no use to anybody
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ]

    def _api_server(self) -> list[str]:
        site = self._site
        # No controllers make an account for each namespace: pods need none then.
        unused = () if CONTROLLERS in self._wanted else ("ServiceAccount",)
        return [
            f"--etcd-servers=unix://{self._sockets}/client",
            f"--bind-address={site.address}",
            f"--advertise-address={site.advertised}",
            f"--secure-port={site.port}",
            "--permit-port-sharing",  # with the socket that holds the port: see `_held_port`
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self._file('apiserver.crt')}",
            f"--tls-private-key-file={self._file('apiserver.key')}",
            f"--client-ca-file={self._file('ca.crt')}",
            f"--kubelet-client-certificate={self._file('nodes-client.crt')}",
            f"--kubelet-client-key={self._file('nodes-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={self._file('tokens.csv')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            *(f"--disable-admission-plugins={name}" for name in unused),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._file('accounts.crt')}",
            f"--service-account-signing-key-file={self._file('accounts.key')}",
            f"--service-cluster-ip-range={site.services}",
            f"--endpoint-reconciler-type={'none' if site.advertised == _UNROUTED else 'lease'}",
            "--allow-privileged",
            *self._features.flags(),
            *self._more_flags,
        ]

    def _controllers(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={self._file('accounts.key')}",
            f"--root-ca-file={self._file('ca.crt')}",
            # Fake nodes are told of every two minutes, and nobody crashes them.
            f"--node-monitor-grace-period={'10m' if KWOK in self._wanted else '12s'}",
            *_FAST,
            *self._features.gate_flags(),
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            *_FAST,
            *self._features.gate_flags(),
        ]

    def _kwok(self) -> list[str]:
        self._write("kwok.json", json.dumps(_MANY_AT_ONCE).encode())
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self._file('kwok.json')}",
            f"--config={folder() / STAGES}",
            f"--manage-nodes-with-annotation-selector={_FAKE}=fake",
            "--node-port=0",  # listen nowhere
        ]


@contextlib.contextmanager
def control_plane(
    place: Path,
    *,
    features: Features | None = None,
    programs: Sequence[str] = (),
    api_server_flags: Sequence[str] = (),
    tokens: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[ControlPlane]:
    """Run a control plane on loopback.

    Args:
        place: a folder for its files, and its logs in `log/`.
        features, programs, api_server_flags, tokens: see `ControlPlane`.

    Raises:
        EnvironmentFault: a program is not built, ends, or takes too long.
    """
    with _held_port() as port:
        site = Site(address=LOOPBACK, port=port, url=f"https://{LOOPBACK}:{port}")
        plane = ControlPlane(
            place,
            site,
            features=features,
            programs=programs,
            api_server_flags=api_server_flags,
            tokens=tokens,
        )
        with plane.running():
            yield plane


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """Hold a free port, so that an API server finds it free, and so again after its death."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


def kubectl(config: Path, *words: str, stdin: str | None = None, timeout: float = 120.0) -> str:
    """Run kubectl with a kubeconfig; return its output.

    Args:
        timeout: seconds.

    Raises:
        EnvironmentFault: it failed; the message is what it says.
    """
    command = kubectl_command(config, *words)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise EnvironmentFault(f"kubectl {' '.join(words)}: no end in {timeout:g} s") from late
    if done.returncode != 0:
        raise EnvironmentFault(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def kubectl_command(config: Path, *words: str) -> list[str]:
    """The command of kubectl and its words; the one on PATH serves where ours is not built."""
    found = shutil.which("kubectl") if missing(["kubectl"]) else None
    return [found or str(binary("kubectl")), f"--kubeconfig={config}", *words]


def _fake_node(name: str, resources: Mapping[str, str], half: str) -> dict[str, object]:
    capacity = {
        "cpu": "32",
        "memory": "256Gi",
        "pods": "110",
        "ephemeral-storage": "100Gi",
        **resources,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_FAKE: "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", HALF: half},
        },
        "status": {"allocatable": capacity, "capacity": capacity},
    }
