"""A cluster as one client of its scheduler sees it, kept current by news. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brim.domain.course import Change
from brim.wire.cluster import ClusterView, JobView, News, NodeView, TenantView

_MOST_CHANGES = 20_000  # lines of stories that are kept
_MOST_SAMPLES = 20_000  # devices in use over time
_MOST_ENDED = 1_000  # jobs that have ended, the newest


class UsageSample(NamedTuple):
    """The devices that were in use at a time, in all and by tenant, and those that there were."""

    timestamp: float
    devices: int
    used: int
    tenants: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class ClusterSight:
    """The jobs, nodes and tenants that a caller may see.

    Attributes:
        version: grows with each piece of news; a reader remembers which one it has shown.
        changed: the version at which each job changed last.
        forgotten: (version, id) of jobs that are gone.
        changes: lines of stories, in order.
        plan: changes of workers that are expected next.
        tenant: whose token it is; None: the administrator's.
        problem: why nothing new is known; empty while the scheduler answers.
        ended: the scheduler refuses the token: nothing will be known any more.
    """

    version: int = 0
    timestamp: float = 0.0
    jobs: dict[str, JobView] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    forgotten: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))
    cluster: ClusterView | None = None
    nodes: Sequence[NodeView] = ()
    tenants: Sequence[TenantView] = ()
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=_MOST_CHANGES))
    samples: deque[UsageSample] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    plan: Sequence[Change] = ()
    tenant: str | None = None
    problem: str = ""
    ended: bool = False

    def take_all(self, jobs: Iterable[JobView]) -> None:
        """Replace all jobs by these; of ended ones the newest are kept."""
        views = list(jobs)
        ended = sorted(view.ended for view in views if view.ended is not None)
        oldest = ended[-_MOST_ENDED] if len(ended) > _MOST_ENDED else 0.0
        self.version += 1
        previous_jobs = self.jobs
        self.jobs = {view.job: view for view in views if view.ended is None or view.ended >= oldest}
        for job in previous_jobs.keys() - self.jobs.keys():
            self._forget(job)
        for job, view in self.jobs.items():
            if previous_jobs.get(job) != view:
                self.changed[job] = self.version

    def take(self, news: News) -> None:
        """Fold in an answer of the scheduler."""
        self.version += 1
        self.timestamp, self.problem = news.timestamp, ""
        self.tenant = news.tenant
        self.cluster, self.nodes, self.tenants = news.cluster, news.nodes, news.tenants
        for view in news.jobs:
            if self.jobs.get(view.job) != view:
                self.jobs[view.job] = view
                self.changed[view.job] = self.version
        for job in news.forgotten:
            if self.jobs.pop(job, None) is not None:
                self._forget(job)
        self.changes.extend(news.changes)
        self._sample()

    def fail(self, problem: str, *, ended: bool = False) -> None:
        """Note that the scheduler gave no answer."""
        if (problem, ended) != (self.problem, self.ended):
            self.version += 1
            self.problem, self.ended = problem, ended

    def changed_after(self, version: int) -> list[JobView]:
        """List the jobs that have changed since."""
        return [self.jobs[job] for job, last in self.changed.items() if last > version]

    def forgotten_after(self, version: int) -> list[str]:
        """List the ids of jobs that have gone since."""
        return [job for last, job in self.forgotten if last > version]

    def story_of(self, job: str) -> list[Change]:
        """List the known lines of a job's story."""
        return [change for change in self.changes if change.job == job]

    def _forget(self, job: str) -> None:
        self.changed.pop(job, None)
        self.forgotten.append((self.version, job))

    def _sample(self) -> None:
        assert self.cluster is not None
        shares = tuple((tenant.tenant, tenant.holds) for tenant in self.tenants if tenant.holds)
        sample = UsageSample(self.timestamp, self.cluster.devices, self.cluster.held, shares)
        last = self.samples[-1] if self.samples else None
        if last is None or last[1:] != sample[1:]:
            self.samples.append(sample)
