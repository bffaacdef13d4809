"""A scheduler on one host and nodes that have joined from others, which share no disk with it.

All tests share them. A fault of a node ends its workers before it is given up, or has them leave
at a boundary; nothing else is lost, and the weights stay the same.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from e2e.joined import ON_HOSTS, PORT, PORTS, Cluster, cluster_in, weights_alone
from e2e.people import BASH, Person

pytestmark = ON_HOSTS

_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def calm() -> str:
    return weights_alone()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    shared.tidy()
    yield shared
    shared.check_devices()


def test_a_job_outlives_drained_leaving_and_killed_nodes(cluster: Cluster, calm: str) -> None:
    job = cluster.submit("--workers", "4")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    nodes_before = cluster.on(job)
    first, drained = sorted(nodes_before)
    (free,) = {"host-2", "host-3", "host-4"} - nodes_before.keys()
    assert nodes_before == {first: 2, drained: 2}
    assert not cluster.workers_of(cluster.home)
    forks = [pid for name in nodes_before for pid in cluster.workers_of(cluster.named(name))]
    assert {"brim.node" in psutil.Process(pid).cmdline() for pid in forks} == {True}

    # The scheduler's host stands still for a moment: nobody notices.
    processes = cluster.processes_of(cluster.home)
    cluster.signal(processes, signal.SIGSTOP)
    time.sleep(5.0)
    cluster.signal(processes, signal.SIGCONT)
    cluster.until_steps(job)
    assert len(cluster.rounds(job)) == 1

    # Drained: its workers leave as others are asked for.
    rounds_before = len(cluster.rounds(job))
    cluster.brim("drain", drained)
    cluster.until(lambda: cluster.on(job) == {first: 2, free: 2}, "others in their place")
    cluster.until(lambda: not cluster.workers_of(cluster.named(drained)), "the end of its workers")
    cluster.until_steps(job)
    rounds = cluster.rounds(job)[rounds_before - 1 :]
    regrown_at = next(moment for moment, count, _ in reversed(rounds) if count == 4)
    # Where a step took long, others were ready at its end.
    shrunk_at = next((moment for moment, count, _ in rounds if count < 4), regrown_at)
    _log.info("seconds with fewer workers: %.2f", regrown_at - shrunk_at)
    assert not any("resize to 2" in cause for _, _, cause in rounds), "they were asked for later"
    cluster.brim("drain", drained, "--undo")

    # Ended by SIGTERM: it gives way.
    start_time = time.monotonic()
    cluster.give_way(free)
    assert time.monotonic() - start_time < 28.0, "it waited until it is ended, 30 s later"
    cluster.until(lambda: free not in cluster.told(), "that it has left")
    assert not cluster.workers_of(cluster.named(free))
    cluster.until(lambda: cluster.on(job) == nodes_before, "those in its place")
    assert not cluster.events(job, "restored")
    assert sum(event["redone"] for event in cluster.events(job, "re_formed")) == 0
    cluster.join(cluster.named(free))
    cluster.until(lambda: cluster.told().get(free, {}).get("state") == "up", "that it is back")

    # Killed with its host.
    cluster.named(first).kill()
    cluster.until(lambda: cluster.told()[first]["state"] == "lost", "that it is lost")
    cluster.until(lambda: cluster.on(job) == {drained: 2, free: 2}, "its place")
    cluster.named(first).start()
    cluster.nodes.pop(first).communicate()
    cluster.join(cluster.named(first))
    cluster.until(lambda: cluster.told()[first]["state"] == "up", "that it is back")
    assert cluster.finish(job)["weights_sha256"] == calm


def test_terminal_reaches_a_program_on_another_host(cluster: Cluster) -> None:
    driver = cluster.driver.with_prefix(cluster.home.prefix)
    person = Person(driver, "--tenant", "ads", *BASH, BRIM_HOME=str(cluster.state))
    person.at_bash()
    (node,) = cluster.on(person.job)
    address = person.runs("hostname -I", r"(10[.]77[.][\d.]+)")[1]
    assert address == cluster.named(node).address
    person.runs("seq 1 20000", r"\n20000\r\n")
    person.type("trap '' HUP; sleep 1000\r")
    cluster.until(lambda: bool(cluster.processes_of(cluster.named(node), "sleep")), "sleep")
    person.close()
    cluster.until(lambda: not cluster.processes_of(cluster.named(node), "sleep"), "its end")
    cluster.until(lambda: cluster.told()[node]["held"] == 0, "the device")


@pytest.mark.long
def test_the_last_worker_moves_or_is_suspended(cluster: Cluster, calm: str) -> None:
    """Its node is drained, with and without another for it, or gives way."""
    job = cluster.submit("--workers", "1")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    (first,) = cluster.on(job)
    cluster.brim("drain", first)
    cluster.until(lambda: first not in cluster.on(job), "that it trains elsewhere")
    cluster.until_steps(job)
    assert not cluster.events(job, "restored"), "it trained on until another was ready"

    (second,) = cluster.on(job)
    other_hosts = sorted({"host-2", "host-3", "host-4"} - {first, second})
    for node in (*other_hosts, second):
        cluster.brim("drain", node)
    cluster.until(lambda: cluster.told()[second]["held"] == 0, "that it has nowhere to be")
    cluster.until(lambda: not cluster.workers_of(cluster.named(second)), "the end of its worker")
    assert cluster.events(job, "checkpoint")[-1]["step"] == cluster.step(job)
    cluster.brim("drain", second, "--undo")
    cluster.until_steps(job)

    cluster.brim("drain", first, "--undo")
    cluster.give_way(second)
    cluster.until(lambda: list(cluster.on(job)) == [first], "that it trains elsewhere")
    cluster.until_steps(job)
    found = cluster.finish(job)
    assert found["weights_sha256"] == calm
    assert found["steps_redone"] == 0


def test_devices_are_lent_reclaimed_and_drained(cluster: Cluster, calm: str) -> None:
    borrower = cluster.submit("--workers", "4", tenant="web")  # of which 2 are lent
    cluster.until(lambda: sum(cluster.on(borrower).values()) == 4, "what it borrows")
    cluster.brim("resize", borrower, "2:4")
    owner = cluster.submit("--workers", "4", tenant="ads")
    cluster.until(lambda: sum(cluster.on(owner).values()) == 4, "what is its own")
    assert sum(cluster.on(borrower).values()) == 2
    drained = max(cluster.on(owner))
    cluster.brim("drain", drained)
    cluster.until(lambda: not cluster.told()[drained]["held"], "that nothing is there")
    cluster.until(lambda: not cluster.workers_of(cluster.named(drained)), "the end of its workers")
    cluster.brim("drain", drained, "--undo")
    cluster.until(lambda: cluster.told()[drained]["held"] > 0, "that it is used again")
    for job in (owner, borrower):
        assert cluster.finish(job)["weights_sha256"] == calm


@pytest.mark.long
def test_a_job_outlives_scheduler_death_and_silent_nodes(cluster: Cluster, calm: str) -> None:
    """SIGSTOP, to `brim node` alone and then to all processes of a host, whose kernel still answers.

    Workers are counted by host, also stopped ones.
    """
    job = cluster.submit("--workers", "2")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    (cut,) = cluster.on(job)
    host = cluster.named(cut)
    cluster.kill_scheduler()
    workers_before = set(cluster.workers_of(host))
    cluster.until_steps(job)
    cluster.up()
    cluster.until(lambda: cluster.told()[cut]["state"] == "up", "that it is known again")
    assert set(cluster.workers_of(host)) == workers_before, "nobody noticed"

    host.cable.cut()
    cluster.until(lambda: cluster.told()[cut]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(host), "it ended its workers before it was given up"
    cluster.until(lambda: list(cluster.on(job)) not in ([], [cut]), "a place elsewhere")
    host.cable.mend()
    cluster.until(lambda: cluster.told()[cut]["state"] == "up", "that it is back")
    cluster.until_steps(job)

    (stopped,) = cluster.on(job)
    host = cluster.named(stopped)
    (node,) = cluster.processes_of(host, "brim-joined")
    cluster.signal([node], signal.SIGSTOP)
    cluster.until(lambda: cluster.told()[stopped]["state"] == "lost", "that it is lost")
    assert not cluster.workers_of(host), "they ended before it was given up"
    cluster.until(lambda: list(cluster.on(job)) not in ([], [stopped]), "a place elsewhere")
    cluster.until_steps(job)
    cluster.signal([node], signal.SIGCONT)
    cluster.until(lambda: cluster.told()[stopped]["state"] == "up", "that it is back")

    cluster.brim("resize", job, "4")
    cluster.until(lambda: len(cluster.on(job)) == 2, "two nodes")
    cluster.until_steps(job)
    frozen = min(cluster.on(job))
    host = cluster.named(frozen)
    pids = cluster.processes_of(host)
    cluster.signal(pids, signal.SIGSTOP)
    stopped_at = time.monotonic()
    cluster.until(lambda: frozen not in cluster.on(job), "a round without it")
    assert time.monotonic() - stopped_at < 12.0, "a master alone waits for 15 s"
    cluster.until_steps(job)
    assert cluster.workers_of(host), "they cannot end, and do nothing"
    cluster.signal(pids, signal.SIGCONT)
    cluster.until(lambda: cluster.told()[frozen]["state"] == "up", "that it is back")
    cluster.until_steps(job)
    assert cluster.finish(job)["weights_sha256"] == calm


@pytest.mark.long
def test_exact_jobs_stay_on_one_node_kind(cluster: Cluster) -> None:
    """A variable on which results depend stands for another processor."""
    odd = cluster.hosts[3]
    name = f"host-{odd.number}"
    cluster.give_way(name)
    cluster.until(lambda: name not in cluster.told(), "that it has left")
    cluster.join(odd, MKL_CBWR="COMPATIBLE")
    cluster.until(lambda: cluster.told().get(name, {}).get("state") == "up", "that it is back")
    assert f"MKL_CBWR COMPATIBLE on {name} and none on host-2" in cluster.told()[name]["problem"]

    waiting = cluster.submit("--workers", "6", "--micro-batches", "8")
    cluster.until(lambda: "are not alike" in cluster.brim("explain", waiting), "why it waits")
    assert not cluster.on(waiting)
    cluster.brim("cancel", waiting)
    job = cluster.submit("--workers", "2:6", "--micro-batches", "8")
    cluster.until(lambda: sum(cluster.on(job).values()) == 4, "all that are alike")
    cluster.until_steps(job)  # before its first one it may begin again on another kind
    assert name not in cluster.on(job)
    assert cluster.ports_of(cluster.home) - set(PORTS) == {PORT}
    for host in cluster.hosts[1:3]:
        assert len(ports := cluster.ports_of(host)) >= 2, "one for each worker"
        assert ports <= set(PORTS)
    for alike in ("host-2", "host-3"):
        cluster.brim("drain", alike)
    reason = f"MKL_CBWR none on the nodes where it began and COMPATIBLE on {name}"
    cluster.until(lambda: reason in cluster.brim("status", job), "why it waits for its kind")
    assert name not in cluster.on(job), "though it has two devices free"
    for alike in ("host-2", "host-3"):
        cluster.brim("drain", alike, "--undo")
    cluster.until(lambda: len(cluster.events(job, "run_started")) == 2, "that it goes on")
    cluster.until(lambda: sum(cluster.on(job).values()) == 4, "all that are alike")
    careless = cluster.submit("--workers", "1:2", "--no-exact", tenant="web")
    cluster.until(lambda: name in cluster.on(careless), "a job that may be on any")
    assert name not in cluster.on(job)
    for finished_job in (job, careless):
        cluster.finish(finished_job)
    assert f"{name} is not like host-2, so no exact job is on both" in cluster.give_way(name)
