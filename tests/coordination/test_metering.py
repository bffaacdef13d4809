"""Device-seconds by month: used, owned, borrowed and lent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.coordination.cluster.metering import Charge
from brim.coordination.cluster.scheduled_jobs import Decided, Described, Looked, ScheduledJobs
from brim.coordination.cluster.sightings import NodeSeen, Seen
from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.course import Change
from brim.domain.schedule import Decision
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse, bounds_of, by_month, month_of, parse_month, shares_of
from brim.errors import SpecError
from coordination.scheduled import Transcript

NODE = "node0"
TENANTS = (Tenant(id="ads", guaranteed=4), Tenant(id="web", guaranteed=4))
NOVEMBER, DECEMBER = bounds_of("2026-11")


class Metered(Transcript):
    """An automaton of which the usage is added up."""

    def __init__(self) -> None:
        super().__init__(tenants=TENANTS)
        self.used: dict[tuple[str, str], float] = {}  # by month and job
        self.shares: dict[str, Counter[str]] = {}
        self.charges = 0
        self.counted: float | None = None
        self.recent: RecentUse | None = None

    def decide(self, now: float, **workers: int) -> None:
        counts = {name.replace("_", "-"): count for name, count in workers.items()}
        nodes = {job: {NODE: count} for job, count in counts.items() if count}
        self.hear(Decided(Decision(workers=counts, nodes=nodes)), now)

    def look(self, now: float, set_by: float = 0.0, **jobs: int | Seen) -> None:
        """Look at jobs that are alive with so many workers, or are as given."""
        seen = {
            name.replace("_", "-"): value
            if isinstance(value, Seen)
            else Seen(alive=True, workers={NODE: value}, agents=frozenset({NODE}), step=1)
            for name, value in jobs.items()
        }
        self.hear(Looked({NODE: NodeSeen(up=True)}, seen, set_by=set_by), now)
        for charge in self.commands:
            if isinstance(charge, Charge):
                self.charges += 1
                self.counted = charge.counted
                self.recent = charge.recent
                for (month, _, _, job), seconds in charge.used.items():
                    self.used[month, job] = self.used.get((month, job), 0.0) + seconds
                for (_, tenant), shares in charge.shares.items():
                    total = self.shares.setdefault(tenant, Counter())
                    total.update(shares._asdict())

    def restart(self) -> None:
        """A new scheduler goes on with what was written down."""
        self.jobs = ScheduledJobs(
            self.jobs.jobs.values(),
            self.jobs.spec,
            self.lessons,
            counted=self.counted,
            recent=self.recent,
        )


def running(start: float = NOVEMBER) -> Metered:
    """job-1 of ads has 6 of 8 workers from its start on."""
    jobs = Metered()
    jobs.look(start)
    jobs.submit(tenant="ads", at=start)
    jobs.decide(start, job_1=6)
    jobs.look(start)
    return jobs


def test_devices_are_counted_while_they_are_held() -> None:
    jobs = running()
    for seconds in range(1, 101):
        jobs.look(NOVEMBER + seconds, job_1=6)
    jobs.look(NOVEMBER + 101.0, job_1=Seen(alive=False, outcome="done", step=9))
    assert jobs.used == {("2026-11", "job-1"): 606.0}
    assert jobs.charges == 3, "at the beginning, after a minute, and at an end"
    jobs.look(NOVEMBER + 500.0)
    assert jobs.used == {("2026-11", "job-1"): 606.0}
    assert jobs.shares["ads"] == {"owned": 2000.0, "borrowed": 202.0, "lent": 0.0}
    assert jobs.shares["web"] == {"owned": 2000.0, "borrowed": 0.0, "lent": 202.0}


def test_a_job_across_midnight_is_in_both_months() -> None:
    jobs = running(DECEMBER - 20.0)
    jobs.look(DECEMBER - 10.0, job_1=6)
    jobs.look(DECEMBER + 30.0, job_1=6)
    jobs.look(DECEMBER + 31.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 120.0, ("2026-12", "job-1"): 186.0}


def test_months_follow_the_hosts_clock() -> None:
    metered, start, ahead = Metered(), NOVEMBER + 10.0, DECEMBER - NOVEMBER
    metered.submit(tenant="ads")
    metered.look(start)
    metered.decide(start, job_1=2)
    metered.look(start)
    metered.look(start + 10.0, job_1=2)
    metered.look(start + 15.0, set_by=ahead, job_1=2)
    metered.look(start + 16.0, set_by=ahead, job_1=Seen(alive=False, outcome="done"))
    assert metered.used == {("2026-11", "job-1"): 20.0, ("2026-12", "job-1"): 12.0}


def test_time_without_a_scheduler_counts_for_survivors() -> None:
    jobs = running()
    for seconds in range(1, 91):
        jobs.look(NOVEMBER + seconds, job_1=6)
    assert jobs.counted == NOVEMBER + 60.0, "what came later was never written down"
    jobs.restart()
    jobs.look(NOVEMBER + 1000.0, job_1=6)
    jobs.look(NOVEMBER + 1001.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 6 * 1001.0}


def test_the_first_minute_survives_a_kill() -> None:
    jobs = running()
    jobs.look(NOVEMBER + 20.0, job_1=6)
    jobs.restart()
    jobs.look(NOVEMBER + 1000.0, job_1=6)
    jobs.look(NOVEMBER + 1001.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 6 * 1001.0}


def test_jobs_that_ended_meanwhile_cost_nothing_more() -> None:
    jobs = running()
    for seconds in range(1, 61):
        jobs.look(NOVEMBER + seconds, job_1=6)
    jobs.restart()
    jobs.look(NOVEMBER + 1000.0, job_1=Seen(alive=False, outcome="done"))
    jobs.look(NOVEMBER + 2000.0)
    assert jobs.used == {("2026-11", "job-1"): 360.0}
    assert jobs.shares["ads"]["owned"] == 4 * (60.0 + 1000.0)


def test_late_starts_are_charged_from_their_start() -> None:
    """The book was last written to long before a job began, whose scheduler then died."""
    jobs = Metered()
    jobs.look(NOVEMBER)
    jobs.look(NOVEMBER + 60.0)
    jobs.submit(tenant="ads", at=NOVEMBER + 5000.0)
    jobs.decide(NOVEMBER + 5000.0, job_1=2)
    jobs.look(NOVEMBER + 5000.0)
    jobs.counted = NOVEMBER + 60.0
    jobs.used.clear()
    jobs.restart()
    jobs.look(NOVEMBER + 5040.0, job_1=2)
    jobs.look(NOVEMBER + 5041.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 82.0}


def test_nobody_pays_before_anything_was_counted() -> None:
    jobs = running()
    jobs.counted = None
    jobs.restart()
    jobs.look(NOVEMBER + 1000.0, job_1=6)
    jobs.look(NOVEMBER + 1010.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 60.0}


def test_clock_of_1970_charges_no_decades() -> None:
    """The host has booted in 1970; nodes, and a job on them, survive its next boot."""
    jobs = running(start=1000.0)
    jobs.hear(Described(replace(jobs.jobs.spec, usage_half_life=3600.0)), 1000.0)
    jobs.look(1060.0, job_1=6)
    assert jobs.recent is not None
    borrowed = jobs.recent.borrowed["ads"]
    jobs.restart()
    jobs.look(NOVEMBER, job_1=6)
    details = [command.detail for command in jobs.commands if isinstance(command, Change)]
    assert details == ["20,758 days without a scheduler: was the clock wrong?"]
    assert jobs.jobs.recent is not None
    assert jobs.jobs.recent.borrowed["ads"] == pytest.approx(borrowed)
    jobs.look(NOVEMBER + 10.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("1970-01", "job-1"): 360.0, ("2026-11", "job-1"): 60.0}
    assert jobs.shares["ads"]["owned"] == 4 * 70.0


def test_clock_that_was_set_meanwhile_loses_no_usage() -> None:
    """The scheduler's own clock began in 1970, and that of its host was set right."""
    jobs, ahead = running(start=1000.0), NOVEMBER
    jobs.look(1060.0, set_by=ahead, job_1=6)
    assert jobs.counted == NOVEMBER + 1060.0
    jobs.restart()
    jobs.look(NOVEMBER + 1160.0, job_1=6)
    assert not any(isinstance(command, Change) for command in jobs.commands)
    jobs.look(NOVEMBER + 1161.0, job_1=Seen(alive=False, outcome="done"))
    assert jobs.used == {("2026-11", "job-1"): 6 * 161.0}


def test_recent_use_survives_a_restart_and_fades() -> None:
    jobs = running()
    assert running().recent is None, "nobody asks for it"
    jobs.hear(Described(replace(jobs.jobs.spec, usage_half_life=3600.0)), NOVEMBER)
    for minute in range(1, 61):
        jobs.look(NOVEMBER + 60.0 * minute, job_1=6)  # 2 of them are borrowed
    assert jobs.recent is not None
    assert jobs.recent.borrowed == {"ads": pytest.approx(1.0)}
    jobs.restart()
    jobs.look(NOVEMBER + 7200.0, job_1=6)
    assert jobs.jobs.recent is not None
    assert jobs.jobs.recent.borrowed == {"ads": pytest.approx(1.5)}, "it went on meanwhile"
    jobs.look(NOVEMBER + 7200.1, job_1=Seen(alive=False, outcome="done"))
    jobs.restart()
    jobs.look(NOVEMBER + 10_800.1)
    assert jobs.jobs.recent.borrowed == {"ads": pytest.approx(0.75, abs=0.001)}
    jobs.hear(Described(replace(jobs.jobs.spec, usage_half_life=None)), NOVEMBER + 10_801.0)
    jobs.look(NOVEMBER + 10_900.0)
    assert jobs.jobs.recent is jobs.recent is None


@pytest.mark.parametrize(
    ("holds", "capacity", "borrowed", "lent"),
    [
        ({"ads": 4, "web": 4}, 8, {}, {}),
        ({"ads": 8}, 8, {"ads": 4}, {"web": 4.0}),
        ({"ads": 6, "web": 1}, 10, {"ads": 2}, {}),  # two devices that nobody owns come first
        ({"ads": 8, "web": 1}, 10, {"ads": 4}, {"web": 2.0}),
    ],
)
def test_what_is_borrowed_is_lent(
    holds: Mapping[str, int], capacity: int, borrowed: dict[str, int], lent: dict[str, float]
) -> None:
    found = shares_of(holds, TENANTS, capacity)
    assert {tenant: each.borrowed for tenant, each in found.items() if each.borrowed} == borrowed
    assert {tenant: each.lent for tenant, each in found.items() if each.lent} == lent


_TENANTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from("xy"), st.integers(0, 20)),
    max_size=5,
)


@given(rows=_TENANTS, spare=st.integers(0, 9))
def test_nobody_lends_what_it_has_not(rows: list[tuple[int, int, str, int]], spare: int) -> None:
    tenants = [
        Tenant(id=str(k), guaranteed=owned, exclusive=min(owned, exclusive), cohort=cohort)
        for k, (owned, exclusive, cohort, _) in enumerate(rows)
    ]
    holds = {str(k): row[3] for k, row in enumerate(rows)}
    found = shares_of(holds, tenants, sum(tenant.guaranteed for tenant in tenants) + spare)
    for tenant in tenants:
        share = found[tenant.id]
        assert 0.0 <= share.lent <= tenant.lendable + 1e-9
        assert share.lent + holds[tenant.id] <= max(tenant.guaranteed, holds[tenant.id]) + 1e-9
    for cohort in "xy":
        members = [found[tenant.id] for tenant in tenants if tenant.cohort == cohort]
        assert sum(each.lent for each in members) <= sum(each.borrowed for each in members) + 1e-9


def test_months_are_those_of_utc() -> None:
    assert month_of(DECEMBER - 0.001) == "2026-11"
    assert month_of(DECEMBER) == "2026-12"
    assert bounds_of("2026-12")[0] == DECEMBER
    parts = list(by_month(NOVEMBER - 1.0, bounds_of("2027-01")[0] + 1.0))
    assert [month for month, _ in parts] == ["2026-10", "2026-11", "2026-12", "2027-01"]
    assert sum(seconds for _, seconds in parts) == bounds_of("2027-01")[0] - NOVEMBER + 2.0


@pytest.mark.parametrize(
    "text", ["2026", "2026-13", "2026-00", "26-11", "2026-11-01", "2027-01", "x"]
)
def test_wrong_months_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_month(text, now=DECEMBER - 1.0, field="--month")
    assert refused.value.hint == "--month 2026-11"


def test_usage_needs_no_tenants_in_the_file() -> None:
    spec = ClusterSpec(cluster=Cluster.parse("1x2"))
    assert shares_of({"default": 2}, spec.tenants, spec.capacity) == {}
