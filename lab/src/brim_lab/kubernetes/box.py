"""The first process of a cluster: its control plane, its network, and the nodes that it boots.

All of it is in namespaces of its own. The machine sees one port of loopback, which is the API
server's: connections there are carried into the cluster's network. So clusters need no addresses
of the machine, and nothing that a cluster does reaches any other network.

`python -m brim_lab.kubernetes.box FOLDER DOOR` enters the cluster's control group and becomes the
parent of that process, which is this module again. DOOR is the descriptor of a socket that listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.clock import wall
from brim.storage.files import write_whole
from brim_lab.kubernetes import groups
from brim_lab.kubernetes.api import PATCH, Api, kubeconfig
from brim_lab.kubernetes.binaries import binary
from brim_lab.kubernetes.control_plane import (
    CONTROLLERS,
    SCHEDULER,
    ControlPlane,
    Features,
    Site,
)
from brim_lab.kubernetes.images import write_images
from brim_lab.kubernetes.node import namespace_of
from brim_lab.kubernetes.program import LoggedProgram
from brim_lab.kubernetes.settings import (
    CONTROL,
    FIRST_SERVICE,
    PORT,
    SERVICES,
    ClusterSettings,
    address_of_node,
    node_name,
    pods_of_node,
)
from brim_lab.kubernetes.spaces import NEW_NAMESPACES, ip, run, settle

DEEDS = ("kill", "boot", "partition", "heal")

_TEMPORARY = "/run/tmp"
_BRIDGE = "nodes"
_PROXY_USER = "system:kube-proxy"
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port
_POLL_INTERVAL = 0.3  # seconds between looks at a node that boots
_BOOTS_WITHIN = 120.0
_COREFILE = """
cluster.local:53 in-addr.arpa:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig} brim
    endpoint_pod_names
    pods insecure
    ttl 2
  }}
}}
"""


class _BoxNode:
    """A node, as the cluster sees it: a cable and a process."""

    def __init__(self, settings: ClusterSettings, number: int, api: Api) -> None:
        self._settings, self._number, self._api = settings, number, api
        self._name, self._port = node_name(number), f"port-{number}"
        self._process: subprocess.Popen[bytes] | None = None
        self._tended: asyncio.Task[None] | None = None

    def boot(self) -> None:
        """Start it, for the first time or after `kill`."""
        if self._process is not None:
            raise EnvironmentFault(f"{self._name} is up")
        folder, space = self._settings.folder / self._name, namespace_of(self._number)
        for subfolder in ("lib/kubelet", "lib/containerd", "log/pods", "etc"):
            (folder / subfolder).mkdir(parents=True, exist_ok=True)
        ip("netns", "add", space)
        ip(*("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", space))
        ip("link", "set", self._port, "master", _BRIDGE, "up")
        address = address_of_node(self._number)
        ip("route", "replace", f"{pods_of_node(self._number)}.0/24", "via", address)
        me = (sys.executable, "-m", "brim_lab.kubernetes.node")
        with (folder / "log" / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*me, str(self._settings.folder), str(self._number)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Cut the power, without warning."""
        if self._process is None:
            raise EnvironmentFault(f"{self._name} is not up")
        self.partition()  # or its kernel would tell its peers that their connections are gone
        self._process.kill()
        self._process.wait()
        groups.end(self._name)
        self._process = None
        ip("link", "del", self._port)
        ip("netns", "del", namespace_of(self._number))

    def partition(self) -> None:
        """Lose all packets from and to it; neither end is told."""
        self._join(_DISABLED)

    def heal(self) -> None:
        """Lose no packets any more."""
        self._join(_FORWARDING)

    def _join(self, state: str) -> None:
        if self._process is None:
            raise EnvironmentFault(f"{self._name} is not up")
        # `ip link` takes such a state as well, and does nothing.
        run("bridge", "link", "set", "dev", self._port, "state", state)

    def tend(self) -> None:
        """Have the settings that a kubelet forgets at its start be set when it is up."""
        self._tended = asyncio.create_task(self._give_resources(wall()))

    async def _give_resources(self, since_time: float) -> None:
        while wall() < since_time + _BOOTS_WITHIN:
            with contextlib.suppress(EnvironmentFault):  # it is not there yet
                if await asyncio.to_thread(self._has_resources, since_time):
                    return
            await asyncio.sleep(_POLL_INTERVAL)

    def _has_resources(self, since_time: float) -> bool:
        path = f"/api/v1/nodes/{self._name}"
        status = self._api.ask(path)["status"]
        resources = self._settings.resources
        if resources.items() <= status.get("capacity", {}).items():
            return is_ready(status, since_time)
        body = {"status": {"capacity": resources, "allocatable": resources}}
        self._api.ask(f"{path}/status", method="PATCH", kind=PATCH, body=body)
        return False


def is_ready(status: object, since_time: float = 0.0) -> bool:
    """Return whether a node's status says that it is ready, and was said after a time."""
    assert isinstance(status, dict)
    for condition in status.get("conditions", ()):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return bool(condition["lastHeartbeatTime"] >= _time(since_time))
    return False


def _time(timestamp: float) -> str:
    return datetime.fromtimestamp(int(timestamp), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Box:
    """A cluster, as its first process sees it."""

    def __init__(self, folder: Path, door: socket.socket) -> None:
        self._settings = ClusterSettings.read(folder)
        self._folder, self._door = folder, door
        numbers = range(1, self._settings.nodes + 1)
        users = [f"system:node:{node_name(number)}" for number in numbers]
        self._tokens = {user: (secrets.token_hex(16), "system:nodes") for user in users}
        self._tokens[_PROXY_USER] = (secrets.token_hex(16), "system:kube-proxies")
        self._plane = self._control_plane()
        self._nodes = {
            number: _BoxNode(self._settings, number, self._plane.api) for number in numbers
        }

    def run(self) -> None:
        """Be the cluster, until this process is killed."""
        for number, node in self._nodes.items():
            self._give_credentials(number)
            node.boot()
        with self._plane.running():
            self._start_dns()
            asyncio.run(self._serve())

    def _control_plane(self) -> ControlPlane:
        site = Site(
            address=CONTROL,
            port=PORT,
            url=f"https://{CONTROL}:{PORT}",
            names=(FIRST_SERVICE, *_SERVICE_NAMES),
            services=SERVICES,
            advertised=CONTROL,
        )
        return ControlPlane(
            self._folder / "control-plane",
            site,
            features=Features(gates=self._settings.gates, apis=self._settings.apis),
            programs=(CONTROLLERS, SCHEDULER),
            tokens=self._tokens,
        )

    def _give_credentials(self, number: int) -> None:
        etc = self._folder / node_name(number) / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        users = {"kubelet": f"system:node:{node_name(number)}", "kube-proxy": _PROXY_USER}
        for program, user in users.items():
            token, _ = self._tokens[user]
            self._write_kubeconfig(etc / f"{program}.kubeconfig", self._plane.url, token)

    def _write_kubeconfig(self, path: Path, url: str, token: str) -> None:
        content = kubeconfig(url, self._plane.api.authority, token)
        write_whole(path, content, mode=0o600)

    def _start_dns(self) -> None:
        corefile = self._folder / "control-plane" / "Corefile"
        corefile.write_text(_COREFILE.format(address=CONTROL, kubeconfig=self._plane.kubeconfig))
        log = self._folder / "control-plane" / "log" / "coredns.log"
        self._dns = LoggedProgram("coredns", [str(binary("coredns")), f"-conf={corefile}"], log)
        self._dns.start()

    async def _serve(self) -> None:
        for node in self._nodes.values():
            node.tend()
        host, port = self._door.getsockname()
        outer = await asyncio.start_server(_carry, sock=self._door)
        control = self._folder / "control"
        inner = await asyncio.start_unix_server(self._answer, control)
        token = self._plane.api.token
        self._write_kubeconfig(self._folder / "kubeconfig", f"https://{host}:{port}", token)
        async with outer, inner:
            await asyncio.gather(outer.serve_forever(), inner.serve_forever())

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            self._perform(request["deed"], request["node"])
            problem = ""
        except (EnvironmentFault, subprocess.CalledProcessError) as error:
            problem = str(error)
        writer.write(json.dumps({"error": problem}).encode() + b"\n")
        writer.close()

    def _perform(self, deed: str, number: int) -> None:
        if number not in self._nodes:
            raise EnvironmentFault(f"there is no {node_name(number)}")
        node = self._nodes[number]
        deeds = (node.kill, node.boot, node.partition, node.heal)
        dict(zip(DEEDS, deeds, strict=True))[deed]()
        if deed == "boot":
            node.tend()


_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry a connection from the machine to the API server, in both directions."""
    try:
        server_reader, back = await asyncio.open_connection(CONTROL, PORT)
    except OSError:
        writer.close()
        return
    ways: tuple[Awaitable[None], ...] = (_copy(reader, back), _copy(server_reader, writer))
    await asyncio.gather(*ways)
    for end in (back, writer):
        end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


def _lay_network() -> None:
    # With an address of its own: it would take that of a node's cable, and with that node's end
    # all others would talk to nobody for a while.
    ip("link", "add", _BRIDGE, "address", "02:b0:00:00:00:01", "type", "bridge")
    ip("addr", "add", f"{CONTROL}/24", "dev", _BRIDGE)
    ip("link", "set", _BRIDGE, "up")
    # The API server calls webhooks by the addresses of services, which nodes translate.
    ip("route", "add", SERVICES, "via", address_of_node(1))


def main(folder: Path, door: int, *, inside: bool) -> None:
    """Be the parent of a cluster's first process, or that process."""
    if not inside:
        groups.enter(ClusterSettings.read(folder).group)
        command = (
            sys.executable,
            "-m",
            "brim_lab.kubernetes.box",
            str(folder),
            str(door),
            "inside",
        )
        os.execvp("unshare", [*NEW_NAMESPACES, "--net", *command])
    settle("control-plane")
    Path(_TEMPORARY).mkdir(mode=0o700)
    os.environ["TMPDIR"] = _TEMPORARY
    _lay_network()
    images = folder / "images"
    images.mkdir(exist_ok=True)
    write_images(images, binary("pause"))
    with socket.socket(fileno=door) as listening:
        _Box(folder, listening).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), inside=sys.argv[3:] == ["inside"])
