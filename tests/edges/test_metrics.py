"""Metrics of a scheduler: real parsers read them, strangers and tenants do not, and their number is bounded."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from brim.scheduler import keys as keys_module
from brim.scheduler import loop
from brim.scheduler.keys import Keys
from brim.scheduler.metrics import metrics_of
from brim.storage.contact import read_scheduler_contact, token_of
from brim.telemetry.prometheus import (
    Histogram,
    MetricFamily,
    MetricSample,
    counter,
    in_open_text,
    in_text,
)
from e2e.running import until
from edges.test_scheduler import Served
from edges.test_tenants import House, job_of

BOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "scheduler.json"
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    house = House(tmp_path)
    yield house
    house.close()


def ask(
    served: Served, token: str, path: str = "/metrics", accept: str = ""
) -> tuple[int, str, str]:
    """Return status, content type and text."""
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    connection = http.client.HTTPConnection(contact.host, contact.port, timeout=30.0)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", path, headers=headers | ({"Accept": accept} if accept else {}))
    answer = connection.getresponse()
    try:
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def samples_of(families: Iterable[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_two_real_parsers_read_the_same_metrics(house: House) -> None:
    house.client.submit(job_of("ads"))
    until(lambda: house.client.job("job-1").workers == 2, "2 workers")
    house.client.submit(job_of("web"))
    house.client.cancel("job-2")
    until(lambda: house.client.job("job-2").state == "cancelled", "the end of job-2")
    token = (house.folder / "metrics-token").read_text()
    plain_status, plain_type, plain_text = ask(house, token)
    open_status, open_type, open_text = ask(house, token, accept=OPEN_METRICS)
    assert (plain_status, open_status) == (200, 200)
    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert open_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    plain, open_ = list(parse_prometheus(plain_text)), list(parse_open_metrics(open_text))
    assert [(family.name, family.type) for family in plain] == [
        (family.name, family.type) for family in open_
    ]
    assert {family.unit for family in open_ if family.name == "brim_cycle_seconds"} == {"seconds"}
    assert samples_of(plain).keys() == samples_of(open_).keys()
    found = {(name, *sorted(labels)): value for (name, labels), value in samples_of(plain).items()}
    ads, web = ("tenant", "ads"), ("tenant", "web")
    assert found["brim_devices",] == 8
    assert found["brim_devices_held",] == 2
    assert found["brim_scheduler_holding",] == 0
    assert found["brim_jobs", ("state", "running"), ads] == 1
    assert found["brim_jobs", ("state", "running"), web] == 0
    assert found["brim_ended_jobs_total", ("state", "cancelled"), web] == 1
    assert found["brim_tenant_devices_held", ads] == 2
    assert found["brim_job_workers", ("name", "job-1"), ads] == 2
    assert not [name for name, *labels in found if ("name", "job-2") in labels]


def test_metrics_are_for_the_administrator_and_monitors(house: House) -> None:
    house.client.submit(job_of("ads"))
    token = (house.folder / "metrics-token").read_text()
    assert (house.folder / "metrics-token").stat().st_mode & 0o777 == 0o600
    expected = {token: 200, token_of(house.folder): 200, "": 401, "0" * 32: 401}
    tenants = {house.tokens[caller]: status for caller, status in (("ads", 403), ("revoked", 401))}
    for shown, status in (expected | tenants).items():
        given, _, text = ask(house, shown)
        assert given == status, shown
        assert ("job-1" in text) == (status == 200)
        assert ("web" in text) == (status == 200)
    for path in ("/v1/jobs", "/v1/cluster", "/v1/tenants"):
        assert ask(house, token, path)[0] == 401, "it is good for nothing else"
    for path in ("/healthz", "/readyz"):
        assert ask(house, "", path)[::2] == (200, "ok\n")


def test_full_disks_take_no_metrics_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys_module, "metrics_token_of", full)
    keys = Keys(tmp_path, "fingerprint", tenants=list)
    assert keys.may_read_metrics(f"Bearer {token_of(tmp_path)}")
    assert not any(keys.may_read_metrics(header) for header in ("", "Bearer ", "Bearer x"))


def test_jobs_with_series_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MOST_JOBS", 2)
    for _ in range(4):
        house.client.submit(job_of("ads"))
    found = samples_of(parse_prometheus(ask(house, token_of(house.folder))[2]))
    assert sum(name == "brim_job_workers" for name, _ in found) == 2
    assert found["brim_jobs_without_series", frozenset()] == 2
    assert sum(value for (name, _), value in found.items() if name == "brim_jobs") == 4


def test_without_a_database_it_says_that_it_holds() -> None:
    text = in_open_text(metrics_of(None, holds=True))
    found = samples_of(parse_open_metrics(text))
    assert {name: value for (name, _), value in found.items()} == {
        "brim_build_info": 1,
        "brim_scheduler_holding": 1,
    }


def test_odd_label_values_survive_both_formats() -> None:
    odd = 'a "b"\\n\n{c="d"}, # é'
    times = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.5, 5.0):
        times.observe(seconds)
    families = [
        MetricFamily("jobs", "gauge", "Jobs, of a \\ and\na line.", [MetricSample(2, {"x": odd})]),
        counter("sent_total", "Sent.", 3),
        times.metric("wait_seconds", "Waits."),
    ]
    for found in (
        samples_of(parse_prometheus(in_text(families))),
        samples_of(parse_open_metrics(in_open_text(families))),
    ):
        assert found["jobs", frozenset({("x", odd)})] == 2
        assert found["sent_total", frozenset()] == 3
        assert found["wait_seconds_bucket", frozenset({("le", "+Inf")})] == 3


def test_board_asks_only_for_metrics_that_exist(house: House) -> None:
    house.client.submit(job_of("ads"))
    until(lambda: house.client.job("job-1").workers == 2, "2 workers")
    source = Path(loop.__file__).with_name("metrics.py").read_text()
    names = set(re.findall(r'"(brim_[a-z_]+)"', source))
    emitted = {family.name for family in parse_prometheus(ask(house, token_of(house.folder))[2])}
    assert emitted <= {name.removesuffix("_total") for name in names}
    queries = [
        target["expr"]
        for panel in json.loads(BOARD.read_text())["panels"]
        for target in panel["targets"]
    ]
    asked = {name for query in queries for name in re.findall(r"\bbrim_[a-z_]+", query)}
    assert asked
    assert {name.removesuffix("_bucket") for name in asked} <= names
    guide = (BOARD.parents[2] / "docs" / "guides" / "watching.md").read_text()
    missing = {name for name in names if name not in guide}
    assert missing == {"brim_tenant_devices_held", "brim_tenant_devices_borrowed"}, "as suffixes"
