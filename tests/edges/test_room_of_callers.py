"""One caller takes no more than its part of a scheduler's memory, disk, log and knowledge."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from starlette.requests import Request

from brim import client as client_module
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.lifecycle import Life, Phase
from brim.domain.rights import Caller
from brim.domain.submission import Submission, by_tenant
from brim.domain.tenancy import Tenant
from brim.errors import EnvironmentFault, ProtocolError, SpecError
from brim.host.clock import VirtualClock
from brim.scheduler import api as api_module
from brim.scheduler.audit import AUDIT, Audit
from brim.scheduler.cluster_file import cluster_spec
from brim.scheduler.turns import NoThread, TenantThreads, TenantTurns
from brim.serving.bodies import Body, Malformed
from brim.serving.bundle import Model
from brim.storage import database as database_module
from brim.storage.book import Book
from brim.storage.bundles import digest_of, pack
from brim.storage.database import Database
from brim.telemetry.logs import Tail
from brim.wire.authority import Authority
from brim.wire.bodies import Bodies, BodyTooLarge, NoRoom
from brim.wire.control import ask, ask_later
from brim.wire.identity import Subject
from brim.wire.messages import Answer, Ask
from conformance.worlds import measured
from e2e.running import until
from edges.test_job_server import TOKEN, Door
from edges.test_scheduler import ask as ask_for
from edges.test_tenants import ADMINISTRATOR, OTHER, OWNER, House
from submissions import submission

# Answers of masters -------------------------------------------------------------------------------


class Talkative(Door):
    """A master that says much more than it was asked for."""

    said = Answer(ok=True)

    async def _answer(self, question: Ask) -> Answer:
        return self.said


def test_answer_of_a_master_has_an_end(tmp_path: Path) -> None:
    async def work() -> None:
        door = Talkative(tmp_path, remote=True)
        async with door:
            door.said = Answer(ok=True, detail="x" * (3 << 20))
            for address in (door.local, door.address):
                question = Ask(verb="suspend")
                with pytest.raises(EnvironmentFault, match="does not answer"):
                    await asyncio.to_thread(ask, address, token=TOKEN, question=question)
                with pytest.raises(EnvironmentFault, match="does not answer"):
                    await ask_later(address, token=TOKEN, question=question)
            door.said = Answer(ok=False, detail="no " * 9_000, status={"a": [[]] * 100_000})
            answer = await ask_later(door.local, token=TOKEN, question=question)
            assert (answer.ok, len(answer.detail), answer.status) == (False, 2_000, {})

    asyncio.run(work())


# Bodies -------------------------------------------------------------------------------------------


def request_of(
    *parts: bytes, length: int | str | None = None, gate: asyncio.Event | None = None
) -> Any:
    """A request whose body comes in these parts, the last of them once the gate is open."""
    parts_left = list(parts)

    async def receive() -> dict[str, Any]:
        if len(parts_left) == 1 and gate is not None:
            await gate.wait()
        part = parts_left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts_left)}

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def room(to_send: float = 60.0) -> Bodies:
    return Bodies(largest=100, of_caller=150, in_all=200, to_send=to_send)


async def read(bodies: Bodies, request: Request, caller: str, *, all_room: bool = False) -> bytes:
    async with bodies.read(request, caller, all_room=all_room) as content:
        return bytes(content)


def test_body_is_read_up_to_its_limit() -> None:
    async def work() -> None:
        bodies = room()
        assert await read(bodies, request_of(b"ab", b"c", length=3), "ads") == b"abc"
        assert await read(bodies, request_of(b"x" * 100), "ads") == b"x" * 100
        for odd in (
            request_of(b"x" * 101),
            request_of(b"", length=101),
            request_of(b"", length="9" * 5_000),
            request_of(b"abc", length=2),
        ):
            with pytest.raises(BodyTooLarge):
                await read(bodies, odd, "ads")
        assert bodies.held == 0

    asyncio.run(work())


def test_caller_with_full_room_takes_none_of_others() -> None:
    async def work() -> None:
        bodies, gate = room(), asyncio.Event()
        slow = asyncio.create_task(read(bodies, request_of(b"a", b"b", gate=gate), "ads"))
        await asyncio.sleep(0)
        assert bodies.held == 100  # who does not say how much it will be takes all of it
        second = asyncio.create_task(read(bodies, request_of(b"c", length=100), "ads"))
        assert await read(bodies, request_of(b"d", length=100), "web") == b"d"
        assert not second.done()
        gate.set()
        assert (await slow, await second) == (b"ab", b"c")
        assert bodies.held == 0

    asyncio.run(work())


def test_body_that_finds_no_room_is_refused() -> None:
    async def work() -> None:
        bodies, closed_gate = room(to_send=0.3), asyncio.Event()
        holders = [bodies.read(request_of(b"a"), caller) for caller in ("ads", "shop")]
        async with holders[0], holders[1]:
            with pytest.raises(NoRoom):
                await read(bodies, request_of(b"c", length=1), "web")
            assert await read(bodies, request_of(b"d", length=1), "", all_room=True) == b"d"
        with pytest.raises(TimeoutError):
            await read(bodies, request_of(b"a", b"b", gate=closed_gate), "ads")
        assert bodies.held == 0

    asyncio.run(work())


def test_crowd_that_waits_for_room_is_sent_away() -> None:
    async def work() -> None:
        bodies, gate = room(), asyncio.Event()
        slow = asyncio.create_task(read(bodies, request_of(b"a", b"b", gate=gate), "ads"))
        crowd = [
            asyncio.create_task(read(bodies, request_of(b"c", length=100), "ads"))
            for _ in range(40)
        ]
        await asyncio.sleep(0.01)
        refused = [task for task in crowd if task.done()]
        assert len(refused) == 8
        assert all(isinstance(task.exception(), NoRoom) for task in refused)
        gate.set()
        await slow
        await asyncio.gather(*crowd, return_exceptions=True)
        assert bodies.held == 0

    asyncio.run(work())


def test_tenant_has_one_turn_at_a_time() -> None:
    async def work() -> None:
        turns, done = TenantTurns(), list[str]()

        async def take(caller: str, gate: asyncio.Event) -> None:
            async with turns.turn_of(caller):
                await gate.wait()
                done.append(caller)

        closed, opened = asyncio.Event(), asyncio.Event()
        opened.set()
        tasks = [asyncio.create_task(take("ads", gate)) for gate in (closed, opened, opened)]
        await take("web", opened)
        assert done == ["web"]
        closed.set()
        await asyncio.gather(*tasks)
        assert done == ["web", "ads", "ads", "ads"]

    asyncio.run(work())


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path))
    house = House(tmp_path)
    yield house
    house.close()


def test_submission_of_many_parts_is_not_built(house: House) -> None:
    parts = {str(number): "" for number in range(200_000)}
    fields = msgspec.to_builtins(submission(tenant="ads"))
    fields["spec"]["parameters"] = parts
    for path in ("/v1/jobs", "/v1/forecast"):
        status, answer = house.ask(OWNER, "POST", path, {"submission": fields})
        assert status == 422
        assert b"KiB of JSON" in answer
    status, answer = house.ask(OWNER, "POST", "/v1/jobs", {"submission": fields, **parts})
    assert status == 400


ROWS = [
    b'{"rows": [' + b"[]," * 400_000 + b"[]]}",
    b'{"rows": [' + b"1," * 600_000 + b"1]}",
    b'{"rows": [' + b"{}," * 400_000 + b"{}]}",
    b'{"rows": [{' + b",".join(b'"%d":1' % k for k in range(100_000)) + b"}]}",
    b'{"columns": {' + b",".join(b'"%d":1' % k for k in range(100_000)) + b"}}",
    b'{"inputs": [' + b"[]," * 1_200_000 + b"[]]}",
]


@pytest.mark.parametrize("content", ROWS, ids=["lists", "numbers", "rows", "row", "columns", "in"])
def test_large_body_is_counted_before_it_is_built(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((Malformed, SpecError)):
            Body(content).read(cast(Model, SimpleNamespace(reader=SimpleNamespace(read=None))))
        assert tracemalloc.get_traced_memory()[1] < len(content) + (4 << 20)
    finally:
        tracemalloc.stop()


def test_texts_with_brackets_are_no_parts() -> None:
    cells = ["{[:" * 10] * 10_000
    assert Body(json.dumps({"rows": [{"a": cell} for cell in cells]}).encode()).is_large
    assert Body(json.dumps({"columns": {"a": cells}}).encode()).is_large


def test_many_logs_are_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for number in range(40):
        (tmp_path / "logs" / f"w{number}.log").write_bytes(b"a line of a log\n" * (1 << 14))
    (tmp_path / "logs" / "**x.log").write_text("odd\n")
    tail = Tail(tmp_path)
    first = tail.fresh()
    assert sum(len(line) for _, line in first) < 6 << 20
    assert tail.fresh()
    assert Tail(tmp_path, "**x").fresh() == [("**x", "odd")]


# The audit log ------------------------------------------------------------------------------------


def test_refusals_do_not_push_changes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.scheduler.audit._MAX_LOG_BYTES", 100_000)
    clock = VirtualClock(100.0)
    audit = Audit(tmp_path, clock)
    ads, web = Caller(tenant="ads", origin="10.0.0.3"), Caller(tenant="web", origin="10.0.0.4")
    audit.note(web, "POST /v1/jobs", 200)
    for number in range(5_000):
        audit.note(ads, f"POST /v1/jobs/{number}/{'x' * 5_000}", 404)
        audit.note(ads, "POST /v1/forecast", 200, changes=False)
        audit.note_stranger("10.0.0.9", f"GET /{number}")
        clock.advance(0.01)
    audit.note(web, "POST /v1/jobs/job-1/cancel", 404)
    clock.advance(61.0)
    audit.note(ads, "GET /v1/jobs/x", 404)
    lines = [msgspec.json.decode(line) for line in (tmp_path / AUDIT).read_bytes().splitlines()]
    assert sorted(path.name for path in tmp_path.iterdir()) == [AUDIT]
    assert (lines[0]["who"], lines[0]["status"]) == ("web", 200)
    assert [line["who"] for line in lines].count("ads") <= 62
    assert sum(line["times"] for line in lines if line["who"] == "ads") == 10_001
    assert lines[-2]["who"] == "web"
    assert max(len(line["request"]) for line in lines) < 400


def test_each_change_has_a_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path, VirtualClock(100.0))
    for _ in range(500):
        audit.note(Caller(tenant="ads", origin="10.0.0.3"), "POST /v1/jobs", 200)
    assert len((tmp_path / AUDIT).read_bytes().splitlines()) == 500


# Lessons ------------------------------------------------------------------------------------------


def name_of(job: Submission) -> str:
    return by_tenant(job).fingerprint


def test_lessons_are_a_tenants_own() -> None:
    ads = submission(tenant="ads")
    assert name_of(ads) == name_of(submission("2:8", tenant="ads", epochs=3))
    for unrelated in (
        submission(tenant="web"),
        submission(tenant="ads", fingerprint="other"),
        replace(ads, spec=replace(ads.spec, env={"DATA": "large"})),
        replace(ads, spec=replace(ads.spec, directory="/elsewhere")),
        replace(ads, spec=replace(ads.spec, file="other.py")),
        replace(ads, spec=replace(ads.spec, bundle="a" * 64)),
    ):
        assert name_of(unrelated) != name_of(ads)


def test_client_claims_do_not_replace_sent_code() -> None:
    ads = submission(tenant="ads")
    sent = replace(ads, spec=replace(ads.spec, bundle="a" * 64))
    assert name_of(sent) == name_of(replace(sent, fingerprint="that of a faster job"))


def test_forecast_of_one_tenant_is_not_anothers(house: House) -> None:
    body = {"submission": msgspec.to_builtins(submission(tenant="ads", fingerprint="new"))}
    assert b'"known":false' in house.ask(OWNER, "POST", "/v1/forecast", body)[1]
    rates = measured({1: 10.0, 4: 35.0})
    house.teach(submission(tenant="ads", fingerprint="new"), rates, 700)
    assert b'"known":true' in house.ask(OWNER, "POST", "/v1/forecast", body)[1]
    other_body = {"submission": msgspec.to_builtins(submission(tenant="web", fingerprint="new"))}
    assert b'"known":false' in house.ask(OTHER, "POST", "/v1/forecast", other_body)[1]


# The disk -----------------------------------------------------------------------------------------


def test_forgotten_code_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_GIVEN_BACK", 500)

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    book = Book(Database(tmp_path / "scheduler.db"))
    empty = size()
    for number in range(4):
        code = pack({"m.py": bytes([number]) * (2 << 20)})
        job = submission(tenant="ads")
        job = replace(job, spec=replace(job.spec, bundle=digest_of(code)))
        book.keep_bundle(code, digest_of(code))
        record = book.new_job(job, name="job", now=1.0)
        record.life = Life(phase=Phase.DONE)
        book.save(record)
    assert book.bytes_of("ads") > 8 << 20
    assert size() > 8 << 20
    for record in list(book.jobs.values()):
        book.forget(record)
    assert book.bytes_of("ads") == 0
    for _ in range(20):
        book.give_back()
    assert size() < empty + (1 << 20)


def test_tenant_has_only_so_many_jobs_and_bytes(house: House) -> None:
    spec = house.spec
    tenants = (
        Tenant(id="ads", guaranteed=4, jobs=2),
        Tenant(id="web", guaranteed=4, code=20_000),
    )
    body = replace(spec, tenants=tenants)
    assert house.ask(ADMINISTRATOR, "PUT", "/v1/cluster", body)[0] == 200
    job_body = {"submission": msgspec.to_builtins(submission(tenant="ads"))}
    assert [house.ask(OWNER, "POST", "/v1/jobs", job_body)[0] for _ in range(3)] == [200, 200, 422]
    status, answer = house.ask(OWNER, "POST", "/v1/jobs", job_body)
    assert "2 unfinished jobs" in json.loads(answer)["got"]
    code = pack({"m.py": b"x = 1\n"})
    job = submission(tenant="web")
    job = replace(job, spec=replace(job.spec, bundle=digest_of(code)))
    other_body = {
        "submission": msgspec.to_builtins(job),
        "bundle": base64.b64encode(code).decode(),
    }
    # The second job has the code that the first one has, and another one would be too much.
    assert [house.ask(OTHER, "POST", "/v1/jobs", other_body)[0] for _ in range(2)] == [200, 200]
    other_code = pack({"m.py": b"x = 2\n"})
    job = replace(job, spec=replace(job.spec, bundle=digest_of(other_code)))
    other_body = {
        "submission": msgspec.to_builtins(job),
        "bundle": base64.b64encode(other_code).decode(),
    }
    status, answer = house.ask(OTHER, "POST", "/v1/jobs", other_body)
    assert status == 422
    assert "brim forget JOB gives room back" in json.loads(answer)["hint"]


def test_tenant_limits_are_read_from_the_file() -> None:
    entry = {"name": "ads", "jobs": 3, "code": "2MiB"}
    spec = cluster_spec({"nodes": [{"name": "n1", "workers": 4}], "tenants": [entry]})
    assert (spec.tenants[0].jobs, spec.tenants[0].code) == (3, 2 << 20)
    for odd in ({"jobs": 0}, {"code": "much"}):
        with pytest.raises(SpecError, match="tenant ads"):
            cluster_spec({"nodes": [{"name": "n1", "workers": 4}], "tenants": [entry | odd]})
    old = msgspec.json.decode(msgspec.json.encode(ClusterSpec(cluster=Cluster.parse("1x1"))))
    assert msgspec.convert(old, ClusterSpec).tenants == ()


# Keys ---------------------------------------------------------------------------------------------

_P256 = bytes.fromhex("06082a8648ce3d030107")  # the name of the curve, as keys have it
_NOBODY_KNOWS = bytes.fromhex("06082a8648ce3d03017f")


def changed(pem: bytes, kind: str) -> bytes:
    """The same with the name of an unknown curve."""
    lines = pem.decode().strip().splitlines()
    der = base64.b64decode("".join(lines[1:-1])).replace(_P256, _NOBODY_KNOWS)
    return (
        f"-----BEGIN {kind}-----\n{base64.b64encode(der).decode()}\n-----END {kind}-----\n".encode()
    )


def test_unknown_kind_of_key_is_a_declared_error() -> None:
    authority = Authority.make("cluster")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(ProtocolError):
        authority.sign(changed(request, "CERTIFICATE REQUEST"), Subject("cluster", "node", "n1"))
    private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    odd_key = changed(private_pem, "PRIVATE KEY") + authority.certificate
    odd_certificate = private_pem + changed(authority.certificate, "CERTIFICATE")
    for pem in (odd_key, odd_certificate):
        with pytest.raises(ValueError, match=r".+"):
            Authority.from_pem(pem)


# Threads ------------------------------------------------------------------------------------------


def test_stuck_tenant_leaves_threads_to_others() -> None:
    async def work() -> None:
        threads = TenantThreads("answers", of_caller=2, in_all=3, to_begin=0.2)
        release, beginning = threading.Event(), list[int]()

        def hang(number: int) -> None:
            beginning.append(number)
            release.wait(60.0)

        stuck = [asyncio.create_task(threads.run("ads", partial(hang, n))) for n in range(5)]
        async with asyncio.timeout(30.0):
            for _ in range(3):
                assert await threads.run("web", lambda: "here") == "here"
            with pytest.raises(EnvironmentFault, match="too many requests of ads wait"):
                await stuck[4]
            stuck[0].cancel()  # its thread goes on
            with pytest.raises(EnvironmentFault, match="too many requests of ads wait"):
                await threads.run("ads", lambda: None)
        until(lambda: len(beginning) >= 2, "two threads")
        assert sorted(beginning) == [0, 1]
        release.set()
        outcomes = await asyncio.gather(*stuck, return_exceptions=True)
        assert [outcome is None for outcome in outcomes] == [False, True, False, False, False]
        for _ in range(3):
            await threads.run("ads", lambda: None)

    asyncio.run(work())


def test_line_for_threads_of_all_has_a_deadline() -> None:
    async def work() -> None:
        threads = TenantThreads("answers", of_caller=1, in_all=2, to_begin=0.2)
        release = threading.Event()
        stuck = [
            asyncio.create_task(threads.run(name, lambda: release.wait(60.0))) for name in "ab"
        ]
        await asyncio.sleep(0)  # they begin
        async with asyncio.timeout(30.0):
            for _ in range(2):  # the first gives its place back
                with pytest.raises(NoThread, match="too many requests of all tenants wait for ans"):
                    await threads.run("web", lambda: None)
            waiting = asyncio.create_task(threads.run("web", lambda: None))
            await asyncio.sleep(0)
            waiting.cancel()  # so does one whose caller is gone
            release.set()
            assert await asyncio.gather(*stuck) == [True, True]
            assert await threads.run("web", lambda: "here") == "here"

    asyncio.run(work())


@pytest.fixture
def narrow_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A house with one thread for masters and one for files."""
    monkeypatch.chdir(tmp_path)
    few_threads = partial(TenantThreads, of_caller=1, in_all=1, to_begin=0.2)
    monkeypatch.setattr(api_module, "TenantThreads", few_threads)
    house = House(tmp_path)
    yield house
    house.close()


def jobs_of_two(house: House) -> tuple[str, str]:
    """Submit a job of the owner's tenant and one of another."""
    first, second = (
        house.client.submit(ask_for("1", tenant=tenant)).job for tenant in ("ads", "web")
    )
    return first, second


def test_full_line_is_answered_and_files_are_read(
    narrow_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stuck masters hold all threads for masters: others hear when to ask again, and read logs."""
    house = narrow_house
    release, beginning = threading.Event(), threading.Event()
    try:
        own_job, others_job = jobs_of_two(house)
        for job in (own_job, others_job):
            until(lambda job=job: house.client.job(job).workers == 1, "a worker")  # type: ignore[misc]

        def stacks_of(_: Path) -> dict[str, str]:
            beginning.set()
            release.wait(120.0)
            return {}

        monkeypatch.setattr(client_module, "stacks", stacks_of)
        with ThreadPoolExecutor(1) as people:
            stuck = people.submit(house.as_(OWNER).stacks, own_job)
            assert beginning.wait(60.0)
            answer, content = house.request(OTHER, "GET", f"/v1/jobs/{others_job}/stacks")
            assert (answer.status, answer.getheader("Retry-After")) == (503, "10")
            assert msgspec.json.decode(content)["detail"] == (
                "too many requests of all tenants wait for answers of their jobs: ask again in 10 s"
            )
            assert list(house.as_(OTHER).logs(others_job)) == []
            release.set()
            assert stuck.result(60.0) == []
    finally:
        release.set()


def test_follower_of_logs_is_told_why_it_waits(
    narrow_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a tenant hang, and hold all threads for files."""
    house = narrow_house
    release, beginning, notices = threading.Event(), threading.Event(), list[str]()
    try:
        own_job, others_job = jobs_of_two(house)

        def files_of(*_: object, **__: object) -> list[object]:
            beginning.set()
            release.wait(120.0)
            return []

        monkeypatch.setattr(api_module, "files_of", files_of)
        with ThreadPoolExecutor(2) as people:
            stuck = people.submit(house.as_(OWNER).files, own_job)
            assert beginning.wait(60.0)
            logs = house.as_(OTHER, notices.append).logs(others_job, follow=True)
            following = people.submit(list, logs)
            until(lambda: bool(notices), "a notice")
            assert notices[0] == (
                "too many requests of all tenants wait for files of their jobs: ask again in 10 s; "
                "waiting"
            )
            release.set()
            assert stuck.result(60.0) == []
            house.client.cancel(others_job)
            assert following.result(60.0) == []
    finally:
        release.set()


def test_stuck_masters_keep_no_stacks_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty questions about a job that hangs, and its logs: the other tenant has its answer."""
    monkeypatch.chdir(tmp_path)
    house = House(tmp_path)
    release = threading.Event()
    try:
        own_job, others_job = (
            house.client.submit(ask_for("1", tenant=tenant)).job for tenant in ("ads", "web")
        )
        for job in (own_job, others_job):
            until(lambda job=job: house.client.job(job).workers == 1, "a worker")  # type: ignore[misc]

        def stacks_of(run_dir: Path) -> dict[str, str]:
            if run_dir.name == own_job:
                release.wait(120.0)
            return {"w1": "in work"}

        monkeypatch.setattr(client_module, "stacks", stacks_of)
        with ThreadPoolExecutor(60) as people:
            stuck = [people.submit(house.as_(OWNER).stacks, own_job) for _ in range(60)]
            until(lambda: any(future.running() for future in stuck), "questions")
            (answer,) = house.as_(OTHER).stacks(others_job)
            assert answer.stack == "in work"
            assert list(house.as_(OTHER).logs(others_job)) == []
            (answer,) = house.client.stacks(others_job)
            assert not any(future.done() for future in stuck)
            release.set()
            assert [view.stack for future in stuck for view in future.result(60.0)]
    finally:
        release.set()


def test_listing_of_a_tenant_has_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entered = list[str]()

    class Counting(TenantTurns):
        def turn_of(self, caller: str) -> Any:
            entered.append(caller)
            return super().turn_of(caller)

    monkeypatch.setattr(api_module, "TenantTurns", Counting)
    house = House(tmp_path)
    try:
        house.as_(OWNER).jobs()
        house.as_(OWNER).news()
        house.client.jobs()
        assert entered == ["ads", "ads"]
    finally:
        house.close()
