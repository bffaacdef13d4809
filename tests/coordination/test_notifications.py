"""Of which events people are notified, on which channels, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from brim.coordination.cluster.reconcile import Suspend
from brim.coordination.cluster.scheduled_jobs import (
    Answered,
    Decided,
    Drained,
    Foretold,
    Looked,
    Notify,
    Wished,
)
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.channels import (
    Channel,
    Notification,
    Occasion,
    Subscription,
    Webhook,
    check_subscriptions,
    parse_subscription,
)
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.lifecycle import Happening
from brim.domain.measuring import Measured
from brim.domain.schedule import Admitted, Decision, Reason, Verdict
from brim.domain.tenancy import Tenant
from brim.errors import SpecError
from brim.scheduler.cluster_file import cluster_spec
from coordination.scheduled import Transcript

NODE = "node0"
UP = {NODE: NodeSeen(up=True)}
HOOK = Webhook(url="https://hooks.example.com/brim")
TENANTS = (Tenant(id="ads"), Tenant(id="web"))


def channel(name: str = "all", *events: Occasion, **fields: Any) -> Channel:
    return Channel(name=name, events=events, **{"webhook": HOOK, **fields})


ALL = channel("all", *Occasion)


def told(jobs: Transcript) -> list[tuple[str, str, str]]:
    """The notifications that the last event caused: channel, job and event."""
    return [
        (command.channel, command.notification.job, command.notification.event.value)
        for command in jobs.commands
        if isinstance(command, Notify)
    ]


def decide(jobs: Transcript, now: float, *verdicts: Verdict, **workers: int) -> None:
    counts = {name.replace("_", "-"): count for name, count in workers.items()}
    nodes = {job: {NODE: count} for job, count in counts.items() if count}
    jobs.hear(Decided(Decision(workers=counts, nodes=nodes, verdicts=verdicts)), now)


def look(jobs: Transcript, now: float, seen: Mapping[str, Seen] | None = None) -> None:
    jobs.hear(Looked(UP, seen or {}), now)


def running(step: int = 1, **fields: Any) -> Seen:
    workers = {NODE: 2}
    return Seen(alive=True, workers=workers, agents=frozenset({NODE}), step=step, **fields)


def with_a_running_job(*channels: Channel, **fields: Any) -> Transcript:
    jobs = Transcript(channels=channels or (ALL,), tenants=TENANTS)
    jobs.submit(**{"tenant": "ads", **fields})
    decide(jobs, 0.0, job_1=2)
    look(jobs, 0.0)
    look(jobs, 1.0, {"job-1": running()})
    return jobs


@pytest.mark.parametrize(
    ("seen", "event"),
    [
        (Seen(alive=False, outcome="done", step=9), ["done"]),
        (Seen(alive=False, outcome="failed", who="user", problem="exit 1"), ["failed"]),
        (Seen(alive=False, step=5), []),  # its processes died: it is started again
    ],
)
def test_ends_are_told_once(seen: Seen, event: list[str]) -> None:
    jobs = with_a_running_job()
    look(jobs, 2.0, {"job-1": seen})
    assert told(jobs) == [("all", "job-1", each) for each in event]
    look(jobs, 3.0)
    assert told(jobs) == []


def test_reason_and_progress_come_with_a_failure() -> None:
    jobs = with_a_running_job()
    seen = Seen(alive=False, outcome="failed", who="user", problem="exit 1", step=7, steps=20)
    look(jobs, 2.0, {"job-1": seen})
    (command,) = (each for each in jobs.commands if isinstance(each, Notify))
    assert command.notification == Notification(
        id="job-1/failed/2.000", event=Occasion.FAILED, at=2.0, job="job-1", tenant="ads",
        detail="exit 1", deadline=None, finish=2.0, step=7, steps=20,
    )  # fmt: skip


def test_retries_are_no_failures() -> None:
    jobs = with_a_running_job(retries=1)
    look(jobs, 2.0, {"job-1": Seen(alive=False, outcome="failed", who="user")})
    assert told(jobs) == []


def test_a_job_that_gives_way_is_preempted() -> None:
    jobs = with_a_running_job()
    decide(jobs, 2.0)
    look(jobs, 2.0, {"job-1": running(2)})
    jobs.hear(Answered(Suspend("job-1")), 2.1)
    look(jobs, 2.2, {"job-1": Seen(alive=False, step=2)})
    assert told(jobs) == [("all", "job-1", "preempted")]


def test_preemptions_have_the_reason_of_the_plan() -> None:
    jobs = with_a_running_job()
    drained = Reason.NODE_DRAINED, "node0 is drained"
    jobs.hear(Decided(Decision(workers={}, reasons={"job-1": drained})), 2.0)
    look(jobs, 2.0, {"job-1": running(2)})
    jobs.hear(Answered(Suspend("job-1")), 2.1)
    look(jobs, 2.2, {"job-1": Seen(alive=False, step=2)})
    (command,) = (command for command in jobs.commands if isinstance(command, Notify))
    assert command.notification.detail == "node0 is drained"


@pytest.mark.parametrize("wish", ["hold", "drain"])
def test_wished_pauses_are_not_preemptions(wish: str) -> None:
    jobs = with_a_running_job()
    jobs.hear(Drained(kill=False) if wish == "drain" else Wished("job-1", Happening.HOLD), 2.0)
    decide(jobs, 2.0)
    look(jobs, 2.0, {"job-1": running(2)})
    jobs.hear(Answered(Suspend("job-1")), 2.1)
    look(jobs, 2.2, {"job-1": Seen(alive=False, step=2)})
    assert "job-1 suspended" in jobs.story
    assert told(jobs) == []


def test_promise_and_its_risk_are_told_once() -> None:
    jobs = with_a_running_job(deadline=100.0)
    promise = Admitted(job="job-1", reason=Reason.FITS, finish=90.0, detail="90 s")
    decide(jobs, 2.0, promise, job_1=2)
    assert told(jobs) == [("all", "job-1", "promised")]
    measured = Measured({2: (20.0, 2.0)})
    look(jobs, 3.0, {"job-1": running(20, steps=1000, measured=measured, first_step=1.0)})
    for end, expected in ((99.0, []), (112.0, ["at-risk"]), (98.0, []), (113.0, [])):
        jobs.hear(Foretold({"job-1": end}, 4.0), 4.0)
        assert told(jobs) == [("all", "job-1", each) for each in expected], end
    assert jobs.story.count("job-1 at risk") == 1


def test_jobs_without_promises_are_never_at_risk() -> None:
    jobs = with_a_running_job(deadline=100.0)
    measured = Measured({2: (20.0, 2.0)})
    look(jobs, 3.0, {"job-1": running(20, steps=1000, measured=measured, first_step=1.0)})
    jobs.hear(Foretold({"job-1": 300.0}, 4.0), 4.0)
    assert told(jobs) == []


def test_channels_are_chosen_by_event_tenant_and_job() -> None:
    channels = (
        channel("ends", Occasion.DONE, Occasion.FAILED),
        channel("webs", *Occasion, tenants=("web",)),
        channel("named"),
        channel("unnamed"),
    )
    wishes = tuple(map(parse_subscription, ("named:done", "ends", "webs", "gone")))
    jobs = with_a_running_job(*channels, notify=wishes)
    look(jobs, 2.0, {"job-1": Seen(alive=False, outcome="done")})
    assert [name for name, *_ in told(jobs)] == ["ends", "named"]


def test_subscriptions_name_channels_of_their_tenant() -> None:
    channels = (channel("webs", tenants=("web",)), channel("mail"))
    check_subscriptions([Subscription(channel="webs")], channels, tenant="web")
    for name in ("webs", "mial", "https://169.254.169.254/", "file:/etc/shadow"):
        with pytest.raises(SpecError) as refused:
            check_subscriptions([Subscription(channel=name)], channels, tenant="ads")
        assert (refused.value.field, refused.value.hint) == (
            "--notify", "did you mean 'mail'?" if name == "mial" else "known: mail",
        )  # fmt: skip
    for text in ("", ":done", "mail:", "mail:dnoe", "mail:done,done"):
        with pytest.raises(SpecError, match="--notify"):
            parse_subscription(text)


SAFE = {"to": ["a@b.example"], "from": "brim@b.example", "server": "localhost:25"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "0 of them"),
        ({"webhook": {"url": "https://h/"}, "command": ["/bin/true"]}, "2 of them"),
        ({"webhook": {"url": "ftp://h/"}}, "url"),
        ({"webhook": {"url": "http://h:70000/"}}, "url"),
        ({"webhook": {"url": "https://user:hunter2@h/"}}, "without user and password"),
        ({"webhook": {"url": "https://h/\r\nHost: evil"}}, "url"),
        ({"webhook": {"url": "https://h/", "token": "hunter2"}}, "file:/PATH"),
        ({"command": ["page"]}, "absolute path"),
        ({"command": "page"}, "command"),
        ({"mail": SAFE | {"to": ["a@b.example\nBcc: x@y.example"]}}, "addresses"),
        ({"mail": SAFE | {"from": "A <a@b.example>"}}, "addresses"),
        ({"mail": SAFE | {"to": []}}, "no address"),
        ({"mail": SAFE | {"server": "localhost"}}, "HOST:PORT"),
        ({"mail": SAFE | {"user": "brim"}}, "user and password"),
        ({"mail": SAFE | {"user": "brim", "password": "hunter2"}}, "file:/PATH"),
        (
            {"mail": SAFE | {"user": "u", "password": "file:/p", "security": "none"}},
            "read the password",
        ),
        ({"command": ["/bin/true"], "tenants": ["nobody"]}, "tenants of this cluster"),
        ({"command": ["/bin/true"], "events": ["ended"]}, "events"),
    ],
)
def test_bad_channels_are_refused_and_secrets_not_shown(
    fields: dict[str, Any], problem: str
) -> None:
    content = {"nodes": [{"name": "n1", "workers": 1}], "notify": [{"name": "x", **fields}]}
    with pytest.raises(SpecError, match=problem) as refused:
        cluster_spec(content, name="cluster.yaml")
    assert str(refused.value).startswith("cluster.yaml: notify")
    assert "hunter2" not in str(refused.value)


def test_channels_of_the_guide_are_good() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "watching.md"
    example = re.search(r"```yaml\n(notify:.*?)```", guide.read_text(), re.DOTALL)
    assert example is not None
    tenants = [{"name": "ads"}]
    content = {"nodes": [{"name": "n1", "workers": 1}], "tenants": tenants}
    spec = cluster_spec(content | yaml.safe_load(example[1]))
    assert [each.name for each in spec.channels] == ["oncall", "mail", "pager"]
    assert spec.channels[0].events == (Occasion.AT_RISK, Occasion.FAILED)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ClusterSpec) == spec


def test_channel_names_are_unique() -> None:
    with pytest.raises(SpecError, match="'all' twice"):
        ClusterSpec(cluster=Cluster.parse("1x1"), channels=(ALL, ALL))
