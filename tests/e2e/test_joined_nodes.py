"""A scheduler on one host and nodes that have joined from others, which share no disk with it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.joined import ON_HOSTS, PORT, PORTS, Cluster, cluster_in, weights_alone

pytestmark = ON_HOSTS


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights_alone(tmp_path_factory.mktemp("calm"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as cluster:
        yield cluster


@pytest.mark.long
def test_a_job_outlives_a_killed_host_and_one_that_gives_way(cluster: Cluster, calm: str) -> None:
    job = cluster.submit("--workers", "4")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    first, second = sorted(cluster.on(job))
    by_name = {f"host-{host.number}": host for host in cluster.hosts}
    assert cluster.on(job) == {first: 2, second: 2}
    assert not cluster.workers_of(cluster.home)
    forks = cluster.workers_of(by_name[first]) + cluster.workers_of(by_name[second])
    assert {"brim.node" in psutil.Process(pid).cmdline() for pid in forks} == {True}

    by_name[first].kill()
    cluster.until(lambda: cluster.told()[first]["state"] == "lost", "that it is lost")
    cluster.until(lambda: len(cluster.on(job)) == 2 and first not in cluster.on(job), "its place")
    by_name[first].start()
    cluster.nodes.pop(first).communicate()
    cluster.join(by_name[first])
    cluster.until(lambda: cluster.told()[first]["state"] == "up", "that it is back")

    leaver = cluster.nodes.pop(second)
    redone = len(cluster.events(job, "restored"))
    leaver.terminate()
    cluster.until(lambda: leaver.poll() is not None, "that it has given way")
    assert leaver.returncode == 0, leaver.communicate()
    assert second not in cluster.told()
    assert not cluster.workers_of(by_name[second])
    cluster.until(
        lambda: sum(cluster.on(job).values()) == 4 and second not in cluster.on(job), "others"
    )
    assert len(cluster.events(job, "restored")) == redone
    assert cluster.finish(job)["weights_sha256"] == calm
    leaver.communicate()


@pytest.mark.long
def test_a_scheduler_may_die_and_a_node_fall_silent(cluster: Cluster, calm: str) -> None:
    job = cluster.submit("--workers", "2")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    (name,) = cluster.on(job)
    host = next(each for each in cluster.hosts if f"host-{each.number}" == name)
    cluster.kill_scheduler()
    before = set(cluster.workers_of(host))
    cluster.until_steps(job)
    cluster.up()
    cluster.until(lambda: cluster.told()[name]["state"] == "up", "that it is known again")
    assert set(cluster.workers_of(host)) == before, "nobody noticed"

    host.cable.cut()
    cluster.until(lambda: cluster.told()[name]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(host), "it ended its workers before it was given up"
    cluster.until(lambda: name not in cluster.on(job), "a place elsewhere")
    host.cable.mend()
    cluster.until(lambda: cluster.told()[name]["state"] == "up", "that it is back")
    cluster.until_steps(job)
    assert cluster.finish(job)["weights_sha256"] == calm


def test_devices_are_lent_and_reclaimed_and_a_node_is_drained(cluster: Cluster, calm: str) -> None:
    borrower = cluster.submit("--workers", "4", tenant="web")  # of which 2 are lent
    cluster.until(lambda: sum(cluster.on(borrower).values()) == 4, "what it borrows")
    cluster.brim("resize", borrower, "2:4")
    owner = cluster.submit("--workers", "4", tenant="ads")
    cluster.until(lambda: sum(cluster.on(owner).values()) == 4, "what is its own")
    assert sum(cluster.on(borrower).values()) == 2
    drained = max(cluster.on(owner))
    cluster.brim("drain", drained)
    cluster.until(lambda: not cluster.told()[drained]["held"], "that nothing is there")
    host = next(each for each in cluster.hosts if f"host-{each.number}" == drained)
    cluster.until(lambda: not cluster.workers_of(host), "the end of its workers")
    cluster.brim("drain", drained, "--undo")
    cluster.until(lambda: cluster.told()[drained]["held"] > 0, "that it is used again")
    for job in (owner, borrower):
        assert cluster.finish(job)["weights_sha256"] == calm


@pytest.mark.long
def test_what_a_stopped_node_runs_ends_and_no_device_is_given_twice(
    cluster: Cluster, calm: str
) -> None:
    """SIGSTOP, to `brim node` alone and then to all processes of a host, whose kernel still answers.

    The teardown counts workers by host, also stopped ones.
    """
    job = cluster.submit("--workers", "2")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    by_name = {f"host-{host.number}": host for host in cluster.hosts}
    (first,) = cluster.on(job)
    stopped = cluster.processes_of(by_name[first], "brim-joined")
    assert len(stopped) == 1
    cluster.signal(stopped, signal.SIGSTOP)
    cluster.until(lambda: cluster.told()[first]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(by_name[first]), "they ended before it was given up"
    cluster.until(lambda: list(cluster.on(job)) not in ([], [first]), "a place elsewhere")
    cluster.until_steps(job)
    cluster.signal(stopped, signal.SIGCONT)
    cluster.until(lambda: cluster.told()[first]["state"] == "up", "that it is back")

    cluster.brim("resize", job, "4")
    cluster.until(lambda: len(cluster.on(job)) == 2, "two nodes")
    cluster.until_steps(job)
    second = min(cluster.on(job))
    frozen = cluster.processes_of(by_name[second])
    cluster.signal(frozen, signal.SIGSTOP)
    at = time.monotonic()
    cluster.until(lambda: second not in cluster.on(job), "a round without it")
    assert time.monotonic() - at < 12.0, "a master alone waits for 15 s"
    cluster.until_steps(job)
    assert cluster.workers_of(by_name[second]), "they cannot end, and do nothing"
    cluster.signal(frozen, signal.SIGCONT)
    cluster.until(lambda: cluster.told()[second]["state"] == "up", "that it is back")
    cluster.until_steps(job)
    assert cluster.finish(job)["weights_sha256"] == calm


@pytest.mark.long
def test_an_exact_job_is_on_nodes_of_one_kind(cluster: Cluster) -> None:
    """A variable on which results depend stands for another processor."""
    odd = cluster.hosts[3]
    name = f"host-{odd.number}"
    cluster.give_way(name)
    cluster.until(lambda: name not in cluster.told(), "that it has left")
    cluster.join(odd, MKL_CBWR="COMPATIBLE")
    cluster.until(lambda: cluster.told().get(name, {}).get("state") == "up", "that it is back")
    assert f"MKL_CBWR COMPATIBLE on {name} and none on host-2" in cluster.told()[name]["problem"]

    waiting = cluster.submit("--workers", "6")
    cluster.until(lambda: "are not alike" in cluster.brim("explain", waiting), "why it waits")
    assert not cluster.on(waiting)
    cluster.brim("cancel", waiting)
    job = cluster.submit("--workers", "2:6")
    cluster.until(lambda: sum(cluster.on(job).values()) == 4, "all that are alike")
    assert name not in cluster.on(job)
    assert cluster.ports_of(cluster.home) - set(PORTS) == {PORT}
    for host in cluster.hosts[1:3]:
        assert len(ports := cluster.ports_of(host)) >= 2, "one for each worker"
        assert ports <= set(PORTS)
    for alike in ("host-2", "host-3"):
        cluster.brim("drain", alike)
    why = f"MKL_CBWR none on the nodes where it began and COMPATIBLE on {name}"
    cluster.until(lambda: why in cluster.brim("status", job), "why it waits for its kind")
    assert name not in cluster.on(job), "though it has two devices free"
    for alike in ("host-2", "host-3"):
        cluster.brim("drain", alike, "--undo")
    cluster.until(lambda: len(cluster.events(job, "run_started")) == 2, "that it goes on")
    cluster.until(lambda: sum(cluster.on(job).values()) == 4, "all that are alike")
    careless = cluster.submit("--workers", "1:2", "--no-exact", tenant="web")
    cluster.until(lambda: name in cluster.on(careless), "a job that may be on any")
    assert name not in cluster.on(job)
    for each in (job, careless):
        cluster.finish(each)
    assert f"{name} is not like host-2, so no exact job is on both" in cluster.give_way(name)
