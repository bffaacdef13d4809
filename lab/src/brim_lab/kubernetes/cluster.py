"""A cluster with real nodes on this machine: bring it up, do things to its nodes, take it down."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.storage.files import is_locked, lock, write_whole
from brim_lab.kubernetes import binaries, groups
from brim_lab.kubernetes.api import Api
from brim_lab.kubernetes.box import DEEDS, is_ready
from brim_lab.kubernetes.control_plane import LOOPBACK, kubectl
from brim_lab.kubernetes.images import shared_paths, write_image
from brim_lab.kubernetes.node import import_image, is_containerd, plugins_folder
from brim_lab.kubernetes.program import READY_WITHIN
from brim_lab.kubernetes.settings import ClusterSettings, folder_of, group_of, node_name
from brim_lab.kubernetes.spaces import HIDDEN, is_hidden

DEFAULT = "test"  # the name of a cluster that nobody has named

_NAME = re.compile("[a-z][a-z0-9-]{0,19}")
_LONGEST_SOCKET = 100  # bytes of a path; the kernel takes 107
_DEED_WITHIN = 60.0
_POLL_INTERVAL = 0.1
_LAST_LINES = 12
# LoggedProgram -> Debian's package that has it.
_TOOLS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "bridge": "iproute2",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
_PLUGINS = "containernetworking-plugins"


class NodeCluster:
    """A cluster that is up.

    Attributes:
        name: of the cluster.
        kubeconfig: the file with which clients find it and are its administrators.
        nodes: the names of its nodes.
    """

    def __init__(self, name: str = DEFAULT) -> None:
        self.name, self._folder = name, folder_of(name)
        self._settings = ClusterSettings.read(self._folder)
        self.kubeconfig = self._folder / "kubeconfig"
        self.nodes = [node_name(number) for number in range(1, self._settings.nodes + 1)]

    @property
    def api(self) -> Api:
        """The API server, as the administrator sees it."""
        content = json.loads(self.kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        return Api(cluster["server"], Path(cluster["certificate-authority"]), user["token"])

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; return its output.

        Raises:
            EnvironmentFault: it failed; the message is what it says.
        """
        return kubectl(self.kubeconfig, *words, stdin=stdin)

    def add_image(self, name: str, files: Mapping[str, bytes]) -> None:
        """Have an image on all nodes that are up, and on others once they boot: see `write_image`.

        Raises:
            EnvironmentFault: a node does not take it.
        """
        path = self._folder / "images" / f"{re.sub('[^a-z0-9.-]', '-', name)}.tar"
        write_image(path, name, files)
        for containerd in filter(is_containerd, groups.members(group_of(self.name))):
            import_image(path, pid=containerd)

    def kill(self, node: str) -> None:
        """Cut a node's power: all its processes are gone at once, without warning."""
        self.perform("kill", node)

    def boot(self, node: str) -> None:
        """Start a node that was killed."""
        self.perform("boot", node)

    def partition(self, node: str) -> None:
        """Lose all packets from and to a node; its processes go on."""
        self.perform("partition", node)

    def heal(self, node: str) -> None:
        """Lose no packets of a node any more."""
        self.perform("heal", node)

    def perform(self, deed: str, node: str) -> None:
        """Do one of `DEEDS` to a node.

        Raises:
            SpecError: there is no such node.
            EnvironmentFault: the node cannot have that done now, or the cluster is not up.
        """
        assert deed in DEEDS
        if node not in self.nodes:
            raise SpecError("NODE", got=repr(node), need=f"one of {', '.join(self.nodes)}")
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(_DEED_WITHIN)
                control.connect(str(self._folder / "control"))
                request = {"deed": deed, "node": self.nodes.index(node) + 1}
                control.sendall(json.dumps(request).encode() + b"\n")
                with control.makefile() as answer:
                    reply = json.loads(answer.readline() or '{"error": "no answer"}')
        except OSError as error:
            raise EnvironmentFault(f"the cluster {self.name} does not answer: {error}") from error
        if reply["error"]:
            raise EnvironmentFault(f"{deed} {node}: {reply['error']}")

    def ready(self) -> bool:
        """Return whether each node can run pods, and has its requested resources."""
        try:
            nodes = self.api.ask("/api/v1/nodes")["items"]
            self.api.ask("/api/v1/namespaces/default/serviceaccounts/default")
        except (EnvironmentFault, FileNotFoundError):
            return False
        return len(nodes) == len(self.nodes) and all(map(self._serves, nodes))

    def _serves(self, node: Any) -> bool:
        allocatable = node["status"].get("allocatable", {})
        return is_ready(node["status"]) and self._settings.resources.items() <= allocatable.items()


def is_up(name: str = DEFAULT) -> bool:
    """Return whether a cluster is up, or about to be."""
    return is_locked(folder_of(name) / "lock")


def up(settings: ClusterSettings, tell: Callable[[str], object] = print) -> NodeCluster:
    """Bring a cluster up; build missing programs first.

    Args:
        tell: progress.

    Raises:
        SpecError: its name, or a folder that it shares, cannot be.
        EnvironmentFault: this machine lacks something, or the cluster does not come up; nothing is
            left of it then but its logs.
    """
    _check(settings)
    binaries.build(tell=tell)
    started = monotonic()
    if is_up(settings.name):
        raise EnvironmentFault(
            f"the cluster {settings.name} is up\n"
            f"  hint: export KUBECONFIG={settings.folder / 'kubeconfig'}; or make cluster-down"
        )
    down(settings.name)
    settings.folder.mkdir(parents=True, mode=0o700)
    write_whole(settings.folder / "settings.json", msgspec.json.encode(settings))
    try:
        _start(settings)
        cluster = NodeCluster(settings.name)
        tell(f"{monotonic() - started:5.1f} s  starting {', '.join(cluster.nodes)}")
        _wait_ready(cluster)
    except BaseException:
        _end(settings.name)
        raise
    tell(f"{monotonic() - started:5.1f} s  ready")
    return cluster


def down(name: str = DEFAULT) -> bool:
    """Take a cluster down, with all that it has left; return whether there was anything.

    Raises:
        SpecError: no cluster can have that name.
        EnvironmentFault: something of it cannot be removed.
    """
    _check_name(name)
    folder = folder_of(name)
    if not folder.exists() and not groups.members(group_of(name)):
        return False
    _end(name)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise EnvironmentFault(f"cannot remove {folder}: {error}") from error
    return True


def _end(name: str) -> None:
    groups.end(group_of(name))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        need = "at most 20 small letters, digits and hyphens"
        raise SpecError("--name", got=repr(name), need=need)


def _check(settings: ClusterSettings) -> None:
    _check_name(settings.name)
    for share in settings.shares:
        if not Path(share).exists() or is_hidden(Path(share)):
            need = f"a folder that exists and is not in {', '.join(HIDDEN)}"
            raise SpecError("--share", got=repr(share), need=need)
    if is_hidden(settings.folder):
        raise SpecError(
            binaries.VARIABLE,
            got=str(binaries.home()),
            need=f"a folder outside of {', '.join(HIDDEN)}",
            hint=f"export {binaries.VARIABLE}=/var/tmp/kubernetes",
        )
    if len(str(settings.folder / "control")) > _LONGEST_SOCKET:
        need = f"a path of fewer than {_LONGEST_SOCKET} bytes below it"
        raise SpecError(binaries.VARIABLE, got=str(settings.folder), need=need)
    check_machine()
    shared_paths()


def check_machine() -> None:
    """Raise EnvironmentFault where no nodes can be made on this machine."""
    alternative = "or set BRIM_TEST_KUBECONFIG to a cluster of your own, made with kind or k3s"
    if os.geteuid() != 0:
        raise EnvironmentFault(f"nodes need root\n  hint: sudo make cluster, {alternative}")
    groups.need_version_1()
    absent = [name for name in _TOOLS if shutil.which(name) is None]
    packages = {_TOOLS[name] for name in absent}
    try:
        plugins_folder()
    except EnvironmentFault:
        packages.add(_PLUGINS)
        absent.append("the network plugins of containers")
    if absent:
        install = f"apt-get install --no-install-recommends {' '.join(sorted(packages))}"
        raise EnvironmentFault(
            f"this machine lacks {', '.join(absent)}\n  hint: {install}, {alternative}"
        )


def _start(settings: ClusterSettings) -> None:
    """Start the cluster's first process, which holds the lock for as long as it lives."""
    lock_file = lock(settings.folder / "lock")
    if lock_file is None:
        raise EnvironmentFault(f"another process is bringing up the cluster {settings.name}")
    me = (sys.executable, "-m", "brim_lab.kubernetes.box")
    with socket.create_server((LOOPBACK, 0)) as door, _log(settings).open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", *me, str(settings.folder), str(door.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(door.fileno(), lock_file),
            check=True,
        )
    os.close(lock_file)


def _log(settings: ClusterSettings) -> Path:
    return settings.folder / "cluster.log"


def _wait_ready(cluster: NodeCluster) -> None:
    deadline = monotonic() + READY_WITHIN
    while not cluster.ready():
        if monotonic() > deadline or not is_up(cluster.name):
            raise EnvironmentFault(
                f"the cluster {cluster.name} did not come up: {_last_words(folder_of(cluster.name))}"
            )
        sleep(_POLL_INTERVAL)


def _last_words(folder: Path) -> str:
    found = []
    for log in (folder / "cluster.log", *folder.glob("node-*/log/node.log")):
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        if lines:
            found += [f"\n{log}:", *lines[-_LAST_LINES:]]
    return "\n".join(found) or f"see the logs in {folder}"
