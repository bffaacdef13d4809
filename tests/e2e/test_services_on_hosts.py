"""Replicas of a service on hosts that have joined, and what becomes of requests as these go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import requesting
from e2e.joined import ON_HOSTS, Cluster, cluster_in
from e2e.running import FILES
from e2e.test_services import SERVICE
from tiers import LONG, NEEDS_HAPROXY

pytestmark = [*ON_HOSTS, LONG, NEEDS_HAPROXY]

PORT = 8000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as cluster:
        yield cluster


def requests_to(cluster: Cluster) -> subprocess.Popen[str]:
    """Send ten requests a second to the front, until standard input ends."""
    words = [sys.executable, requesting.__file__, cluster.home.address, str(PORT), "10"]
    return subprocess.Popen(
        [*cluster.home.prefix, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_replicas_move_with_their_hosts(cluster: Cluster) -> None:
    """A drained node, and one that gives way, lose no request; one that dies, those that it had."""
    file = cluster.home.folder / "service.yaml"
    text = SERVICE.replace("SERVER", str(FILES / "answering.py")).replace("PORT", str(PORT))
    file.write_text(text.replace("1:3", "2"))
    web = cluster.brim("submit", "--service", str(file), "--tenant", "ads").strip()

    def replicas() -> dict[str, str]:
        """Those that are ready, by the address of their host."""
        service = json.loads(cluster.brim("status", web, "--json"))["service"]
        ready = [each for each in service["replicas"] if each["state"] == "ready"]
        return {each["replica"]: each["address"].rpartition(":")[0] for each in ready}

    def are_off(node: str) -> bool:
        address = cluster.named(node).address
        return len(replicas()) == 2 and address not in replicas().values()

    def node_of(address: str) -> str:
        return next(f"host-{host.number}" for host in cluster.hosts if host.address == address)

    cluster.until(lambda: len(replicas()) == 2, "two replicas")
    sending = requests_to(cluster)
    first = node_of(next(iter(replicas().values())))
    cluster.brim("drain", first)
    cluster.until(lambda: are_off(first), "replicas elsewhere")
    cluster.brim("drain", first, "--undo")
    second = node_of(next(iter(replicas().values())))
    cluster.give_way(second)
    cluster.until(lambda: are_off(second), "replicas elsewhere")
    output, _ = sending.communicate("", timeout=100)
    found = json.loads(output)
    assert found["lost"] == []
    assert len(found["answers"]) >= 6, "of two replicas, and twice of two others"

    third = node_of(next(iter(replicas().values())))
    cluster.join(cluster.named(second))
    cluster.until(lambda: cluster.told().get(second, {}).get("state") == "up", "that it is back")
    cluster.named(third).kill()
    cluster.until(lambda: are_off(third), "replicas elsewhere")
    with requests_to(cluster) as again:
        output, _ = again.communicate("", timeout=100)
    assert json.loads(output)["lost"] == []
    cluster.named(third).start()
    cluster.nodes.pop(third).communicate()
    cluster.join(cluster.named(third))
    cluster.until(lambda: cluster.told()[third]["state"] == "up", "that it is back")
    cluster.brim("cancel", web)
