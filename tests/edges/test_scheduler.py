"""The scheduler over HTTP and on the command line, with processes that are fakes."""

from __future__ import annotations

import asyncio
import errno
import functools
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import brim as brim_package
from brim import client as client_module
from brim.backends.live import LiveBackend
from brim.backends.processes import Launch
from brim.cli.__main__ import cli
from brim.cli.shared.ending import say
from brim.client import Client
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.conditions import Conditions, Predecessor
from brim.domain.host_kind import HostKind
from brim.domain.job import WorkerRange
from brim.domain.resizing import BELIEVED
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission, by_tenant
from brim.domain.tenancy import Tenant
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.host.clock import SystemClock
from brim.policies.what_if import AdmissionForecast, what_if
from brim.runs.handle import JobHandle, ending_of
from brim.runs.services import service_of
from brim.runs.verbs import submit
from brim.scheduler.api import openapi
from brim.scheduler.lives import Lives
from brim.scheduler.loop import Scheduler
from brim.scheduler.server import listen, offer
from brim.storage.book import Book
from brim.storage.contact import (
    SchedulerContact,
    read_scheduler_contact,
    token_of,
    write_scheduler_contact,
)
from brim.storage.database import Alarm, Database
from brim.user_code.policies import POLICIES
from brim.wire.authority import Authority
from brim.wire.cluster import Submit
from brim.wire.renewed import RenewedCertificate
from conformance.worlds import LiveWorld, measured
from e2e.running import DIGITS, until
from recorded_run import RecordedRun, spec
from submissions import submission

TENANTS = (Tenant(id="ads", guaranteed=4), Tenant(id="web", guaranteed=4))


class Served(LiveWorld):
    """A world of fakes on the host's clock, with a scheduler in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Cluster.parse("1x8"), 0, folder, tenants=TENANTS)
        self.failure: BaseException | None = None
        self.authority = Authority.make("cluster")
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        until(lambda: read_scheduler_contact(folder) is not None, "the scheduler")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 the test's own thread shows it
            self.failure = failure

    async def _serve(self) -> None:
        self.clock = SystemClock()  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()
        lives = Lives(self._begin, is_there=lambda: self.folder.exists(), clock=self.clock)
        scheduling, obeying = asyncio.create_task(lives.run()), asyncio.create_task(self._obey())
        await offer(
            lives,
            listen("127.0.0.1", 0),
            self.folder,
            authority=self.authority,
            certificate=self.certificate(),
            scheduling=scheduling,
        )
        obeying.cancel()

    def certificate(self) -> RenewedCertificate | None:
        """Its view for clients."""
        return None

    def _begin(self, alarm: Alarm) -> Scheduler:
        database = Database(self.folder / "scheduler.db", alarm=alarm)
        self.book = Book(database)
        for tenant in ("default", "ads", "web"):  # each has run jobs of the model before
            owned = by_tenant(submission(tenant=tenant))
            if not self.book.measured(owned.fingerprint).totals:
                self.book.learn(owned, measured({1: 1.0, 2: 1.9, 4: 3.4, 8: 5.6}), None)
        self.backend = LiveBackend(self.book, self.processes, self.spec, clock=self.clock)
        return Scheduler(
            self.book, database, self.backend, jobs_folder=self.folder / "jobs", clock=self.clock
        )

    def close(self) -> None:
        if self.thread.is_alive():
            self.client.down()
        self.thread.join(60.0)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure

    async def _obey(self) -> None:
        while True:
            self.processes.settle()
            await asyncio.sleep(0.02)

    def teach(self, job: Submission, *words: Any) -> None:
        """Let the book know a model, in the thread whose book it is."""

        async def learn() -> None:
            self.book.learn(by_tenant(job), *words)

        asyncio.run_coroutine_threadsafe(learn(), self.loop).result(60.0)

    def profile(self, job: str, **fields: Any) -> None:
        """A job that runs has been measured on 1, 2 and 4 workers."""
        until(lambda: self.processes.of(job).workers == 1, "a job that begins with 1 worker")
        rates = measured({1: 1.0, 2: 1.9, 4: 3.0})
        self.processes.say(job, first_step=self.clock.wall(), measured=rates, **fields)

    @property
    def client(self) -> Client:
        return Client(self.folder)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    served = Served(tmp_path)
    yield served
    served.close()


def brim(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words], catch_exceptions=False)


def ask(workers: str = "1:8", *, key: str = "", **fields: Any) -> Submit:
    return Submit(
        submission=submission(workers, **{"tenant": "ads", **fields}), name="job", key=key
    )


def test_the_life_of_a_job_through_the_client(served: Served) -> None:
    client = served.client
    view = client.submit(ask())
    assert (view.job, view.state, view.tenant) == ("job-1", "submitted", "ads")
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    assert client.job("job-1").run == str(served.folder / "jobs" / "job-1")
    assert client.resize("job-1", WorkerRange(minimum=1, maximum=3)).maximum == 3
    until(lambda: client.job("job-1").workers == 3, "3 workers")
    assert client.suspend("job-1").wish == "hold"
    until(lambda: client.job("job-1").state == "suspended", "its suspension")
    client.resume("job-1")
    until(lambda: client.job("job-1").state == "running", "its return")
    served.processes.say("job-1", step=7, steps=20)
    served.processes.end("job-1", "done", summary={"exit": "done", "weights_sha256": "ab"})
    view = client.wait("job-1", timeout=60.0)
    assert (view.state, view.step, view.summary["weights_sha256"]) == ("done", 7, "ab")
    events = [change.event for change in client.explain("job-1")]
    assert events[0] == "submitted"
    assert events[-1] == "done"
    with pytest.raises(EnvironmentFault, match="job-1 is done"):
        client.cancel("job-1")


def test_one_handle_serves_command_line_and_python(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client
    job = brim_package.Run(client.submit(ask()).job)
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    assert (job.status, job.job.workers, str(job.path)) == ("running", 8, client.job("job-1").run)
    job.resize("1:4")
    until(lambda: client.job("job-1").workers == 4, "4 workers")
    resized = brim("resize", "job-1", "2:5").stderr
    assert resized.startswith("job-1: asked for 2:5 workers, has "), resized
    assert "has 4 now; more come where the policy has devices and a use for them" in resized
    assert (client.job("job-1").minimum, client.job("job-1").maximum) == (2, 5)
    for pause in (job.suspend, lambda: brim("suspend", "job-1")):
        pause()
        until(lambda: client.job("job-1").state == "suspended", "its suspension")
        assert brim("resume", "job-1", "--workers", "1:3").stderr == "job-1: may run again\n"
        until(lambda: client.job("job-1").workers == 3, "its return, with other workers")
        job.resize("1:6")
    for name in ("WORKERS", "PS", "AGENTS", "LISTEN"):  # which are meant for new runs
        monkeypatch.setenv(f"BRIM_{name}", "127.0.0.1:0" if name == "LISTEN" else "4")
    assert brim("resume", "job-1").stderr == "job-1: may run again\n"
    assert client.job("job-1").maximum == 6
    refused = brim("resume", "job-1", "--ps", "2")
    assert refused.exit_code == 2
    assert "--ps: got 2, need a run without a scheduler" in refused.stderr
    for call, field in (
        (lambda: job.resize(ps=2), "ps="),
        (lambda: job.resize(), "workers="),
        (lambda: job.resume(ps=2), "ps="),
    ):
        with pytest.raises(SpecError) as raised:
            call()
        assert raised.value.field == field
    with pytest.raises(TimeoutError, match="job-1 is running after 0 s"):
        job.wait(timeout=0)
    served.processes.end("job-1", "done", summary={"exit": "done", "weights_sha256": "ab"})
    assert job.wait(timeout=60.0) is job
    waited = brim("status", "job-1", "--wait", "--json")
    assert waited.exit_code == 0
    assert json.loads(waited.stdout)["weights_sha256"] == "ab"


def test_exact_jobs_wait_for_their_node_kind(
    served: Served,
) -> None:
    """The host has another torch from one day to the next."""
    client, first_kind = served.client, HostKind(torch="2.13.0")
    served.processes.node = NodeSeen(up=True, kind=first_kind)
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    refused = brim("resume", "job-1", "--any-kind")
    assert "job-1 is running; --any-kind applies only" in refused.stderr
    served.processes.say("job-1", step=7, steps=20)
    until(lambda: client.job("job-1").step == 7, "its steps")
    client.suspend("job-1")
    until(lambda: client.job("job-1").state == "suspended", "its suspension")
    with closing(Database(served.folder / "scheduler.db")) as database:
        record = Book(database).jobs["job-1"]
        assert record.kind == first_kind
        tree = msgspec.to_builtins(record)
        del tree["kind"]  # as an earlier version wrote it
        assert msgspec.convert(tree, ScheduledJob).kind is None
    served.processes.node = NodeSeen(up=True, kind=HostKind(torch="2.14.0"))
    client.resume("job-1")
    until(lambda: client.job("job-1").waits != "", "why it waits")
    differ = "torch 2.13.0 on the nodes where it began and 2.14.0 on node0"
    for verb in ("status", "explain"):
        assert differ in (output := brim(verb, "job-1").stdout), output
        assert "brim resume job-1 --any-kind" in output
    assert client.job("job-1").workers == 0
    assert brim("resume", "job-1", "--any-kind").stderr == "job-1: may run again\n"
    until(lambda: client.job("job-1").workers == 8, "its return")
    assert not client.job("job-1").waits
    assert "any kind" in [change.event for change in client.explain("job-1")]
    careless = ask()
    inexact = replace(careless.submission, spec=replace(careless.submission.spec, exact=False))
    client.submit(msgspec.structs.replace(careless, submission=inexact))
    refused = brim("resume", "job-2", "--any-kind")
    assert "--any-kind: got job-2, which is not exact" in refused.stderr


def test_owners_regain_lent_devices(served: Served) -> None:
    client = served.client
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    client.submit(ask("1:8", tenant="web"))
    until(lambda: client.job("job-2").workers == 4, "what web owns")
    rows = {view.tenant: (view.holds, view.borrows) for view in client.tenants()}
    assert rows == {"ads": (4, 0), "web": (4, 0)}
    story = [change for change in client.explain("job-1") if change.reason == "reclaimed-by-owner"]
    assert "tenant web takes 4 (held 0, guaranteed 4)" in story[0].detail
    ads = msgspec.structs.replace(TENANTS[0], guaranteed=2, limit=3)
    client.apply(ClusterSpec(cluster=Cluster.parse("1x8"), tenants=(TENANTS[1], ads)))
    client.cancel("job-2")
    until(lambda: client.job("job-1").workers == 3, "its new limit")


def test_what_cannot_be_is_refused_with_its_words(served: Served) -> None:
    client = served.client
    with pytest.raises(SpecError, match=r"--workers: got 9:16, need .* 1 to 8"):
        client.submit(Submit(submission=submission("9:16", tenant="ads")))
    lines = {"command": "python s.py", "port": "8000", "replicas": "9:16", "per-replica": "50"}
    for more, words in (
        ({}, r"^replicas: got 9, .* 1 to 8"),
        (
            {"replicas": "1:2", "grace": "1h"},
            "^grace: got 1h, ",
        ),
    ):
        _, spec = service_of({**lines, **more})
        with pytest.raises(SpecError, match=words):
            client.submit(Submit(submission=Submission(spec=spec, fingerprint="f", tenant="ads")))
    with pytest.raises(SpecError, match="did you mean 'ads'"):
        client.submit(ask(tenant="adds"))
    with pytest.raises(SpecError, match="--deadline: got a time that has passed"):
        client.submit(ask(deadline=1.0))
    client.submit(ask())
    with pytest.raises(SpecError, match="did you mean 'job-1'"):
        client.job("jobb-1")


def test_a_dry_run_predicts_without_changes(served: Served) -> None:
    client = served.client
    deadline = SystemClock().wall() + 100.0
    assert client.forecast(ask(fingerprint="new", deadline=deadline)).known is False
    client.submit(ask("1:8"))
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    served.teach(submission(tenant="web", fingerprint="new"), measured({1: 10.0, 4: 35.0}), 700)
    now = SystemClock().wall()
    in_time, late = (
        client.forecast(ask("1:4", tenant="web", fingerprint="new", deadline=now + s))
        for s in (15.0, 300.0)
    )
    assert (in_time.admitted, in_time.reason) == (False, "too-late-even-alone")
    assert (late.admitted, late.known, late.reason) == (True, True, "fits")
    assert late.takes == {"job-1": late.workers}
    assert late.earliest is not None
    assert now + 20.0 < late.earliest < now + 40.0
    assert [view.job for view in client.jobs()] == ["job-1"]


def test_only_those_who_know_the_token_are_heard(served: Served) -> None:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    assert os.stat(served.folder / "scheduler.json").st_mode & 0o077 == 0
    assert os.stat(served.folder / "token").st_mode & 0o077 == 0
    assert (
        token_of(served.folder) == contact.token
    )  # the next scheduler's as well: who is elsewhere knows no other
    address = f"127.0.0.1:{contact.port}"
    with pytest.raises(EnvironmentFault, match="wrong or missing token"):
        Client(address=address, token="guess").jobs()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{address}/v1/jobs", timeout=60)
    client = Client(address=address, token=contact.token)
    until(lambda: client.cluster().looks.count > 0, "a look at the processes")
    cluster = client.cluster()
    assert cluster.devices == 8
    assert cluster.cycles.p99_ms >= cluster.cycles.median_ms
    with urllib.request.urlopen(f"http://{address}/openapi.json", timeout=60) as answer:
        assert json.load(answer) == json.loads(json.dumps(openapi()))


def test_every_client_call_is_documented_in_openapi() -> None:
    document = openapi()
    assert document["openapi"] == "3.1.0"
    calls = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert ("post", "/v1/jobs/{job}/cancel") in calls
    assert len(calls) == 31
    job = document["paths"]["/v1/jobs/{job}"]["get"]
    assert {parameter["name"]: parameter["in"] for parameter in job["parameters"]} == {
        "job": "path",
        "wait": "query",
        "until": "query",
    }
    assert "key" in document["components"]["schemas"]["Submit"]["properties"]
    references = set(json.dumps(document).split('"#/components/schemas/')[1:])
    named = {reference.partition('"')[0] for reference in references}
    assert named <= document["components"]["schemas"].keys()


def test_job_logs_come_over_http_until_the_end(served: Served) -> None:
    client = served.client
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    folder = served.folder / "jobs" / "job-1" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    assert list(client.logs("job-1")) == []
    (folder / "w1.log").write_text("one\nunfini")
    (folder / "w2.log").write_text("x" * 1_000_000 + "\n")
    assert [(worker, len(line)) for worker, line in client.logs("job-1", worker="w1")] == [
        ("w1", 3)
    ]
    assert sum(len(line) for worker, line in client.logs("job-1") if worker == "w2") == 1_000_000
    following = client.logs("job-1", worker="w1", follow=True)
    assert next(following) == ("w1", "one")
    with (folder / "w1.log").open("a") as log:
        log.write("shed\n")
    assert next(following) == ("w1", "unfinished")
    assert "w1 | unfinished" in brim("logs", "job-1").stdout
    with (folder / "w1.log").open("a") as log:
        log.write("the last word\n")
    served.processes.end("job-1", "done", summary={"exit": "done"})
    assert list(following) == [("w1", "the last word")]
    with pytest.raises(SpecError, match="--worker: got 'w9'"):
        list(client.logs("job-1", worker="w9"))
    with pytest.raises(SpecError, match="JOB: got 'a b'"):
        list(client.logs("a b"))
    with pytest.raises(EnvironmentFault, match="there is no GET /v1/jobs/a/b/logs"):
        list(client.logs("a/b"))


def test_waiters_are_answered_at_shutdown(served: Served) -> None:
    client = served.client
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    waiting = http.client.HTTPConnection("127.0.0.1", contact.port, timeout=20.0)
    with closing(waiting):
        headers = {"Authorization": f"Bearer {contact.token}"}
        waiting.request("GET", "/v1/jobs/job-1?wait=30", headers=headers)
        client.job("job-1")  # is asked after it
        client.down()
        assert waiting.getresponse().status == 200
    served.thread.join(60.0)


def test_who_waits_outlasts_the_scheduler_and_is_told(served: Served) -> None:
    told: tuple[list[str], list[str]] = ([], [])
    client, follower = (
        Client(served.folder, notice=notices.append, patience=100.0) for notices in told
    )
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    hasty = Client(served.folder, patience=0.3)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.wait, "job-1")
        following = threads.submit(lambda: list(follower.logs("job-1", follow=True)))
        gives_up = threads.submit(hasty.wait, "job-1")
        served.close()
        with pytest.raises(EnvironmentFault, match=r"no scheduler runs in .* \(no answer for"):
            gives_up.result(60.0)
        until(lambda: all(told), "what both are told")
        for notices in told:  # the next one, ten seconds later, says for how long
            assert notices[0] == (
                "the scheduler was ended, and brim down suspends its jobs; waiting for brim up"
            )
        with subprocess.Popen("true") as dead:
            contact = SchedulerContact(host="127.0.0.1", port=1, token="", pid=dead.pid)
        write_scheduler_contact(served.folder, contact)
        with pytest.raises(EnvironmentFault, match="no scheduler runs"):
            client.jobs()
        (served.folder / "scheduler.json").unlink()
        next_life = Served(served.folder)
        until(lambda: client.job("job-1").workers == 8, "8 workers")
        next_life.processes.end("job-1", "done", summary={"exit": "done"})
        assert waiting.result(60.0).state == "done"
        following.result(60.0)
        next_life.close()
    for notices in told:
        assert notices[-1] == "the scheduler answers again"
        assert notices.count(notices[-1]) == 1


def test_asking_twice_is_as_good_as_once(served: Served) -> None:
    client = served.client
    request = ask("1:4", key="once", deadline=SystemClock().wall() + 3600.0)
    assert client.submit(request).job == client.submit(request).job == "job-1"
    client.resize("job-1", WorkerRange(minimum=1, maximum=2))
    client.resize("job-1", WorkerRange(minimum=1, maximum=2))
    assert client.submit(request).job == "job-1"
    with pytest.raises(SpecError, match="--key: got 'once', with which job-1 was submitted"):
        client.submit(ask("1:4", key="once", epochs=7))
    assert client.submit(ask()).job == "job-2"
    until(lambda: client.job("job-1").workers == 2, "2 workers")
    served.processes.say("job-1", first_step=SystemClock().wall(), steps=20)
    until(lambda: client.job("job-1").promised, "its promise")
    assert client.resume("job-1").promised  # it was not held
    client.cancel("job-2")
    until(lambda: client.job("job-2").has_ended, "its end")
    assert client.cancel("job-2").state == "cancelled"
    events = [change.event for change in client.explain("job-1")]
    assert (events.count("submitted"), events.count("resized")) == (1, 1)


def test_a_late_job_may_be_resized(served: Served) -> None:
    def is_taken() -> bool:
        with suppress(SpecError):  # a busy host was too slow
            served.client.submit(ask(deadline=served.clock.wall() + 0.5))
        return bool(served.client.jobs())

    until(is_taken, "a submission in time")
    due = served.client.job("job-1").deadline or 0.0
    until(lambda: served.clock.wall() > due, "the deadline")
    assert served.client.resize("job-1", WorkerRange(minimum=1, maximum=3)).maximum == 3


def test_lost_answers_are_requested_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    hear = http.client.HTTPConnection.getresponse

    def lose(
        connection: http.client.HTTPConnection, *, on_answer: Callable[[], None] = lambda: None
    ) -> None:
        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", hear)
        hear(connection).read()  # it has been done
        on_answer()
        raise ConnectionResetError("gone")

    for call in (
        lambda: served.client.submit(ask()),
        lambda: served.client.cancel("job-1"),
    ):
        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", lose)
        assert call().job == "job-1"
    assert len(served.client.jobs()) == 1
    monkeypatch.setattr(client_module, "_TO_HEAR", 0.1)
    die = functools.partialmethod(lose, on_answer=served.close)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", die)
    with pytest.raises(
        EnvironmentFault, match=r"whether it took the job in is not known.*--key a-key"
    ):
        served.client.submit(ask(key="a-key"))


def submitted(name: str) -> bytes:
    return msgspec.json.encode(Submit(submission=submission(tenant="ads"), name=name))


def test_nonsense_is_answered_not_suffered(served: Served) -> None:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    for path, body, status in (
        ("/v1/jobs", b"{", 400),
        ("/v1/jobs", b'{"name": 3}', 400),
        ("/v1/jobs", submitted("../../elsewhere"), 422),
        ("/v1/jobs", submitted("a\nb"), 422),
        ("/v1/nowhere", b"", 404),
        ("/v1/jobs/job-1", None, 404),
        ("/v1/jobs/job-1", b"", 405),
        ("/v1/jobs/job-1/logs?after=3", None, 422),
        ("/v1/jobs/job-1?wait=soon", None, 422),
        ("/v1/jobs/job-1?wait=nan", None, 404),
    ):
        request = urllib.request.Request(
            f"http://127.0.0.1:{contact.port}{path}",
            body,
            {"Authorization": f"Bearer {contact.token}"},
        )
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            urllib.request.urlopen(request, timeout=60)
    assert served.client.jobs() == []


def test_the_command_line_is_a_thin_layer(served: Served, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"file: {DIGITS}\nworkers: 1:4\nepochs: 3\ntenant: web\nset: {{depth: 2}}\nenv: {{FLAVOUR: 1}}\n"
    )
    done = brim("submit", "job.yaml", "--epochs", "5", "--json")
    view = json.loads(done.stdout)
    assert (done.exit_code, view["job"], view["maximum"], view["tenant"]) == (
        0,
        "digits-1",
        4,
        "web",
    )
    spec = served.book.jobs["digits-1"].submission.spec
    assert (spec.epochs, spec.parameters, spec.directory) == (5, {"depth": "2"}, str(tmp_path))
    assert spec.env == {"FLAVOUR": "1"}
    served.profile("digits-1")
    until(lambda: served.client.job("digits-1").workers == 4, "4 workers")
    assert brim("jobs").stdout.splitlines()[1].split()[:4] == ["digits-1", "running", "web", "4"]
    assert [job["job"] for job in json.loads(brim("jobs", "--json").stdout)["jobs"]] == ["digits-1"]
    assert "digits-1: running, 4 workers" in brim("status", "digits-1").stdout
    for verb in (
        ("status", "digits-1"),
        ("resize", "digits-1", "1:4"),
        ("suspend", "digits-1"),
        ("resume", "digits-1"),
    ):
        other_answer = brim(*verb, "--state", str(tmp_path / "elsewhere"))
        assert "a job of a scheduler that is up" in other_answer.output
        assert brim(*verb, "--state", str(tmp_path)).exit_code == 0
    until(
        lambda: json.loads(brim("status", "digits-1", "--json").stdout)["state"] == "running",
        "that it goes on",
    )
    assert brim("resize", "digits-1", "1:2").exit_code == 0
    assert "surplus-by-marginal-return" in brim("explain", "digits-1").stdout
    assert json.loads(brim("tenants", "--json").stdout)["tenants"][1]["tenant"] == "web"
    assert brim("tenants").stdout.splitlines()[0].split()[:3] == ["tenant", "cohort", "guaranteed"]
    assert brim("suspend", "digits-1").exit_code == brim("resume", "digits-1").exit_code == 0
    assert brim("cancel", "digits-1").exit_code == 0
    assert brim("status", "digits-1", "--wait", "--json").exit_code == 1
    assert "digits-1: cancelled, step 0" in brim("status", "digits-1").stdout
    assert "brim jobs --all" in brim("jobs").stderr
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{name: n1, workers: 3}, {name: n2, workers: 3}]\n"
    )
    assert brim("apply", "cluster.yaml").exit_code == 0
    assert served.client.cluster().devices == 6
    assert brim("submit", "job.yaml", "--workers", "4").exit_code == 0
    line_pattern = r"digits-2: running, 4 workers on n1: \d, n2: \d, step 0"
    until(
        lambda: bool(re.match(line_pattern, brim("status", "digits-2").stdout)),
        "4 workers over two nodes",
    )
    assert brim("jobs").stdout.splitlines()[0].split()[3:5] == ["workers", "on"]
    served.processes.node = NodeSeen(
        up=False, gone=True, lost=True, again=2.0, problem="its agent died"
    )
    until(lambda: "node n1: its agent died" in brim("jobs").stderr, "what has become of the node")
    assert (
        "node lost: n1: its agent died"
        in Path(brim("report", "--cluster").stdout.strip()).read_text()
    )
    assert brim("up").exit_code == 2


def test_policy_refusals_exit_3_with_numbers(served: Served) -> None:
    arguments = ("submit", DIGITS, "--workers", "1:4", "--tenant", "ads", "--deadline")
    assert brim(*arguments, "1h", "--dry-run").exit_code == 0  # nothing is known of it
    assert brim(*arguments, "1h").exit_code == 0
    served.profile("digits-1", steps=100)
    assert served.client.wait("digits-1", until="judged", timeout=60.0).promised
    for extra in ([], ["--dry-run"]):
        done = brim(*arguments, "10s", *extra)
        assert done.exit_code == 3
        text = done.output
        assert "too-late-even-alone" in text
        assert "4 workers, the most that help, would be done" in text
        assert "the earliest that could be promised" in text
    waiting = ThreadPoolExecutor(1).submit(brim, *arguments, "10s", "--wait")
    until(
        lambda: "digits-3" in [job.job for job in served.client.jobs() if job.was_refused],
        "the verdict",
    )
    served.client.cancel("digits-3")
    assert "digits-3: no promise (too-late-even-alone): " in waiting.result(60.0).stderr


def test_a_refusing_policy_says_why(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    view = served.client.submit(ask())
    refusing = msgspec.structs.replace(
        view, state="refused", reason="no-capacity", detail="8 devices are promised"
    )
    assert say(ending_of(refusing), refusing.job, as_json=False) == 3
    assert capsys.readouterr().err == "job-1: refused: no-capacity: 8 devices are promised\n"


def test_job_status_shows_what_train_shows(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client
    view = msgspec.structs.replace(client.submit(ask()), run=str(tmp_path / "run"))
    monkeypatch.setattr(client, "job", lambda job: view)
    handle = JobHandle(client, view.job)
    assert "loss" not in handle.look().text  # it has no records yet
    run = RecordedRun(tmp_path / "run", spec(), samples=2048)
    run.begin()
    run.train(3)
    sight = handle.look()
    assert "step 3/8 · epoch 1/2 · loss 0." in sight.text
    assert "workers: w0 active, w1 active, w2 active, w3 active" in sight.text
    progress = sight.facts["progress"]
    assert (sight.facts["job"], progress["step"], progress["world_size"]) == (view.job, 3, 4)


def test_unobservable_processes_are_neither_alive_nor_dead(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, look = served.client, served.processes.look
    for _ in range(2):
        client.submit(ask("1:4"))
    until(lambda: [client.job(f"job-{k}").workers for k in (1, 2)] == [4, 4], "4 workers each")

    def too_many_files(launch: Launch) -> Seen:
        if launch.job == "job-1":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return look(launch)

    monkeypatch.setattr(served.processes, "look", too_many_files)
    served.processes.say("job-2", step=5)
    until(lambda: client.job("job-2").step == 5, "a look at the other job")
    view = client.job("job-1")
    assert (view.state, view.workers, view.launches) == ("running", 4, 1)
    monkeypatch.setattr(served.processes, "look", look)
    served.processes.say("job-1", step=7)
    until(lambda: client.job("job-1").step == 7, "a look at it")


def test_an_accepted_job_reports_its_id_despite_death(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_answer(*_: object, **__: object) -> None:
        raise EnvironmentFault("the scheduler does not answer")

    monkeypatch.setattr(Client, "wait", lose_answer)
    done = brim("submit", DIGITS, "--tenant", "ads", "--deadline", "1h")
    assert (done.exit_code, done.stdout.strip()) == (0, "digits-1")


def test_watched_views_change_without_a_scheduler(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.client.submit(ask())
    until(lambda: served.client.job("job-1").workers == 8, "8 workers")
    deeds = iter([lambda: None, served.close, lambda: None])

    def sleep(_: float) -> None:
        next(deeds, interrupt)()

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("brim.cli.shared.screen.sleep", sleep)
    pages = brim("jobs", "--watch").stdout.split("\n\n")
    assert len(pages) == 3  # what had not changed was not shown again
    assert pages[0].startswith("8 of 8 devices · 1 running, 0 waiting · policy brim\njob ")
    assert "brim up starts one; before:\n8 of 8" in pages[1]
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("submit", "job.yaml"), "job.yaml: got"),
        (("submit", DIGITS, "--deadline", "soon"), "--deadline: got 'soon'"),
        (("submit", DIGITS, "--deadline", "2020-01-01"), "'2020-01-01', which has passed"),
        (("jobs", "--watch", "--json"), "--watch: got --json"),
        (("submit", DIGITS, "--priority", "hihg"), "--priority: got 'hihg'"),
        (("jobs",), "no scheduler runs in"),
        (("explain", "job-1"), "no scheduler runs in"),
        (("down",), "brim up starts one"),
        (("resize", "run", "1:2"), "RUN: got 'run'"),
        (("resume", "flights-1"), "flights-1 is a job of a scheduler; no scheduler runs"),
        (("status", "flights-1", "--wait"), "flights-1 is a job of a scheduler; no scheduler runs"),
        (("status", "flihgts-1"), "did you mean 'flights-1'?"),
        (("cancel", "runs/mine"), "no scheduler runs in"),
    ],
)
def test_without_a_scheduler(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for run in (tmp_path / "home" / "jobs" / "flights-1", tmp_path / "runs" / "mine"):
        run.mkdir(parents=True)
        (run / "events.jsonl").touch()
    done = brim(*words)
    assert done.exit_code in (1, 2)
    assert message in done.output


def test_an_unknown_word_in_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(f"file: {DIGITS}\nwokers: 4\n")
    done = brim("submit", "job.yaml")
    assert done.exit_code == 2
    assert "did you mean 'workers'?" in done.output


def test_words_behind_dashes_are_a_command(served: Served, tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("print('ready')\n")
    (tmp_path / "loop.py").write_text("import brim\nbrim.join(1, 2)\n")
    (tmp_path / "job.yaml").write_text("command: python prepare.py\ntenant: web\n")
    (tmp_path / "both.yaml").write_text(f"command: python prepare.py\nfile: {DIGITS}\n")
    level = "brim: level: restart, from its own checkpoints"
    right_words: tuple[tuple[tuple[str, ...], str], ...] = (
        (
            ("--tenant", "ads", "--", sys.executable, "prepare.py", "--lr", "1"),
            f"{level} (prepare.py",
        ),
        (("--tenant", "ads", "--workers", "2", "--", "true"), f"{level}, as 2 processes"),
        (("--tenant", "ads", "--", "python", "loop.py"), "brim: level: exact (loop.py"),
        (("job.yaml",), f"{level} (prepare.py"),
        (("job.yaml", "--", "python", "loop.py"), "brim: level: exact (loop.py"),
    )
    for words, subject in right_words:
        done = brim("submit", *words)
        assert (done.exit_code, done.stderr.startswith(subject)) == (0, True), done.stderr
        spec = served.book.jobs[done.stdout.strip()].submission.spec
        assert (spec.restart, spec.file) == ("restart" in subject, "")
    first = served.book.jobs["prepare-1"].submission.spec
    assert first.command == (sys.executable, "prepare.py", "--lr", "1")
    done = brim("submit", "--tenant", "ads", "--", "python", DIGITS)
    assert f"digits.py looks like a training file: brim train {DIGITS}" in done.stderr
    from_python = submit([sys.executable, "prepare.py"], tenant="ads").job  # without a warning
    assert from_python is not None
    assert served.book.jobs[from_python.job].submission.spec.restart
    wrong_words: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "FILE: got nothing"),
        (("--",), "FILE: got nothing"),
        (("python", "prepare.py"), "hint: brim submit -- python prepare.py"),
        (("both.yaml",), "and a command"),
        ((DIGITS, "--", "true"), "and a command"),
        (("hostname",), "hint: for a command: brim submit -- hostname"),
        (("prepare.py",), "hint: for a script: brim submit -- python prepare.py"),
        (("--", "prepare.py"), "hint: -- python prepare.py"),
    )
    for words, message in wrong_words:
        refused = brim("submit", "--tenant", "ads", *words)
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr


def test_ends_are_forecast_with_reported_error(served: Served) -> None:
    served.teach(submission(tenant="ads"), measured({1: 10.0, 2: 19.0, 4: 35.0, 8: 60.0}, 60), 6000)
    served.client.submit(ask("8"))
    until(lambda: served.client.job("job-1").first_estimate is not None, "the first estimate")
    first = served.client.job("job-1").first_estimate
    assert first is not None
    assert first.finish - first.at == pytest.approx(
        6000 / 60.0 + BELIEVED.cost(0, 8) + BELIEVED.end, abs=3.0
    )
    assert (first.step, first.error) == (0, None)
    until(lambda: served.client.job("job-1").workers == 8, "8 workers")
    served.processes.say("job-1", step=3001, steps=6000)
    until(lambda: served.client.job("job-1").half_estimate is not None, "the one at half of it")
    served.processes.end("job-1", "done", summary={"exit": "done"})
    view = served.client.wait("job-1", timeout=60.0)
    assert view.half_estimate is not None
    assert view.half_estimate.step == 3001
    assert view.half_estimate.finish - view.half_estimate.at == pytest.approx(50.0, abs=5.0)
    assert view.ended is not None
    error = view.ended - view.half_estimate.finish
    assert view.half_estimate.error_seconds == pytest.approx(error, abs=0.01)
    detail = served.client.explain("job-1")[-1].detail
    assert re.fullmatch(
        r"first estimate: \d+\.\d s early, .* of .* s; at half of its steps: .* early, .*", detail
    )
    fields = json.loads(brim("status", "job-1", "--json").stdout)
    assert fields["half_estimate"]["step"] == 3001


@pytest.mark.parametrize(
    ("modules", "large"),
    [
        (
            "brim.client, brim.cli.jobs, brim.cli.status, brim.runs.handle, brim.cli.shared.tables",
            {"grpc", "numpy", "torch"},
        ),
        ("brim.agent.__main__, brim.master.__main__", {"numpy", "torch"}),
    ],
    ids=["questions", "run"],
)
def test_processes_do_not_wait_for_large_imports(modules: str, large: set[str]) -> None:
    code = f"import {modules}, sys; print({large} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_ctrl_c_ends_only_the_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(client: Client, job: str, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    done = brim("submit", DIGITS, "--tenant", "ads", "--wait")
    assert done.exit_code == 1
    assert (
        "digits-1 keeps running: brim status digits-1 --wait; brim cancel digits-1 ends it"
        in done.stderr
    )
    assert not served.client.job("digits-1").has_ended


def test_questions_are_answered_during_long_cycles(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    is_asked, answered = threading.Event(), threading.Event()
    policy = POLICIES["brim"]

    def slow(snapshot: Snapshot) -> Decision:
        is_asked.set()
        assert answered.wait(60.0), "nobody was answered meanwhile"
        return policy(snapshot)

    monkeypatch.setattr("brim.scheduler.loop._MAX_INLINE_JOBS", 0)
    monkeypatch.setattr("brim.scheduler.loop.POLICIES", {**POLICIES, "brim": slow})
    client.submit(ask(tenant="web"))
    assert is_asked.wait(60.0)
    assert [view.job for view in client.jobs()] == ["job-1", "job-2"]
    client.cancel("job-2")
    client.apply(ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS, policy="edf"))
    answered.set()
    until(lambda: client.job("job-2").state == "cancelled", "what was asked meanwhile")
    until(lambda: policies_of(served)[-1] == "edf", "the next cycle")
    assert set(policies_of(served)) == {"brim", "edf"}


def test_questions_are_answered_during_dry_runs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client
    client.submit(ask())
    until(lambda: client.job("job-1").workers == 8, "8 workers")
    is_asked, answered = threading.Event(), threading.Event()
    single = threading.Lock()

    def slow(snapshot: Snapshot, newcomer: str, decide: Policy) -> AdmissionForecast:
        assert single.acquire(blocking=False), "two at a time"
        is_asked.set()
        assert answered.wait(60.0), "nobody was answered meanwhile"
        forecast = what_if(snapshot, newcomer, decide)
        single.release()
        return forecast

    monkeypatch.setattr("brim.scheduler.loop.what_if", slow)
    with ThreadPoolExecutor(2) as threads:
        dry = [threads.submit(client.forecast, ask(tenant="web")) for _ in range(2)]
        assert is_asked.wait(60.0)
        client.submit(ask(tenant="web"))
        until(lambda: client.job("job-2").judged, "a cycle")
        client.cancel("job-1")
        until(lambda: client.job("job-1").has_ended, "its end")
        assert not any(request.done() for request in dry)
        answered.set()
        takes = [request.result(60.0).takes for request in dry]
    # Job 1 was there when the first of the two began, and not when the second did.
    assert sorted("job-1" in take for take in takes) == [False, True]


def policies_of(served: Served) -> list[str]:
    """The decider of each cycle, by the journal."""
    with closing(Database(served.folder / "scheduler.db")) as database:
        return [row.policy for row in database.cycles()]


def test_arrays_are_taken_in_whole(served: Served) -> None:
    client = served.client
    sent = msgspec.structs.replace(ask(key="sweep"), array=(1, 5, 9))
    assert client.submit(sent).job == client.submit(sent).job == "job-1"  # the second: by its key
    views = client.jobs()
    assert [(view.job, view.array, view.index) for view in views] == [
        ("job-1", "job-1", 1), ("job-2", "job-1", 5), ("job-3", "job-1", 9),
    ]  # fmt: skip
    until(lambda: client.job("job-3").workers > 0, "its workers")
    with closing(Database(served.folder / "scheduler.db")) as database:
        assert Book(database).jobs["job-3"].submission.spec.env == {"ARRAY_INDEX": "9"}
    for indices in ((1, 5), ()):
        with pytest.raises(SpecError, match="--key: got 'sweep'"):
            client.submit(msgspec.structs.replace(sent, array=indices))
    for array, need in (((1, 1), "each index once"), (tuple(range(1001)), "<= 1000")):
        with pytest.raises(BrimError, match=need):
            client.submit(msgspec.structs.replace(ask(), array=array))
    assert len(client.jobs()) == 3
    behind = replace(
        ask().submission,
        conditions=Conditions(predecessors=tuple(Predecessor(job=f"job-{n}") for n in (2, 3, 2))),
    )
    last = client.submit(msgspec.structs.replace(ask(), submission=behind))
    assert client.job(last.job).waits == "it begins after the array of job-1"
    assert "waits: it begins after the array of job-1" in brim("status", last.job).stdout
    assert brim("cancel", last.job, "--array").exit_code == 2
    cancelled = brim("cancel", "job-2", "--array").stderr.splitlines()
    assert cancelled == [f"job-{number}: cancelled" for number in (3, 2, 1)]
    until(lambda: client.job(last.job).workers > 0, "its turn")


@pytest.mark.parametrize("array", [(), (4, 7)])
def test_keys_know_jobs_with_indices_of_their_own(served: Served, array: tuple[int, ...]) -> None:
    request = ask(key="own")
    spec = replace(request.submission.spec, env={"ARRAY_INDEX": "3"})
    own = replace(request.submission, spec=spec)
    sent = msgspec.structs.replace(request, submission=own, array=array)
    assert served.client.submit(sent).job == served.client.submit(sent).job == "job-1"


def test_files_of_jobs_have_conditions(served: Served, tmp_path: Path) -> None:
    """One value of an option that may be repeated needs no list; one value is no list."""
    served.client.submit(ask())
    file = tmp_path / "job.yaml"
    usual = f"file: {DIGITS}\nepochs: 1\ntenant: ads\n"
    file.write_text(f"{usual}after: job-1\narray: 5\n")
    dry = brim("submit", "job.yaml", "--dry-run")
    assert "if it could begin now" in dry.stdout
    assert "for the first of 1 job:" in dry.stdout
    assert brim("submit", "job.yaml").exit_code == 0
    assert served.client.job("digits-2").waits == "it begins after job-1"
    for line, words in (
        ("array: [1, 2]", "array: got a list of 2"),
        ("after: job-7", "--after: got"),
    ):
        file.write_text(f"{usual}{line}\n")
        for more in ((), ("--dry-run",)):
            refused = brim("submit", "job.yaml", *more)
            assert refused.exit_code == 2
            assert words in refused.stderr


def test_jobs_wait_only_for_their_tenants_own(served: Served) -> None:
    client = served.client
    client.submit(ask())
    for job, tenant, success in (
        ("job-7", "ads", False),
        ("job-1", "web", False),
        ("job-1", "ads", True),
    ):
        if success:
            client.cancel(job)
            until(lambda: client.job("job-1").has_ended, "its end")
        waiting = Conditions(predecessors=(Predecessor(job=job, success=success),))
        with pytest.raises(SpecError) as refused:
            client.submit(ask(tenant=tenant, conditions=waiting))
        assert refused.value.field == "--after"
        expected = "job-1, which is cancelled" if success else repr(job)
        assert refused.value.got == expected
