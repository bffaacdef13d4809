"""One node: containerd, kubelet and kube-proxy in namespaces of their own.

`python -m brim_lab.kubernetes.node FOLDER NUMBER` enters the node's control group and network and
becomes the parent of its first process, which is this module again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim_lab.kubernetes import groups
from brim_lab.kubernetes.api import Api
from brim_lab.kubernetes.binaries import binary
from brim_lab.kubernetes.control_plane import Features
from brim_lab.kubernetes.images import PAUSE, shared_paths
from brim_lab.kubernetes.program import READY_WITHIN, LoggedProgram, wait_until
from brim_lab.kubernetes.settings import (
    CONTROL,
    PODS,
    PORT,
    ClusterSettings,
    address_of_node,
    node_name,
    pods_of_node,
)
from brim_lab.kubernetes.spaces import NEW_NAMESPACES, ip, run, settle

_SOCKET = "/run/containerd/containerd.sock"
_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_AGAIN_AFTER = (
    1.0  # seconds until a program that has ended is started again, as by a service manager
)

_CONTAINERD = """
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
stream_server_address = "127.0.0.1"
restrict_oom_score_adj = true  # nobody may lower it without CAP_SYS_RESOURCE
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{etc}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{etc}/container.json"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def namespace_of(number: int) -> str:
    """The network namespace of a node."""
    return node_name(number)


def plugins_folder() -> Path:
    """The folder of the plugins that connect pods.

    Raises:
        EnvironmentFault: there are none.
    """
    for folder in _PLUGINS:
        if (folder / "bridge").exists():
            return folder
    raise EnvironmentFault(f"no network plugins in {' or '.join(map(str, _PLUGINS))}")


class _NodeInside:
    """A node, as its first process sees it."""

    def __init__(self, settings: ClusterSettings, number: int) -> None:
        self._settings, self._number = settings, number
        self._name = node_name(number)
        self._folder = settings.folder / self._name
        self._etc = self._folder / "etc"
        self._api = Api(f"https://{CONTROL}:{PORT}", self._authority, token="")

    @property
    def _authority(self) -> Path:
        return self._settings.folder / "control-plane" / "ca.crt"

    def run(self) -> None:
        """Be the node, until it is killed."""
        settle(self._name)
        if temporary := os.environ.get("TMPDIR"):  # where runc writes what it is to execute
            Path(temporary).mkdir(mode=0o700, exist_ok=True)
        for subfolder in ("lib", "log"):
            run("mount", "--bind", str(self._folder / subfolder), f"/var/{subfolder}")
        self._connect()
        self._configure()
        containerd = self._program(
            "containerd", "containerd", f"--config={self._etc}/containerd.toml"
        )
        containerd.start()
        self._import_images(containerd)
        deadline = monotonic() + READY_WITHIN
        while not self._api.is_ready():
            wait_until(deadline, "the API server could not be reached", containerd)
        programs = [self._kubelet(), self._proxy()]
        for program in programs:
            program.start()
        _tend([containerd, *programs])

    def _connect(self) -> None:
        ip("addr", "add", f"{address_of_node(self._number)}/24", "dev", "eth0")
        ip("link", "set", "eth0", "up")
        ip("route", "add", "default", "via", CONTROL)
        # With an address of its own: it would take that of a pod's cable, and with that pod's end
        # all others would talk to nobody for a while.
        hardware = f"02:b1:00:00:00:{self._number:02x}"
        ip("link", "add", "cni0", "address", hardware, "type", "bridge")
        ip("addr", "add", f"{pods_of_node(self._number)}.1/24", "dev", "cni0")
        ip("link", "set", "cni0", "up")

    def _configure(self) -> None:
        self._write("container.json", container([Path(share) for share in self._settings.shares]))
        self._write("cni/10-bridge.conflist", _network(pods_of_node(self._number)))
        text = _CONTAINERD.format(
            socket=_SOCKET,
            pause=PAUSE,
            plugins=plugins_folder(),
            etc=self._etc,
            runc=shutil.which("runc"),
        )
        (self._etc / "containerd.toml").write_text(text)
        gates = Features(gates=self._settings.gates).by_name()
        self._write(
            "kubelet.json", {**_KUBELET, **_of_kubelet(self._authority), "featureGates": gates}
        )
        self._write(
            "kube-proxy.json",
            {
                **_PROXY,
                "hostnameOverride": self._name,
                "clientConnection": {"kubeconfig": str(self._etc / "kube-proxy.kubeconfig")},
                "featureGates": gates,
            },
        )

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        path = self._etc / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1))

    def _program(self, name: str, *command: str) -> LoggedProgram:
        return LoggedProgram(name, command, self._folder / "log" / f"{name}.log")

    def _import_images(self, containerd: LoggedProgram) -> None:
        deadline = monotonic() + READY_WITHIN
        while not _ctr("version"):
            wait_until(deadline, "containerd was not ready", containerd)
        for image in sorted((self._settings.folder / "images").glob("*.tar")):
            import_image(image)

    def _kubelet(self) -> LoggedProgram:
        return self._program(
            "kubelet",
            str(binary("kubelet")),
            f"--config={self._etc}/kubelet.json",
            f"--kubeconfig={self._etc}/kubelet.kubeconfig",
            f"--hostname-override={self._name}",
            f"--node-ip={address_of_node(self._number)}",
        )

    def _proxy(self) -> LoggedProgram:
        config = f"--config={self._etc}/kube-proxy.json"
        return self._program("kube-proxy", str(binary("kube-proxy")), config)


def _tend(programs: list[LoggedProgram]) -> None:
    """Reap orphans, as a first process must, and start missing programs again."""
    while True:
        pid, status = os.waitpid(-1, 0)
        for program in programs:
            if pid == program.pid_at_start:
                code = os.waitstatus_to_exitcode(status)
                sys.stderr.write(f"{program.name} ended with {code}: it is started again\n")
                sleep(_AGAIN_AFTER)
                program.start()


def is_containerd(pid: int) -> bool:
    """Return whether a process is the containerd of a node."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "containerd\n"
    except OSError:  # it has ended
        return False


def import_image(path: Path, *, pid: int | str = "self") -> None:
    """Have a containerd take an image.

    Args:
        pid: its process, where it is that of another node than this one.

    Raises:
        EnvironmentFault: it does not.
    """
    if not _ctr("images", "import", str(path), pid=pid):
        raise EnvironmentFault(f"containerd does not take {path}")


def _ctr(*words: str, pid: int | str = "self") -> bool:
    command = ["ctr", "-a", f"/proc/{pid}/root{_SOCKET}", "-n", "k8s.io", *words]
    return subprocess.run(command, capture_output=True).returncode == 0


# Run for each container, with the kernel's view of this node still: shows again what a volume of the
# pod hides, as a /tmp of its own hides a checkout in /tmp. A volume may have an empty folder of that
# name already.
_SHOW = """
set -e
umask 022
root=$(sed -n 's/.*"bundle": *"\\([^"]*\\)".*/\\1/p')/rootfs
for path; do
    test "$root$path" -ef "$path" && continue
    if test -d "$path"; then mkdir -p "$root$path"; else touch "$root$path"; fi
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro,nosuid,nodev "$root$path"
done
"""


def container(shares: Sequence[Path]) -> dict[str, Any]:
    """The default spec of containers, and in it this machine's programs, read-only."""
    output = subprocess.run(["ctr", "oci", "spec"], capture_output=True, check=True).stdout
    spec: dict[str, Any] = json.loads(output)
    paths = [str(path) for path in shared_paths(*shares)]
    spec["mounts"] += [
        {
            "type": "bind",
            "source": path,
            "destination": path,
            "options": ["bind", "ro", "nosuid", "nodev"],
        }
        for path in paths
    ]
    show = {"path": "/bin/sh", "args": ["sh", "-c", _SHOW, "sh", *paths]}
    spec["hooks"] = {"createContainer": [show]}
    return spec


def _network(pods: str) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/pod-addresses",
        "ranges": [[{"subnet": f"{pods}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{**bridge, "ipMasq": False, "ipam": addresses}, ports],
    }


def _of_kubelet(authority: Path) -> dict[str, Any]:
    # Only the API server has a certificate of a client.
    return {
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
    }


_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "clusterDNS": [CONTROL],
    "clusterDomain": "cluster.local",
    "containerRuntimeEndpoint": f"unix://{_SOCKET}",
    "enforceNodeAllocatable": ["pods"],
    "evictionHard": {
        "imagefs.available": "1%",
        "memory.available": "200Mi",
        "nodefs.available": "1%",
        "nodefs.inodesFree": "1%",
    },
    "failCgroupV1": False,
    "failSwapOn": False,
    # No image can be had again: none may be deleted to make room.
    "imageGCHighThresholdPercent": 100,
    "imageGCLowThresholdPercent": 99,
    "maxOpenFiles": 4096,  # more takes CAP_SYS_RESOURCE, and so does a lower score
    "oomScoreAdj": 0,
    "nodeLeaseDurationSeconds": 8,
    "nodeStatusReportFrequency": "1m",
    "nodeStatusUpdateFrequency": "5s",
    "protectKernelDefaults": True,
    "readOnlyPort": 0,
    "resolvConf": "",
    "serializeImagePulls": False,
}
_PROXY = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    # The API server calls Services (webhooks) by way of one node: answers have to come back there.
    "iptables": {"masqueradeAll": True},
    "clusterCIDR": PODS,
    # 0 leaves the kernel's own, which belong to the whole machine.
    "conntrack": {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    },
}


def main(folder: Path, number: int, *, inside: bool) -> None:
    """Be the parent of a node's first process, or that process."""
    settings = ClusterSettings.read(folder)
    if inside:
        _NodeInside(settings, number).run()
    groups.enter(node_name(number))
    network = f"--net=/run/netns/{namespace_of(number)}"
    command = (sys.executable, "-m", "brim_lab.kubernetes.node", str(folder), str(number), "inside")
    os.execvp("nsenter", ["nsenter", network, *NEW_NAMESPACES, *command])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), inside=sys.argv[3:] == ["inside"])
