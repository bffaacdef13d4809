"""A scheduler with several nodes: jobs are on them, move between them, and go on where one dies or
is taken away.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from brim.host.process import MASTER
from e2e.running import leftovers, until
from e2e.test_scheduler import CLUSTER, Home, alive, calm, world

__all__ = ["calm"]

pytestmark = pytest.mark.e2e


def describe(home: Home, *nodes: str) -> str:
    """Write down a cluster of these nodes, with 2 devices each."""
    home.file.write_text(
        f"nodes: [{', '.join(f'{{name: {node}, workers: 2}}' for node in nodes)}]\n"
    )
    return str(home.file)


def placement_of(home: Home, job: str) -> dict[str, int]:
    """The workers that train, by their agent."""
    agents = {e["worker"]: e["agent"] for e in home.events(job, "worker") if e.get("pid")}
    return dict(Counter(agents[worker] for worker in world(home, job)))


def starts(home: Home, job: str) -> int:
    """How often it began to train."""
    return sum(event["cause"] == "start" for event in home.events(job, "round"))


def node_of(home: Home, job: str, agent: str) -> psutil.Process:
    """The node's agent that is behind the job's youngest worker there."""
    pid = [e["pid"] for e in home.events(job, "worker") if e.get("pid") and e["agent"] == agent][-1]
    return next(
        process for process in psutil.Process(pid).parents() if process.name() == "brim-node"
    )


def has_master(node: psutil.Process) -> bool:
    """Whether the job's master is on it."""
    return any(child.name() == MASTER for child in node.children(recursive=True))


@pytest.mark.long
def test_jobs_outlive_moves_and_lost_nodes(tmp_path: Path, calm: str) -> None:
    home = Home(tmp_path)
    home.brim("up", "--cluster", describe(home, "n1", "n2"))
    first, mover, third = (home.submit("--workers", "1", "--set", "pause=0.03") for _ in range(3))
    until(
        lambda: [placement_of(home, job) for job in (mover, third)] == [{"n1": 1}, {"n2": 1}],
        "a job on each node",
    )
    home.brim("cancel", first)
    whole = home.submit(
        "--workers", "2", "--set", "pause=0.03"
    )  # nowhere is there room for all of it
    until(
        lambda: (placement_of(home, mover), placement_of(home, whole)) == ({"n2": 1}, {"n1": 2}),
        "a place for all of it",
    )
    assert home.job(mover).launches == 1
    assert not home.events(mover, "restored")
    os.kill(
        node_of(home, whole, "n1").pid, signal.SIGKILL
    )  # the master of the other one was still there
    until(lambda: [starts(home, job) for job in (mover, whole)] == [2, 2], "that they train again")
    neighbour = node_of(home, whole, "n1")
    home.brim("apply", describe(home, "n2", "n3"))
    until(lambda: placement_of(home, whole) == {"n3": 2}, "that it is on the new node")
    until(lambda: not neighbour.is_running(), "the end of the node that was taken away")
    assert home.job(whole).nodes == {"n3": 2}
    home.brim("cancel", third)
    for job in (mover, whole):
        end = home.finished(job)
        assert (end["exit"], end["weights_sha256"]) == ("done", calm)
    home.brim("simulate", "replay")
    home.brim("down")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


def test_killing_a_node_ends_only_its_workers(tmp_path: Path, calm: str) -> None:
    home = Home(tmp_path)
    nodes = "nodes: [{name: n1, workers: 2}, {name: n2, workers: 2}]"
    home.file.write_text(CLUSTER.replace("nodes: [{name: n1, workers: 4}]", nodes))
    home.brim("up", "--cluster", str(home.file))
    # With a pause for each of its micro-batches it really is faster on 4 workers, also on 2 cores.
    # It is longer than a busy machine takes for its workers.
    job = home.submit("--workers", "1:4", "--set", "pause=0.2")
    until(lambda: len(world(home, job)) == 4, "4 workers")
    started = {e["worker"]: e for e in home.events(job, "worker") if e.get("pid")}
    agents = {worker: started[worker]["agent"] for worker in world(home, job)}
    assert sorted(agents.values()) == ["n1", "n1", "n2", "n2"]
    # A job is launched where there is room first, and again where the node of its master dies.
    nodes_of_job = [node_of(home, job, agent) for agent in ("n1", "n2")]
    (victim,) = [node for node in nodes_of_job if not has_master(node)]
    family = victim.children(recursive=True)
    rounds = len(home.events(job, "round"))
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, family)), "the end of all that was on the node")
    until(lambda: len(home.events(job, "round")) > rounds, "a round of those who are left")
    assert home.events(job, "round")[rounds]["world_size"] <= 2
    (home.run_dir(job) / "hurry").touch()
    end = home.finished(job)
    assert (end["exit"], end["launches"], end["weights_sha256"]) == ("done", 1, calm)
    home.brim("simulate", "replay")  # its journal, decided again, gives the same places
    home.brim("down")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


def test_nodes_left_out_of_a_description_are_gone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.brim("up", "--cluster", describe(home, "n1"))
    home.brim("down")
    home.file.write_text("nodes: [{name: home, workers: 0}]\n")
    home.brim("up", "--cluster", str(home.file), "--nodes", "127.0.0.1:0")
    nodes = home.brim("nodes")
    home.brim("down")
    assert "home" in nodes
    assert "n1" not in nodes
