"""A node that is drained, or gives way: its workers leave at a boundary, and nothing is redone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.joined import ON_HOSTS, Cluster, cluster_in, weights_alone

pytestmark = ON_HOSTS


_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights_alone(tmp_path_factory.mktemp("calm"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as cluster:
        yield cluster


@pytest.mark.long
def test_the_workers_of_a_drained_node_leave_as_others_are_asked_for(
    cluster: Cluster, calm: str
) -> None:
    job = cluster.submit("--workers", "4")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    there = cluster.on(job)
    drained = max(there)
    (free,) = {"host-2", "host-3", "host-4"} - there.keys()
    before = len(cluster.rounds(job))
    cluster.brim("drain", drained)
    cluster.until(lambda: cluster.on(job) == {min(there): 2, free: 2}, "others in their place")
    cluster.until(lambda: not cluster.workers_of(cluster.named(drained)), "the end of its workers")
    cluster.until_steps(job)

    since = cluster.rounds(job)[before - 1 :]
    fewer = next(at for at, count, _ in since if count < 4)
    again = next(at for at, count, _ in reversed(since) if count == 4)
    _log.info("seconds with fewer workers: %.2f", again - fewer)
    assert not any("resize to 2" in cause for _, _, cause in since), "they were asked for later"

    cluster.brim("drain", drained, "--undo")
    leaver = cluster.nodes.pop(free)
    leaver.terminate()
    cluster.until(lambda: leaver.poll() is not None, "that it has given way")
    assert leaver.returncode == 0, leaver.communicate()
    leaver.communicate()
    cluster.until(lambda: cluster.on(job) == there, "those in its place")
    found = cluster.finish(job)
    assert found["weights_sha256"] == calm
    assert found["steps_redone"] == 0
    assert not cluster.events(job, "restored")


@pytest.mark.long
def test_the_last_worker_of_a_job_moves_or_is_suspended_where_its_node_is_drained(
    cluster: Cluster, calm: str
) -> None:
    job = cluster.submit("--workers", "1")
    cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
    (first,) = cluster.on(job)
    cluster.brim("drain", first)
    cluster.until(lambda: first not in cluster.on(job), "that it trains elsewhere")
    cluster.until_steps(job)
    assert not cluster.events(job, "restored"), "it trained on until another was ready"

    (second,) = cluster.on(job)
    others = sorted({"host-2", "host-3", "host-4"} - {first, second})
    for node in (*others, second):
        cluster.brim("drain", node)
    cluster.until(lambda: cluster.told()[second]["held"] == 0, "that it has nowhere to be")
    cluster.until(lambda: not cluster.workers_of(cluster.named(second)), "the end of its worker")
    assert cluster.events(job, "checkpoint")[-1]["step"] == cluster.step(job)
    cluster.brim("drain", second, "--undo")
    cluster.until_steps(job)

    leaver = cluster.nodes.pop(second)
    cluster.brim("drain", first, "--undo")
    leaver.terminate()
    cluster.until(lambda: leaver.poll() is not None, "that it has given way")
    assert leaver.returncode == 0, leaver.communicate()
    leaver.communicate()
    cluster.until(lambda: list(cluster.on(job)) == [first], "that it trains elsewhere")
    cluster.until_steps(job)
    found = cluster.finish(job)
    assert found["weights_sha256"] == calm
    assert found["steps_redone"] == 0
