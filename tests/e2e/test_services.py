"""Online services beside training: replicas follow the load, and whatever dies, no request is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brim.wire.cluster import ServiceView
from e2e.requesting import requests_to
from e2e.running import FILES, LONG_JOB, PACED, free_port, leftovers, undisturbed, until
from e2e.test_scheduler import Home
from tiers import LONG, NEEDS_HAPROXY

pytestmark = [pytest.mark.e2e, NEEDS_HAPROXY]

CLUSTER = "nodes: [{name: n1, workers: 4}]\n"
SERVICE = """
name: web
command: [python, SERVER]
port: PORT
replicas: 1:3
load: requests
per-replica: 10
health: /healthz
grace: 3s
notice: 1s
"""


def replica_at(port: str) -> tuple[str, psutil.Process]:
    """The replica that has this port, and the first process of it."""
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if variables.get("PORT") == port and "BRIM_REPLICA" in variables:
            return variables["BRIM_REPLICA"], process
    raise AssertionError(f"no replica has port {port}")


class World(Home):
    """A cluster of four devices, with a service."""

    def __init__(self, folder: Path, *, text: str = SERVICE) -> None:
        super().__init__(folder)
        self.file.write_text(CLUSTER)
        self.port = free_port()
        self.service_file = folder / "service.yaml"
        server = str(FILES / "answering.py")
        text = text.replace("SERVER", server).replace("PORT", str(self.port))
        self.service_file.write_text(text)

    def serve(self) -> str:
        return self.brim("submit", "--service", str(self.service_file)).strip()

    def broken(self) -> str:
        """Submit a service whose command ends at once."""
        file = self.service_file.with_name("broken.yaml")
        script = "print('no such table'); exit(3)"
        lines = {"command": ["python", "-c", script], "port": free_port()}
        file.write_text(json.dumps({**lines, "replicas": "1", "per-replica": 1}))
        words = ("submit", "--service", str(file), "--key", "once")
        job = self.brim(*words).strip()
        assert self.brim(*words).strip() == job
        return job

    def service(self, job: str) -> ServiceView:
        view = self.job(job).service
        assert view is not None
        return view

    def wait_for_ready(self, job: str, count: int) -> None:
        def is_ready() -> bool:
            service = self.service(job)
            return service.ready == service.wanted == count

        until(is_ready, f"{count} replicas of {job}")

    def process_of(self, job: str, replica: str) -> psutil.Process:
        """The process that answers for a replica; another cluster may have one of the same id."""
        addresses = {each.replica: each.address for each in self.service(job).replicas}
        found, process = replica_at(addresses[replica].rpartition(":")[2])
        assert found == replica
        return process

    def front(self, job: str) -> int:
        contact = json.loads((self.state / "services" / job / "front.json").read_text())
        return int(contact["pid"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.brim("up", "--cluster", str(world.file))
    yield world
    world.brim("down", "--kill")
    until(lambda: not leftovers(world.state), f"the end of {leftovers(world.state)}")


@pytest.fixture(scope="module")
def calm() -> str:
    return str(undisturbed(*LONG_JOB)["weights_sha256"])


def test_replicas_come_before_training_and_lose_no_request(world: World, calm: str) -> None:
    # It is to be there to the end of all this, on a busy machine as well.
    slow = ("--set", "pause=0.2")
    training = world.brim("submit", *LONG_JOB, *slow, "--workers", "1:4").strip()
    world.wait_for_step(training, 1)
    web = world.serve()
    with requests_to(world.port, rate=4.0) as requests:  # some wait for the first replica
        world.wait_for_ready(web, 1)
        assert '  File "' in world.brim("stacks", training)
        world.brim("stacks", web, code=1)
        assert "whose Python code brim does not see" in world.err
        until(lambda: world.job(training).workers >= 2, "workers on the other devices")
        requests.rate = 24.0
        world.wait_for_ready(web, 3)
        until(lambda: world.job(training).workers == 1, "training that has given way")
        until(lambda: len(requests.replicas()) == 3, "answers of all")

        first, *_ = sorted(requests.replicas())  # a replica dies
        process = world.process_of(web, first)
        port = process.environ()["PORT"]
        process.kill()
        until(lambda: first not in requests.replicas(), "its end")
        world.kill_scheduler()  # the front and the replicas go on
        until(lambda: len(requests.replicas()) == 3, "answers of another in its place")
        second, process = replica_at(port)  # which dies, too, and nobody tells the front
        process.kill()
        until(lambda: second not in requests.replicas(), "its end")
        until(lambda: len(requests.replicas()) == 3, "answers of a third one")
        assert replica_at(port)[0] not in (first, second)
        world.brim("up")
        world.wait_for_ready(web, 3)

        before = requests.replicas()  # a rolling restart
        world.brim("restart", web)
        until(lambda: not before & requests.replicas(), "successors of all")
        world.wait_for_ready(web, 3)
        assert (requests.lost, requests.sent_again) == ([], 0)

        requests.again = True  # what a front has in its hands when it is killed is sent again
        front = world.front(web)
        os.kill(front, signal.SIGKILL)
        until(lambda: world.front(web) != front, "another front")
        requests.replicas()
        requests.rate = 1.0
        until(lambda: world.service(web).wanted < 3, "fewer replicas")
        until(lambda: world.job(training).workers >= 2, "training that grows again")
    assert requests.lost == []
    (world.run_dir(training) / "hurry").touch()
    assert world.finished(training)["weights_sha256"] == calm
    world.brim("cancel", web)
    until(lambda: world.job(web).has_ended, "the end of the service")
    until(lambda: not (world.state / "services" / web).exists(), "the end of its front")
    scaled = [change["detail"] for change in world.story(web) if change["event"] == "scaled"]
    assert any(detail.endswith(": 3 replicas") and "foreseen in" in detail for detail in scaled)


@LONG
def test_service_that_never_starts_fails(world: World) -> None:
    broken = world.broken()
    until(lambda: world.job(broken).state == "failed", "its end")
    assert "no replica was ever ready" in world.job(broken).problem
    assert "exit status 3: no such table" in world.job(broken).problem


@LONG
def test_suspended_service_comes_back_at_its_address(world: World) -> None:
    """By its owner, and with the scheduler; training that has to have all devices gives way as a whole."""
    training = world.brim("submit", *LONG_JOB, *PACED, "--workers", "4").strip()
    world.wait_for_step(training, 1)
    web = world.serve()
    with requests_to(world.port, rate=4.0) as requests:
        world.wait_for_ready(web, 1)
        until(lambda: world.job(training).workers == 0, "training that has given way")
        requests.replicas()
    assert requests.lost == []
    world.brim("suspend", web)
    until(lambda: world.job(web).state == "suspended", "its suspension")
    until(lambda: world.job(training).workers == 4, "training that has all devices again")
    with requests_to(world.port, rate=4.0) as requests:
        world.brim("resume", web)
        world.wait_for_ready(web, 1)
        requests.replicas()
    assert requests.lost == []  # they waited
    front = world.front(web)
    world.brim("down")
    assert not psutil.pid_exists(front)
    world.brim("up")
    with requests_to(world.port, rate=4.0) as requests:
        world.wait_for_ready(web, 1)
        requests.replicas()
    assert requests.lost == []
    world.brim("resize", web, "2:3")
    world.wait_for_ready(web, 2)
    assert world.job(web).minimum == 2
    other = world.brim("submit", "--service", str(world.service_file), code=2)
    assert not other
    assert f"port: got {world.port}, the port of {web}" in world.err


@LONG
def test_busy_processors_call_for_replicas(world: World) -> None:
    text = world.service_file.read_text()
    text = text.replace("load: requests", "load: cpu").replace(
        "per-replica: 10", "per-replica: 0.4"
    )
    world.service_file.write_text(text.replace("answering.py", "computing.py"))
    web = world.serve()
    with requests_to(world.port, rate=6.0) as requests:
        until(lambda: world.service(web).wanted >= 2, "another replica")
        until(lambda: (world.service(web).ready or 0) >= 2, "its readiness")
    assert requests.lost == []
