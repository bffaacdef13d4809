"""The host of a scheduler is lost, and another goes on with its state directory."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from e2e.joined import ON_HOSTS, cluster_in, weights_alone

pytestmark = ON_HOSTS


_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def calm() -> str:
    return weights_alone()


@pytest.mark.long
def test_jobs_survive_moving_the_state_directory(tmp_path: Path, calm: str) -> None:
    with cluster_in(tmp_path, nodes=2, standby=True) as cluster:
        job = cluster.submit("--workers", "4", "--checkpoint-every", "4")
        cluster.until(lambda: cluster.step(job) >= 6, "a step behind its first checkpoint")
        token = (cluster.state / "nodes.token").read_text()
        assert sum(cluster.on(job).values()) == 4
        waiting = cluster.submit("--workers", "2")
        cluster.brim("suspend", waiting)
        saved = cluster.events(job, "checkpoint")[-1]["step"]

        lost = cluster.home
        lost.cable.cut()  # or its kernel would refuse calls, as no host does that is off
        lost.kill()
        cluster.until(
            lambda: not any(map(cluster.workers_of, cluster.hosts)), "that nodes end what they ran"
        )
        started = time.monotonic()
        cluster.move()
        cluster.until(
            lambda: [node["state"] for node in cluster.told().values()] == ["up"] * 3,
            "both nodes, which called the other address",
        )
        cluster.until_steps(job)
        _log.info(
            "from brim up on the other host to three steps: %.1f s", time.monotonic() - started
        )
        assert cluster.events(job, "restored")[-1]["step"] >= saved
        assert (cluster.state / "nodes.token").read_text() == token

        lost.start()
        lost.cable.mend()  # it refuses now where nodes called first
        cluster.until_steps(job)
        assert cluster.step(waiting) == 0
        cluster.brim("resume", waiting)
        for finished_job in (job, waiting):
            assert cluster.finish(finished_job)["weights_sha256"] == calm


@pytest.mark.long
def test_refusing_addresses_make_scheduler_death_free(tmp_path: Path, calm: str) -> None:
    with cluster_in(tmp_path, nodes=1, standby=True) as cluster:
        job = cluster.submit("--workers", "2")
        cluster.until(lambda: cluster.step(job) >= 3, "its first steps")
        workers_before = set(cluster.workers_of(cluster.hosts[1]))
        cluster.kill_scheduler()
        cluster.until_steps(job, 24)
        cluster.up()
        cluster.until(lambda: cluster.told()["host-2"]["state"] == "up", "that it is known again")
        assert set(cluster.workers_of(cluster.hosts[1])) == workers_before, "nobody noticed"

        assert cluster.standby is not None
        cluster.standby.kill()
        cluster.kill_scheduler()
        cluster.standby.cable.cut()  # the scheduler might be there now
        cluster.until(
            lambda: not cluster.workers_of(cluster.hosts[1]), "the end of what nobody may count on"
        )
        cluster.up()
        cluster.until_steps(job)
        assert cluster.finish(job)["weights_sha256"] == calm


@pytest.mark.long
def test_jobs_survive_moving_address_and_state(tmp_path: Path, calm: str) -> None:
    """The host is booted again, with its disk; nodes were told of one address."""
    with cluster_in(tmp_path, nodes=1) as cluster:
        job = cluster.submit("--workers", "2", "--checkpoint-every", "4")
        cluster.until(lambda: cluster.step(job) >= 6, "a step behind its first checkpoint")
        cluster.home.cable.cut()
        cluster.home.kill()
        cluster.until(
            lambda: not cluster.workers_of(cluster.hosts[1]), "that the node ends what it ran"
        )
        cluster.home.start()
        cluster.home.cable.mend()
        cluster.up()
        cluster.until(lambda: cluster.told()["host-2"]["state"] == "up", "that it is known again")
        cluster.until_steps(job)
        assert cluster.events(job, "restored")[-1]["step"] >= 4
        assert cluster.finish(job)["weights_sha256"] == calm
