"""A tenant's token is good for the tenant's jobs; each act, its actor and its origin are on record."""

from __future__ import annotations

import asyncio
import http.client
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.client import Client
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.job import WorkerRange
from brim.domain.rights import RIGHTS, Caller
from brim.domain.tenancy import Tenant
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import VirtualClock
from brim.scheduler.api import openapi
from brim.scheduler.audit import AUDIT, Audit
from brim.storage.contact import read_scheduler_contact, token_of
from brim.wire.cluster import Down, Input, Proposal, Range, Submit, Window
from brim.wire.door import Door
from e2e.running import until
from edges.test_scheduler import TENANTS, Served
from submissions import submission

CLUSTER = ClusterSpec(cluster=Cluster.parse("1x8"), tenants=TENANTS)
NOBODY, WRONG, REVOKED, ADMINISTRATOR, OWNER, OTHER = (
    "nobody",
    "wrong",
    "revoked",
    "administrator",
    "ads",
    "web",
)
CALLERS = (NOBODY, WRONG, REVOKED, ADMINISTRATOR, OWNER, OTHER)


def job_of(tenant: str, *, key: str = "") -> Submit:
    return Submit(submission=submission("1:2", tenant=tenant), name="job", key=key)


# (method, path, body): status for the administrator, for tenant ads, for tenant web. job-1 is of
# ads.
TABLE: dict[tuple[str, str], tuple[Any, int, int, int]] = {
    ("GET", "/v1/cluster"): (None, 200, 200, 200),
    ("PUT", "/v1/cluster"): (CLUSTER, 200, 403, 403),
    ("GET", "/v1/news"): (None, 200, 200, 200),
    ("GET", "/v1/plan"): (None, 200, 200, 200),
    ("GET", "/v1/nodes"): (None, 200, 200, 200),
    ("POST", "/v1/nodes/{node}/drain"): (None, 200, 403, 403),
    ("POST", "/v1/nodes/{node}/undrain"): (None, 200, 403, 403),
    ("GET", "/v1/tenants"): (None, 200, 200, 200),
    ("GET", "/v1/usage"): (None, 200, 200, 200),
    ("POST", "/v1/tenants/{tenant}/token"): (None, 200, 403, 403),
    ("DELETE", "/v1/tenants/{tenant}/token"): (None, 200, 403, 403),
    ("GET", "/v1/jobs"): (None, 200, 200, 200),
    ("POST", "/v1/jobs"): (job_of("ads"), 200, 200, 403),
    ("POST", "/v1/forecast"): (job_of("ads"), 200, 200, 403),
    ("POST", "/v1/consequences"): (Proposal(action="suspend", job="job-1"), 200, 200, 404),
    ("GET", "/v1/jobs/{job}"): (None, 200, 200, 404),
    ("GET", "/v1/jobs/{job}/explain"): (None, 200, 200, 404),
    ("GET", "/v1/jobs/{job}/logs"): (None, 200, 200, 404),
    ("GET", "/v1/jobs/{job}/stacks"): (None, 409, 409, 404),  # it does not run
    ("GET", "/v1/jobs/{job}/files"): (None, 200, 200, 404),
    ("GET", "/v1/jobs/{job}/files/{name}"): (None, 404, 404, 404),
    # It has no terminal; the owner's words make no sense.
    ("POST", "/v1/jobs/{job}/terminal"): (Window(rows=24, columns=80), 422, 400, 404),
    ("POST", "/v1/jobs/{job}/terminal/{terminal}"): (Input(), 422, 400, 404),
    ("POST", "/v1/jobs/{job}/resize"): (Range(minimum=1, maximum=3), 200, 200, 404),
    ("POST", "/v1/jobs/{job}/suspend"): (None, 200, 200, 404),
    ("POST", "/v1/jobs/{job}/resume"): (None, 200, 200, 404),
    ("DELETE", "/v1/jobs/{job}"): (None, 409, 409, 404),  # it has not ended
    ("POST", "/v1/jobs/{job}/any-kind"): (None, 200, 200, 404),
    ("POST", "/v1/jobs/{job}/restart"): (None, 422, 422, 404),
    ("POST", "/v1/jobs/{job}/cancel"): (None, 200, 200, 404),
    ("POST", "/v1/down"): (Down(), 200, 403, 403),
}


class House(Served):
    """A scheduler with tenants, two of which have tokens, and a third had one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        revoked = self.client.give_token("ads")
        self.tokens = {
            NOBODY: "",
            WRONG: "0" * 32,
            REVOKED: revoked,
            ADMINISTRATOR: token_of(folder),
            OWNER: self.client.give_token("ads"),
            OTHER: self.client.give_token("web"),
        }

    def as_(self, caller: str, notice: Callable[[str], None] | None = None) -> Client:
        contact = read_scheduler_contact(self.folder)
        assert contact is not None
        address = f"{contact.host}:{contact.port}"
        return Client(address=address, token=self.tokens[caller], notice=notice)

    def ask(self, caller: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        answer, content = self.request(caller, method, path, body)
        return answer.status, content

    def request(
        self, caller: str, method: str, path: str, body: Any = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        contact = read_scheduler_contact(self.folder)
        assert contact is not None
        connection = http.client.HTTPConnection(contact.host, contact.port, timeout=30.0)
        headers = {"Authorization": f"Bearer {self.tokens[caller]}"} if caller != NOBODY else {}
        connection.request(
            method, path, msgspec.json.encode(body) if body is not None else None, headers
        )
        answer = connection.getresponse()
        try:
            return answer, answer.read()
        finally:
            connection.close()

    @property
    def audited(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(line) for line in (self.folder / AUDIT).read_bytes().splitlines()
        ]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    house = House(tmp_path)
    yield house
    house.close()


def brim(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words], catch_exceptions=False)


def test_the_table_has_every_call() -> None:
    paths = openapi()["paths"]
    assert TABLE.keys() == {
        (method.upper(), path) for path, methods in paths.items() for method in methods
    }


def test_the_whole_table(house: House) -> None:
    """Each call by each caller: the body that a caller without the right sends is not
    even decoded.
    """
    house.client.submit(job_of("ads"))
    calls = sorted(TABLE.items(), key=lambda call: call[0][1] == "/v1/down")  # that one comes last
    for (call, (body, *expected)), caller in itertools.product(calls, CALLERS):
        if call[1] == "/v1/down" and caller == ADMINISTRATOR:
            continue  # the fixture's end
        method, path = (
            call[0],
            call[1].format(
                job="job-1", tenant="nightly", name="job.json", node="node0", terminal="t"
            ),
        )
        if path.endswith("/token") and method == "POST":
            path = path.replace("nightly", "ads" if caller != ADMINISTRATOR else "batch")
            expected = [
                422,
                *expected[1:],
            ]  # there is no tenant batch: the others keep their tokens
        statuses = {ADMINISTRATOR: expected[0], OWNER: expected[1], OTHER: expected[2]}
        right = statuses.get(caller, 401)
        sent = body if caller != OWNER or right == 200 else {"nonsense": 1}
        status, answer = house.ask(caller, method, path, sent)
        if path.endswith("cancel") and caller == OWNER:
            assert status == 200, "once is as good as twice"
            continue
        if call[1].endswith(("resize", "suspend", "resume", "any-kind")) and status == 409:
            continue  # it has ended
        assert status == right, (caller, method, path, answer)
    until(lambda: house.client.job("job-1").state == "cancelled", "the end of its workers")


def test_to_others_a_job_does_not_exist(house: House) -> None:
    house.client.submit(job_of("ads"))
    other_owner = house.as_(OTHER)
    own_job = other_owner.submit(job_of("web"))
    assert [view.job for view in other_owner.jobs()] == [own_job.job]
    assert [view.job for view in house.client.jobs()] == ["job-1", own_job.job]
    for job_id in ("job-1", "job-99"):
        with pytest.raises(SpecError) as hidden:
            other_owner.cancel(job_id)
        assert (hidden.value.field, hidden.value.got) == ("JOB", repr(job_id))
        assert "job-1'" not in hidden.value.hint
    assert house.client.job("job-1").wish == "run"


def test_a_forecast_names_no_job_of_others(house: House) -> None:
    house.client.submit(Submit(submission=submission("8", tenant="ads"), name="job"))
    taking = Submit(submission=submission("4", tenant="web"), name="job")
    while not house.as_(OTHER).forecast(taking).takes:
        pass
    assert house.as_(OTHER).forecast(taking).takes.keys() == {"tenant ads"}
    assert house.client.forecast(taking).takes.keys() == {"job-1"}


def test_a_token_says_whose_job_it_is(house: House) -> None:
    assert house.as_(OWNER).submit(job_of("default")).tenant == "ads"
    with pytest.raises(
        SpecError, match="that of tenant ads, which may not submit jobs of this tenant"
    ):
        house.as_(OWNER).submit(job_of("web"))


def test_keys_are_each_tenants_own(house: House) -> None:
    first = house.as_(OWNER).submit(job_of("ads", key="nightly"))
    second = house.as_(OTHER).submit(job_of("web", key="nightly"))
    assert first.job != second.job
    assert house.as_(OWNER).submit(job_of("ads", key="nightly")).job == first.job


def test_the_story_says_who_and_from_where(house: House) -> None:
    owner = house.as_(OWNER)
    job = owner.submit(job_of("ads")).job
    owner.resize(job, WorkerRange(minimum=1, maximum=3))
    owner.suspend(job)
    house.client.resume(job)
    owner.cancel(job)
    details = {line.event: line.detail for line in owner.explain(job)}
    owners, administrators = "by ads from 127.0.0.1", "by the administrator from 127.0.0.1"
    expected_details = {
        "submitted": owners,
        "resized": f"may have 1:3 workers, {owners}",
        "hold": owners,
        "release": administrators,
        # One that has processes ends when they have.
        "cancel" if "cancel" in details else "cancelled": owners,
    }
    assert details | expected_details == details
    house.client.apply(CLUSTER)

    async def cluster_story() -> list[str]:
        return [line.detail for line in house.book.cluster_story() if line.event == "apply"]

    applied = asyncio.run_coroutine_threadsafe(cluster_story(), house.loop).result(60.0)
    assert applied == [f"8 devices, policy brim, {administrators}"]


def test_the_audit_log(house: House) -> None:
    lines_before = len(house.audited)
    job = house.as_(OWNER).submit(job_of("ads")).job
    house.as_(OWNER).jobs()
    with pytest.raises(SpecError):
        list(house.as_(OTHER).logs(job))
    with pytest.raises(SpecError):
        house.as_(OTHER).cancel(job)
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match="wrong or missing token"):
            house.as_(WRONG).jobs()
    lines = [
        (line["who"], line["request"], line["status"]) for line in house.audited[lines_before:]
    ]
    assert lines == [
        ("ads", "POST /v1/jobs", 200),
        ("web", f"GET /v1/jobs/{job}/logs", 404),
        ("web", f"POST /v1/jobs/{job}/cancel", 404),
        ("", "GET /v1/jobs", 401),
    ]
    assert {line["origin"] for line in house.audited} == {"127.0.0.1"}
    assert (house.folder / AUDIT).stat().st_mode & 0o777 == 0o600


def test_strangers_do_not_fill_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock(100.0)
    audit = Audit(tmp_path, clock)
    for _ in range(1000):
        audit.note_stranger("10.0.0.9", "GET /")
    clock.advance(61.0)
    audit.note_stranger("10.0.0.9", "GET /")
    lines = [msgspec.json.decode(line) for line in (tmp_path / AUDIT).read_bytes().splitlines()]
    assert [line["times"] for line in lines] == [1, 1000]
    monkeypatch.setattr("brim.scheduler.audit._MAX_LOG_BYTES", 1000)
    for _ in range(40):
        audit.note(Caller(tenant="ads", origin="10.0.0.3"), "POST /v1/jobs", 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.1.jsonl", AUDIT]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500


def test_a_token_is_given_used_and_revoked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    state, file = str(house.folder), house.folder / "ads.token"
    assert brim("token", "ads", "--output", str(file), "--state", state).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert (
        brim("token", "ads", "--output", str(file), "--state", state).exit_code == 2
    )  # it is there
    contact = read_scheduler_contact(house.folder)
    assert contact is not None
    monkeypatch.setenv("BRIM_HOME", state)  # a server comes first
    monkeypatch.setenv("BRIM_SERVER", f"{contact.host}:{contact.port}")
    monkeypatch.setenv("BRIM_TOKEN_FILE", str(file))
    house.client.submit(job_of("web"))
    assert house.as_(OWNER)  # its token was replaced by the one in the file
    with pytest.raises(EnvironmentFault, match="wrong or missing token"):
        house.as_(OWNER).jobs()
    assert msgspec.json.decode(brim("jobs", "--json").stdout)["jobs"] == []
    refused = brim("token", "web")
    assert refused.exit_code == 2
    assert "that of tenant ads, which may not give or revoke tokens" in refused.stderr
    assert brim("token", "ads", "--revoke", "--state", state).exit_code == 0
    for words in ("jobs", "status job-1", "logs job-1"):
        refused = brim(*words.split())
        assert refused.exit_code == 1
        assert "wrong or missing token" in refused.stderr
    monkeypatch.delenv("BRIM_TOKEN_FILE")
    monkeypatch.setenv("BRIM_TOKEN", brim("token", "web", "--state", state).stdout.strip())
    assert [job["job"] for job in msgspec.json.decode(brim("jobs", "--json").stdout)["jobs"]] == [
        "job-1"
    ]


def test_a_token_file_is_for_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_SERVER", "127.0.0.1:1")
    with pytest.raises(SpecError, match="BRIM_TOKEN_FILE: got nothing, need a token"):
        Client()
    file = tmp_path / "token"
    monkeypatch.setenv("BRIM_TOKEN_FILE", str(file))
    with pytest.raises(SpecError, match="No such file"):
        Client()
    file.write_text("secret\n")
    file.chmod(0o640)
    with pytest.raises(SpecError, match=r"mode 640[^\0]*hint: chmod 600"):
        Client()


def test_tokens_outlive_the_scheduler_and_not_the_tenant(house: House) -> None:
    tokens_before = (house.folder / "tenant-tokens.json").read_bytes()
    assert not any(token.encode() in tokens_before for token in house.tokens.values() if token)
    house.client.apply(
        ClusterSpec(cluster=Cluster.parse("1x8"), tenants=(Tenant(id="ads", guaranteed=4),))
    )
    assert house.ask(OTHER, "GET", "/v1/cluster")[0] == 401
    assert house.ask(OWNER, "GET", "/v1/cluster")[0] == 200
    with pytest.raises(SpecError, match="need a tenant of this cluster"):
        house.client.give_token("web")


def test_a_tenant_cannot_take_all_the_room() -> None:
    door = Door(guests=4)

    class Connection:
        cycle = None

        def __init__(self, port: int) -> None:
            self.client = ("127.0.0.1", port)

    async def crowd() -> list[bool]:
        connections = [Connection(port) for port in range(6)]
        for connection in connections:
            door.opened(connection)  # type: ignore[arg-type]
        served = [
            door.admit(connection.client, "ads", all_room=False) for connection in connections[:3]
        ]
        served += [door.admit(connections[3].client, "web", all_room=False)]
        served += [door.admit(connections[4].client, "the administrator", all_room=True)]
        served += [door.admit(connections[5].client, "the administrator", all_room=True)]
        for connection in connections:
            door.closed(connection)  # type: ignore[arg-type]
        return [*served, door.admit(("127.0.0.1", 9), "ads", all_room=False)]

    assert asyncio.run(crowd()) == [True, True, False, True, True, False, True]


def test_every_right_is_in_the_table() -> None:
    assert set(RIGHTS) == set(type(next(iter(RIGHTS))))
