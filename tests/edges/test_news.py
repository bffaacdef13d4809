"""Clients follow a cluster by its news: what has changed, what is planned, what a change would mean."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from brim.client import Client, TokenRefused
from brim.domain.cluster import Cluster
from brim.domain.resizing import OVERHEADS
from brim.domain.scaling import ScalingCurve
from brim.domain.schedule import JobState, Snapshot, Standing
from brim.domain.workload import Job
from brim.errors import SpecError
from brim.policies.cycle import cycle
from brim.scheduler.consequences import effects_of, with_proposal
from brim.scheduler.waiting import Waiting
from brim.storage.contact import read_scheduler_contact
from brim.user_code.policies import POLICIES
from brim.wire.cluster import Proposal
from e2e.running import until
from edges.test_scheduler import Served, ask, served

__all__ = ["served"]


def test_only_what_has_changed_is_told(served: Served) -> None:
    client = served.client
    first = client.news()
    assert (first.complete, first.tenant, first.forgotten) == (False, None, [])
    job = client.submit(ask("1:4")).job
    news = client.news(first.place, wait=20.0)
    assert news.complete
    assert [view.job for view in news.jobs] == [job]
    assert "submitted" in [change.event for change in news.changes if change.job == job]
    until(lambda: client.job(job).workers == 4, "4 workers")
    client.cancel(job)
    until(lambda: client.job(job).has_ended, "its end")
    at_rest = client.news(news.place)
    assert [view.state for view in at_rest.jobs] == ["cancelled"]
    assert client.news(at_rest.place).jobs == []
    client.forget(job)
    gone = client.news(at_rest.place, wait=20.0)
    assert (gone.jobs, gone.forgotten) == ([], [job])


def test_running_jobs_are_told_whatever_happens(served: Served) -> None:
    job = served.client.submit(ask("1:4")).job
    until(lambda: served.client.job(job).workers == 4, "4 workers")
    place = served.client.news().place
    assert [view.job for view in served.client.news(place, wait=0.1).jobs] == [job]


def test_news_wake_who_waits(served: Served) -> None:
    client = served.client
    place = client.news().place
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.news, place, wait=50.0)
        job = client.submit(ask("1:4")).job
        started = time.monotonic()
        assert job in [view.job for view in waiting.result(40.0).jobs]
        assert time.monotonic() - started < 20.0


@pytest.mark.parametrize("place", ["x.1.1", "x.1", "1", "..", "x.٣.1", "x.-1.1", "x." + "9" * 50])
def test_place_of_another_life_begins_anew(served: Served, place: str) -> None:
    assert not served.client.news(place).complete


def test_many_news_come_in_parts() -> None:
    waiting = Waiting()
    for k in range(7):
        waiting.ring(f"job-{k % 5}")  # 0 and 1 twice: the last time counts
    jobs, last = waiting.rung_after(0, limit=3)
    assert jobs == ["job-2", "job-3", "job-4"]
    assert waiting.rung_after(last, limit=3) == (["job-0", "job-1"], 7)
    assert waiting.rung_after(7, limit=3) == ([], 7)


def test_tenant_hears_of_its_own_jobs_alone(served: Served) -> None:
    contact = read_scheduler_contact(served.folder)
    assert contact is not None
    token = served.client.give_token("ads")
    tenant = Client(address=f"{contact.host}:{contact.port}", token=token)
    place = tenant.news().place
    own = served.client.submit(ask("1:2", tenant="ads")).job
    other = served.client.submit(ask("1:2", tenant="web")).job
    until(lambda: served.client.job(other).workers > 0, "workers")
    news = tenant.news(place)
    assert [view.job for view in news.jobs] == [own]
    assert {change.job for change in news.changes} == {own}
    assert (news.tenant, news.forgotten) == ("ads", [])
    assert {view.tenant for view in news.tenants} >= {"ads", "web"}
    assert {change.job for change in tenant.plan()} <= {own}
    with pytest.raises(SpecError, match="the id of a job"):
        tenant.consequences(Proposal(action="cancel", job=other))
    with pytest.raises(SpecError, match="administrator's"):
        tenant.consequences(Proposal(action="drain", node="node0"))
    assert {effect.job for effect in tenant.consequences(Proposal(action="cancel", job=own))} <= {
        own,
        "tenant web",
    }
    served.client.revoke_token("ads")
    with pytest.raises(TokenRefused):
        tenant.news(place)


def test_forecast_of_a_live_cluster_changes_nothing(served: Served) -> None:
    client = served.client
    first = client.submit(ask("1:8", tenant="ads")).job
    second = client.submit(ask("8", tenant="ads")).job
    until(lambda: client.job(first).workers > 0, "workers")
    before = client.job(first)
    for action in ("suspend", "cancel", "resume"):
        client.consequences(Proposal(action=action, job=first))
    effects = client.consequences(Proposal(action="suspend", job=first))
    assert {effect.job: effect.workers_after for effect in effects}[first] == 0
    assert second in {effect.job for effect in effects}  # it needs all eight
    effects = client.consequences(Proposal(action="drain", node="node0"))
    assert {effect.workers_after for effect in effects} == {0}
    client.drain("node0")
    until(lambda: client.job(first).workers == 0, "an empty node")
    effects = client.consequences(Proposal(action="undrain", node="node0"))
    assert sum(effect.workers_after for effect in effects) > 0
    client.drain("node0", undo=True)
    assert (before.wish, client.job(first).wish) == ("run", "run")
    with pytest.raises(SpecError, match="node of this cluster"):
        client.consequences(Proposal(action="drain", node="bogus"))
    with pytest.raises(SpecError, match="minimum"):
        client.consequences(Proposal(action="resize", job=first, minimum=4, maximum=2))


# Consequences, on snapshots -----------------------------------------------------------------------------

LINEAR = ScalingCurve(points=((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0)))


def snapshot_of(*ids: str) -> Snapshot:
    """Jobs of 800 steps, the first of which has all eight devices."""
    states = [
        JobState(
            Job(id=id, submitted=float(k), work=800.0, curve=LINEAR),
            800.0,
            workers=8 if k == 0 else 0,
            standing=Standing.BEST_EFFORT,
        )
        for k, id in enumerate(ids)
    ]
    return Snapshot(
        now=0.0, cluster=Cluster.parse("2x4"), capacity=8, jobs=tuple(states), overheads=OVERHEADS["none"]
    )  # fmt: skip


WISHES = [
    (Proposal(action="cancel", job="a"), {"a": 0}, {"b": 8}),
    (Proposal(action="suspend", job="b"), {"b": 0}, {}),
    (Proposal(action="resize", job="a", minimum=1, maximum=2), {}, {"a": 2}),
    (Proposal(action="drain", node="node0"), {}, {"a": 4, "b": 0}),
]


@pytest.mark.parametrize(("wish", "gone", "workers"), WISHES)
def test_forecast_compares_the_plans(
    wish: Proposal, gone: dict[str, int], workers: dict[str, int]
) -> None:
    decide = partial(cycle, policy=POLICIES["brim"], placed=False)
    before = snapshot_of("a", "b")
    after = with_proposal(before, wish, nodes=before.cluster)
    found = {effect.job: effect for effect in effects_of(before, after, decide)}
    assert {job: found[job].workers_after for job in gone} == gone
    assert [found[job].finish_after for job in gone] == [None] * len(gone)
    for job, count in workers.items():
        assert found[job].workers_after == count
        assert found[job].finish_after != found[job].finish


def test_drained_node_is_given_back() -> None:
    before = snapshot_of("a")
    cluster = before.cluster
    drained = with_proposal(before, Proposal(action="drain", node="node1"), nodes=cluster)
    assert drained.capacity == 4
    again = with_proposal(drained, Proposal(action="undrain", node="node1"), nodes=cluster)
    assert (again.capacity, again.cluster) == (8, cluster)
