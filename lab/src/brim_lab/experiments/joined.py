"""The cluster of an experiment on hosts that have nothing in common but a network.

The scheduler is on one, its slots are on three others, made of namespaces (`chaos/hosts.py`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.client import Client
from brim.domain.cluster import Cluster, Node
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic
from brim.storage.contact import read_scheduler_contact
from brim_lab.chaos.hosts import Host, hosts_in
from brim_lab.driver import Driver
from brim_lab.experiments.cluster import DemoCluster, Tell
from brim_lab.experiments.scale import Scale

_HOME, _HOSTS = "home", 3
_PORT = 4001  # of the scheduler, for nodes
_POLL_INTERVAL = 0.1
_TO_JOIN = 120.0  # seconds until all nodes are up
_TO_LEAVE = 60.0  # seconds until all have given way
# What a host may keep of a node: whose it is, its log, and the code of jobs, for a week.
_EXPECTED_FILES = ("state/node/", "home/.cache/brim/code/")
_OF_A_NODE = {".lock", "node.json", "node.log"}


@contextlib.contextmanager
def joined_cluster(scale: Scale, folder: Path, tell: Tell) -> Iterator[DemoCluster]:
    """Start a scheduler on a host of its own, and a node on each of three others.

    The scheduler's host keeps all records, below `folder`. Everything ends with the context, however
    that ends.

    Raises:
        OSError: this process may make no hosts, see `can_make_hosts`.
        EnvironmentFault: a node does not join; or at the end, something is left on a host.
    """
    driver = Driver()
    with contextlib.ExitStack() as undo:
        home, *other_hosts = undo.enter_context(hosts_in(folder.resolve(), 1 + _HOSTS))
        undo.callback(driver.end)
        with _scheduler(home, driver) as state, home.network():
            nodes = [
                _join(host, driver, home, state, devices=devices)
                for host, devices in zip(other_hosts, shared(scale.slots), strict=True)
            ]
            contact = read_scheduler_contact(state)
            assert contact is not None, "brim up waits for it"
            address = f"http://{contact.host}:{contact.port}"  # of the loopback device in there
            client = Client(address=address, token=contact.token)
            _await_nodes(client, len(nodes))
            tell(f"{scale.slots} slots on {len(nodes)} hosts; the scheduler's state is in {state}")
            described = Cluster(nodes=(Node(id=_HOME, devices=0),))
            cluster = DemoCluster(scale, client, tell, described)
            cluster.warm_up(scale.slots)
            yield cluster
            _see_off(nodes)
        _check_clean(home, other_hosts)


def shared(slots: int) -> list[int]:
    """Return the slots of each of three hosts.

    >>> shared(8)
    [3, 3, 2]
    """
    return [(slots + _HOSTS - 1 - k) // _HOSTS for k in range(_HOSTS)]


def _begin(host: Host, driver: Driver, *words: str, **variables: str) -> subprocess.Popen[str]:
    own_variables = {"HOME": str(host.folder / "home"), "BRIM_HOME": str(host.folder / "state")}
    return driver.with_prefix(host.prefix).start(*words, variables={**own_variables, **variables})


def _call(host: Host, driver: Driver, *words: str) -> None:
    process = _begin(host, driver, *words)
    _, err = process.communicate(timeout=_TO_LEAVE)
    if process.returncode:
        raise EnvironmentFault(f"brim {words[0]} failed on host {host.number}: {err.strip()}")


@contextlib.contextmanager
def _scheduler(home: Host, driver: Driver) -> Iterator[Path]:
    """Start a scheduler, which ends with the context; its state directory."""
    described = home.folder / "cluster.yaml"
    described.write_text(json.dumps({"nodes": [{"name": _HOME, "workers": 0}]}) + "\n")
    nodes = f"{home.address}:{_PORT}"
    _call(home, driver, "up", "--cluster", str(described), "--nodes", nodes)
    try:
        yield home.folder / "state"
    finally:
        _call(home, driver, "down", "--kill")


def _join(
    host: Host, driver: Driver, home: Host, state: Path, *, devices: int
) -> subprocess.Popen[str]:
    token = (state / "nodes.token").read_text().strip()
    words = ("node", "--join", f"{home.address}:{_PORT}", "--devices", str(devices))
    return _begin(host, driver, *words, BRIM_TOKEN=token)


def _await_nodes(client: Client, count: int) -> None:
    end = monotonic() + _TO_JOIN
    while sum(view.state == "up" for view in client.nodes()) < count + 1:
        if monotonic() > end:
            raise EnvironmentFault(f"not all of {count} nodes are up: {client.nodes()}")
        time.sleep(_POLL_INTERVAL)


def _see_off(nodes: Sequence[subprocess.Popen[str]]) -> None:
    """Have nodes give way. Raises EnvironmentFault where one does not end well."""
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    for node in nodes:
        _, err = node.communicate(timeout=_TO_LEAVE)
        if node.returncode:
            raise EnvironmentFault(f"a node ended with {node.returncode}: {err.strip()}")


def _check_clean(home: Host, other_hosts: Sequence[Host]) -> None:
    """Raises EnvironmentFault where unexpected files are left."""
    for host in (home, *other_hosts):
        files = set() if host is home else {name for name in host.files() if not _is_kept(name)}
        if leftovers := [*host.processes().values(), *sorted(files)]:
            raise EnvironmentFault(f"left on host {host.number}: {', '.join(leftovers)}")


def _is_kept(name: str) -> bool:
    node, code = _EXPECTED_FILES
    return name.startswith(code) or (name.startswith(node) and Path(name).name in _OF_A_NODE)
