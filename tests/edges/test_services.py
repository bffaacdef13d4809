"""A service in a file, and the services of a cluster beside a scheduler that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brim.cli import submit as cli_submit
from brim.coordination.cluster.scheduled_jobs import RangeChanged
from brim.coordination.cluster.sightings import NodeSeen
from brim.domain.job import WorkerRange
from brim.domain.lifecycle import Happening, next_life
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.services import ServiceReplica, ServiceRules
from brim.domain.submission import Submission, as_service
from brim.domain.workload import Priority
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import SystemClock
from brim.runs.services import service_of, service_request
from brim.scheduler.services import Services
from brim.storage.loads import add_load, keep_loads, read_loads
from brim.wire.cluster import ServiceView
from brim.wire.listening import take_port
from brim.wire.measure import measure, number_in
from e2e.running import free_port
from number_server import numbers
from tiers import NEEDS_HAPROXY

LINES = {"command": "python s.py --x 'a b'", "port": "8000", "replicas": "1:4", "per-replica": "50"}


def test_file_describes_a_job() -> None:
    more = {
        "load": "cpu",
        "health": "/h",
        "grace": "3s",
        "notice": "1m",
        "env": {"A": "b"},
        "name": "w",
    }
    name, spec = service_of({**LINES, **more})
    assert (name, spec.command) == ("w", ("python", "s.py", "--x", "a b"))
    assert (spec.grace, spec.env, spec.exact, spec.spares) == (3.0, {"A": "b"}, False, 0)
    service = spec.service
    assert service is not None
    assert (service.minimum, service.maximum, service.notice, service.load) == (1, 4, 60.0, "cpu")
    submission = as_service(Submission(spec=spec, fingerprint="f"))
    assert (submission.priority, str(submission.spec.workers)) == (Priority.ONLINE, "1")
    grown = submission.scaled(9)
    assert str(grown.spec.workers) == "1:4"
    other = grown.with_workers(WorkerRange(minimum=2, maximum=3))  # by `brim resize`
    assert (str(other.spec.workers), other.spec.service and other.spec.service.maximum) == (
        "2:3",
        3,
    )
    wider = submission.with_workers(WorkerRange(minimum=1, maximum=9))
    assert str(wider.spec.workers) == "1", "its load decides, not its range"
    assert wider.with_range_of(submission) == submission


# by name: (keys of a file, words of the error)
WRONG: dict[str, tuple[Any, str]] = {
    "a list": (["command"], "need NAME: VALUE lines"),
    "an unknown key": ({**LINES, "replica": "3"}, "did you mean 'replicas'"),
    "no port": ({k: v for k, v in LINES.items() if k != "port"}, "port: got nothing"),
    "a deadline": ({**LINES, "deadline": "2h"}, "deadline: got 'deadline'"),
    "a port of words": ({**LINES, "port": "http"}, "port: got 'http', need a whole number"),
    "half a port": ({**LINES, "port": "80.5"}, "need a whole number"),
    "a port of root": ({**LINES, "port": "80"}, "port: got 80"),
    "a list of ports": ({**LINES, "port": ["1", "2"]}, "port: got a list"),
    "no replicas": ({**LINES, "replicas": "0:2"}, "replicas: got '0:2'"),
    "replicas in words": ({**LINES, "replicas": "two"}, "replicas: got 'two'"),
    "replicas with a hint": ({**LINES, "replicas": "two"}, "hint: replicas: 1:4"),
    "a command of pairs": ({**LINES, "command": {"a": "b"}}, "command: got NAME: VALUE pairs"),
    "an open quote": ({**LINES, "command": "python 'x"}, "command: got"),
    "no command": ({**LINES, "command": ""}, "command: got nothing"),
    "a load in words": ({**LINES, "per-replica": "many"}, "per-replica: got 'many', need a number"),
    "an odd load": ({**LINES, "load": "requets"}, "did you mean 'requests'"),
    "an odd path": ({**LINES, "health": "/a b"}, "health: got '/a b'"),
    "an odd grace": ({**LINES, "grace": "soon"}, "grace: got 'soon'"),
    "variables in a text": ({**LINES, "env": "A=b"}, "env: got"),
    "a variable of brim's": ({**LINES, "env": {"BRIM_X": "1"}}, "begins with BRIM_"),
    "a name with a slash": ({**LINES, "name": "a/b"}, "name: got 'a/b'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_refused(name: str) -> None:
    content, words = WRONG[name]
    with pytest.raises(SpecError) as caught:
        service_of(content)
    assert words in str(caught.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("command: [no-such-program]\nport: 8000\nreplicas: 1:4\nper-replica: 1\n")
    with pytest.raises(SpecError, match=r"service\.yaml: COMMAND: got 'no-such-program'"):
        service_request(file, tenant="default", warn=print)
    file.write_text("port: 8000\nport: 8001\n")
    with pytest.raises(SpecError, match="'port' twice"):
        service_request(file, tenant="default", warn=print)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--workers", "4"), "--workers"),
        (("--deadline", "2h"), "--deadline"),
        (("--wait",), "--wait"),
        (("flights.py",), "FILE"),
        (("--", "python", "s.py"), "a command"),
    ],
)
def test_service_is_in_its_file_alone(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    result = CliRunner().invoke(cli_submit.submit, ["--service", str(file), *words])
    assert isinstance(result.exception, SpecError)
    assert f"--service: got it beside {name}" in str(result.exception)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loads be waited for, however long a busy machine holds up the thread that serves them."""
    monkeypatch.setattr("brim.wire.measure._TO_ANSWER", 60.0)
    monkeypatch.setattr("brim.wire.measure._TO_BE_READ", 60.0)


class Jobs:
    """The jobs and nodes of a cluster."""

    def __init__(self) -> None:
        self.jobs: dict[str, ScheduledJob] = {}
        self.replicas: list[ServiceReplica] = []
        self.nodes = {"n1": NodeSeen(up=True), "far": NodeSeen(up=True, address="10.0.0.9")}

    def replicas_of(self, job: ScheduledJob) -> Sequence[ServiceReplica]:
        return self.replicas

    def seen_nodes(self) -> dict[str, NodeSeen]:
        return self.nodes


class Cluster:
    """The services of a cluster, whose changes of ranges are taken in."""

    def __init__(self, folder: Path, rules: ServiceRules | None = None) -> None:
        self.jobs, self.folder = Jobs(), folder
        self.changes: list[RangeChanged] = []
        self.services = Services(
            self.jobs,
            handle=self.handle,
            rules=lambda: rules or ServiceRules(),
            folder=folder,
            address="127.0.0.1",
            clock=SystemClock(),
        )

    def handle(self, change: RangeChanged) -> None:
        self.changes.append(change)
        job = self.jobs.jobs[change.job]
        job.submission = job.submission.scaled(change.workers.maximum)

    def take_in(self, submission: Submission) -> ScheduledJob:
        number = len(self.jobs.jobs) + 1
        job = ScheduledJob(number=number, id=f"web-{number}", submission=submission, submitted=0.0)
        life = next_life(job.life, Happening.ADMIT)
        started = life and next_life(life, Happening.START)
        assert started is not None
        job.life = started
        self.jobs.jobs[job.id] = job
        return job

    async def first_change(self, look: Callable[[], object] = lambda: None) -> None:
        """Tend the services until one has another range of replicas; `look` is called meanwhile."""
        running = asyncio.create_task(self.services.run())
        async with asyncio.timeout(60):
            while not self.changes:
                look()
                await asyncio.sleep(0.02)
        await self.services.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def view(self, job: ScheduledJob) -> ServiceView:
        view = self.services.view(job)
        assert view is not None
        return view


def service(port: int, *, tenant: str = "ads", **fields: str) -> Submission:
    _, spec = service_of({**LINES, "port": str(port), **fields})
    return as_service(Submission(spec=spec, fingerprint="f", tenant=tenant))


@NEEDS_HAPROXY
def test_port_is_one_services_alone(tmp_path: Path) -> None:
    port = free_port()
    cluster = Cluster(tmp_path, ServiceRules(first_port=port, last_port=port))
    cluster.services.check(service(port), has_tenants=True)
    cluster.take_in(service(port))
    with pytest.raises(SpecError, match="the port of web-1"):
        cluster.services.check(service(port), has_tenants=True)
    with pytest.raises(SpecError, match=f"port: got {port}, the port, need") as caught:
        cluster.services.check(service(port, tenant="web"), has_tenants=True)
    assert "web-1" not in str(caught.value)  # of another tenant it does not exist
    with pytest.raises(SpecError, match=f"a port from {port} to {port}"):
        cluster.services.check(service(port + 1), has_tenants=True)
    jobs = list(cluster.jobs.jobs.values())
    cluster.jobs.jobs.clear()
    with (
        take_port("127.0.0.1", port),
        pytest.raises(SpecError, match=r"in use \(it is process \d+ "),
    ):
        cluster.services.check(jobs[0].submission, has_tenants=False)


@NEEDS_HAPROXY
def test_tenant_names_no_url_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    mine = service(port, load="http://169.254.169.254/latest")
    with pytest.raises(SpecError, match="load: got"):
        Cluster(tmp_path).services.check(mine, has_tenants=True)
    Cluster(tmp_path).services.check(mine, has_tenants=False)
    rules = ServiceRules(urls=("http://metrics.local/",))
    with pytest.raises(SpecError, match="load: got"):
        Cluster(tmp_path, rules).services.check(mine, has_tenants=True)
    allowed = service(port, load="http://metrics.local/queue")
    Cluster(tmp_path, rules).services.check(allowed, has_tenants=True)


def test_leftover_front_stops_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def end_front(*_: object, **__: object) -> None:
        raise OSError("Too many open files")

    async def work() -> bool:
        running = asyncio.create_task(Cluster(tmp_path).services.run())
        await asyncio.sleep(0.1)
        return running.done() or not running.cancel()

    (tmp_path / "web-9").mkdir()
    monkeypatch.setattr("brim.scheduler.services.end_front", end_front)
    assert not asyncio.run(work()), "services are tended"
    assert "what an earlier scheduler left cannot be tended" in caplog.text


def test_view_names_the_scheme(tmp_path: Path) -> None:
    for rules, scheme in (
        (ServiceRules(), ""),
        (ServiceRules(certificate="/front.pem"), "https://"),
    ):
        cluster = Cluster(tmp_path, rules)
        cluster.take_in(service(8000))
        (job,) = cluster.jobs.jobs.values()
        view = cluster.services.view(job)
        assert view is not None
        assert view.url == f"{scheme}127.0.0.1:8000"


def test_replica_elsewhere_gets_no_request(tmp_path: Path) -> None:
    hosts = ("127.0.0.1", "10.0.0.9", "10.0.0.10", "169.254.169.254")
    replicas = [ServiceReplica(f"w{n}-1", host, 80, "ready") for n, host in enumerate(hosts)]
    allowed = Cluster(tmp_path).services.on_hosts(replicas)
    assert [replica.host for replica in allowed] == ["127.0.0.1", "10.0.0.9"]


def test_replica_that_lies_gets_no_request(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, ServiceRules(address="127.0.0.2"))
    cluster.take_in(service(8000))
    hosts = ("127.0.0.1", "127.0.0.2", "10.0.0.9")
    replicas = [
        ServiceReplica("w1-1", host, port, "ready") for host in hosts for port in (80, 8000)
    ]
    places = [(each.host, each.port) for each in cluster.services.on_hosts(replicas)]
    elsewhere = [("10.0.0.9", 80), ("10.0.0.9", 8000)]
    assert places == [("127.0.0.1", 80), ("127.0.0.2", 80), *elsewhere], "a front is no replica"
    del cluster.jobs.nodes["n1"]
    places = [(each.host, each.port) for each in cluster.services.on_hosts(replicas)]
    assert places == elsewhere, "no job runs on the scheduler's host"


def test_answer_of_another_protocol_is_not_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"secret greeting\r\n")
                connection.recv(4096)

        greeting = threading.Thread(target=greet, daemon=True)
        greeting.start()
        with pytest.raises(EnvironmentFault, match="cannot read the load") as caught:
            measure(f"http://127.0.0.1:{server.getsockname()[1]}/queue")
        greeting.join(30)
        assert "secret" not in str(caught.value)


def test_slow_answer_of_a_load_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.wire.measure._TO_BE_READ", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.05)

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        with pytest.raises(EnvironmentFault, match="cannot read the load"):
            measure(f"http://127.0.0.1:{server.getsockname()[1]}/queue")
        dripping.join(30)
        assert not dripping.is_alive()


@NEEDS_HAPROXY
def test_replicas_follow_a_number_at_a_url(patient: None, tmp_path: Path) -> None:
    """A number counts, an answer that is none is shown, and the past is there for the next scheduler."""
    with numbers(["many", "302", "120"]) as port:
        cluster = Cluster(tmp_path)
        job = cluster.take_in(service(free_port(), load=f"http://127.0.0.1:{port}/queue"))
        problems = set()

        asyncio.run(cluster.first_change(lambda: problems.add(cluster.view(job).problem)))
    (change,) = cluster.changes
    assert (change.workers.minimum, change.workers.maximum, change.scaled) == (1, 3, True)
    assert change.detail.startswith("load 120 now, 120 foreseen in 11 s: 3 replicas")
    assert any("neither a number from 0" in problem for problem in problems)
    assert any("status 302" in problem for problem in problems)
    view = cluster.view(job)
    assert (view.current, view.wanted, view.ready) == (120.0, 3, 0)
    held_cluster = Cluster(tmp_path)
    held_cluster.jobs.jobs[job.id] = job
    assert held_cluster.view(job).ready is None, "a scheduler that holds has not looked"


def test_front_that_hangs_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.wire.haproxy._TO_ANSWER", 100.0)
    cluster = Cluster(tmp_path)
    with numbers(["120"]) as port, socket.socket(socket.AF_UNIX) as silent:
        hanging = cluster.take_in(service(free_port()))
        cluster.take_in(service(free_port(), load=f"http://127.0.0.1:{port}/queue"))
        folder = tmp_path / hanging.id
        folder.mkdir()
        with contextlib.chdir(folder):
            silent.bind("front.sock")
        silent.listen()

        async def follow() -> None:
            tending = asyncio.create_task(cluster.first_change())
            while not cluster.changes and not tending.done():
                await asyncio.sleep(0.02)
            silent.close()  # what it has taken is reset, and not waited for at the end
            await tending

        asyncio.run(follow())
    assert [change.job for change in cluster.changes] == ["web-2"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("secret", "neither a number from 0"),
        ("-1", "neither"),
        ("1" + " " * 64, "neither"),
        ('{"data": {"result": []}}', "finds 0 series"),
        ('{"data": {"result": [{"value": [1, "2"]}, {"value": [1, "3"]}]}}', "finds 2 series"),
        ('{"data": {"result": [{"value": [1, "NaN"]}]}}', "neither"),
        ('{"data": {"result": [{"value": [1, "2"]}]}' + " " * 20_000 + "}", "neither"),
        ('{"secret": 1}', "neither"),
        ("[" * 10_000, "neither"),
    ],
)
def test_answer_without_a_number_is_not_quoted(answer: str, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words) as caught:
        number_in(answer.encode())
    assert "secret" not in str(caught.value)


def test_prometheus_answers_are_read(patient: None) -> None:
    series = '[{"metric": {"a": "b"}, "value": [1.5, "2.5"]}]'
    found = f'{{"status": "success", "data": {{"resultType": "vector", "result": {series}}}}}'
    scalar = '{"data": {"resultType": "scalar", "result": [1.5, "3"]}}'
    with numbers([found, scalar]) as port:
        assert [measure(f"http://127.0.0.1:{port}/") for _ in range(2)] == [2.5, 3.0]


def test_past_loads_survive_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "loads"
    keep_loads(file, [(5.0, 1.0), (10.0, 2.5)])
    add_load(file, 15.0, 3.0)
    assert read_loads(file) == [(5.0, 1.0), (10.0, 2.5), (15.0, 3.0)]
    file.write_bytes(file.read_bytes() + b"nonsense\n\xff\n20.0")
    assert read_loads(file) == [(5.0, 1.0), (10.0, 2.5), (15.0, 3.0)]
    assert read_loads(tmp_path / "none") == []
