"""Namespaces of the cluster and of its nodes, as their first processes make them their own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from brim_lab.kubernetes.groups import hierarchies

# In front of a command: it becomes process 1 of namespaces of its own, which end with it, and it
# with this process.
NEW_NAMESPACES = (
    "unshare",
    *("--mount", "--propagation", "private", "--pid", "--ipc", "--uts", "--cgroup"),
    *("--fork", "--kill-child=KILL"),
)
HIDDEN = ("/run", "/var/lib", "/var/log", "/proc", "/sys")  # what a node has of its own
# A kubelet sets these, or ends where they differ. They belong to the whole machine: it finds files
# in their place that it may have as it likes.
_KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def run(*command: str) -> None:
    """Run a command that must not fail."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def settle(name: str) -> None:
    """Have files, processes, control groups and a host name of our own; in process 1 of `NEW_NAMESPACES`.

    Args:
        name: of the host.
    """
    mounted = hierarchies()
    run("mount", "--make-rprivate", "/")
    run("mount", "--make-rshared", "/")  # containers and volumes are mounted into each other
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for hierarchy in mounted:
        _mount_controller(hierarchy.name)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for key, value in _KERNEL.items():
        file = Path("/run/kernel") / key.replace("/", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
        run("mount", "--bind", str(file), f"/proc/sys/{key}")
    Path("/proc/sys/kernel/hostname").write_text(name)
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with contextlib.suppress(FileNotFoundError):  # the kernel has no filter in bridges
        # Without it a pod does not reach a service that is served by its own node.
        Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")


def _mount_controller(name: str) -> None:
    place = Path("/sys/fs/cgroup") / name
    place.mkdir()
    options = "none,name=systemd" if name == "systemd" else name
    run("mount", "-t", "cgroup", "-o", options, "cgroup", str(place))


def is_hidden(path: Path) -> bool:
    """Return whether a node cannot see this path of the machine."""
    return any(path.resolve().is_relative_to(folder) for folder in HIDDEN)


def ip(*words: str, check: bool = True, namespace: str = "") -> None:
    """Run `ip`, in the network namespace of a name if one is given."""
    options: Sequence[str] = ("-n", namespace) if namespace else ()
    subprocess.run(["ip", *options, *words], check=check, capture_output=not check)
