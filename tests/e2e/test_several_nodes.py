"""A scheduler with two nodes: a job is on both, and goes on where one of them dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from e2e.running import leftovers, until
from e2e.test_scheduler import CLUSTER, Home, alive, calm, world

__all__ = ["calm"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_kill_9_of_a_node_takes_the_workers_that_were_on_it_and_the_job_goes_on(
    tmp_path: Path, calm: str
) -> None:
    home = Home(tmp_path)
    nodes = "nodes: [{name: n1, workers: 2}, {name: n2, workers: 2}]"
    home.file.write_text(CLUSTER.replace("nodes: [{name: n1, workers: 4}]", nodes))
    home.brim("up", "--cluster", str(home.file))
    # With a pause for each of its micro-batches it really is faster on 4 workers, also on 2 cores.
    job = home.submit("--workers", "1:4", "--set", "pause=0.005")
    until(lambda: len(world(home, job)) == 4, "4 workers")
    started = {e["worker"]: e for e in home.events(job, "worker") if e["pid"]}
    where = {worker: started[worker]["agent"] for worker in world(home, job)}
    assert sorted(where.values()) == ["n1", "n1", "n2", "n2"]
    first = next(worker for worker, node in where.items() if node == "n2")
    parents = psutil.Process(started[first]["pid"]).parents()
    victim = next(process for process in parents if process.name() == "brim-node")
    family = victim.children(recursive=True)
    rounds = len(home.events(job, "round"))
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, family)), "the end of all that was on the node")
    until(lambda: len(home.events(job, "round")) > rounds, "a round of those who are left")
    assert home.events(job, "round")[rounds]["world_size"] <= 2
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    home.brim("simulate", "replay")  # its journal, decided again, gives the same places
    home.brim("down")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")
