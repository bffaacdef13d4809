"""Counts device-seconds of jobs, and what tenants own, borrow and lend, by month. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import add

from brim.domain.cluster import ClusterSpec
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.usage import RecentUse, Shares, by_month, shares_of

_INTERVAL = 60.0  # seconds between two entries in the book, where no job ends
# Seconds without a scheduler for which jobs are charged. A host that boots in 1970 makes decades of a
# restart.
_LONGEST_ABSENCE = 31 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Usage to be added to what is written down.

    Args:
        used: device-seconds by (month, tenant, account, job).
        shares: device-seconds by (month, tenant).
        counted: all time up to here is counted, by the host's clock: the scheduler's own is another
            one after each boot.
        recent: what tenants had borrowed lately then; None where the cluster does not ask for it.
    """

    used: Mapping[tuple[str, str, str, str], float]
    shares: Mapping[tuple[str, str], Shares]
    counted: float
    recent: RecentUse | None


class Meter:
    """Counts the devices that jobs hold, from look to look.

    Args:
        counted: the time up to which an earlier scheduler has counted, by the host's clock; None:
            there was none. Jobs that lived through the time since then have held their devices all
            the while; if none has, nothing is counted for it.
        recent: what tenants had borrowed lately at that time.

    Attributes:
        recent: what tenants have borrowed lately; None where the cluster does not ask for it.
    """

    def __init__(self, counted: float | None, recent: RecentUse | None = None) -> None:
        self._counted = counted
        self._set_by = 0.0
        self.recent = recent
        self._is_first = True
        self._used = defaultdict[tuple[str, str, str, str], float](float)
        self._shares = defaultdict[tuple[str, str], Shares](lambda: Shares(0.0, 0.0, 0.0))
        self._is_new = counted is None  # then the beginning is written down at once
        self._written = -math.inf

    def count(
        self,
        jobs: Iterable[ScheduledJob],
        survivors: Collection[str],
        spec: ClusterSpec,
        *,
        now: float,
        unseen: float = 0.0,
        set_by: float = 0.0,
    ) -> float:
        """Count the time since the last call.

        Args:
            jobs: that have had processes since then, as far as anybody knew.
            survivors: jobs that have been seen to be alive.
            spec: of the cluster, with all nodes.
            unseen: seconds of that time that are charged to nobody.
            set_by: seconds that the host's clock, and its months, are ahead of these times.

        Returns:
            Seconds without a scheduler that are charged to nobody: longer than any that is believed.
        """
        start, is_first = self._counted, self._is_first
        self._counted, self._is_first, self._set_by = now, False, set_by
        absence = 0.0
        if is_first:
            self._written = now
            if start is not None:
                start -= set_by
                absence = now - start
                start = now if absence > _LONGEST_ABSENCE else start
        holders = [job for job in jobs if job.target and (not is_first or job.id in survivors)]
        self._count_recent(holders, spec, start, unseen=unseen)
        if start is None or (is_first and not holders):
            return 0.0
        start += unseen
        end = now + set_by
        parts = list(by_month(start + set_by, end))
        for job in holders:
            if is_first:  # some have begun since an entry was made
                parts = list(by_month(max(start, job.allocation.changed) + set_by, end))
            for month, seconds in parts:
                key = month, job.submission.tenant, job.user, job.id
                self._used[key] += job.target * seconds
        if is_first:
            start = max(start, min(job.allocation.changed for job in holders))
            parts = list(by_month(start + set_by, end))
        self._count_shares(holders, spec, parts)
        return absence if absence > _LONGEST_ABSENCE else 0.0

    def _count_recent(
        self,
        holders: Iterable[ScheduledJob],
        spec: ClusterSpec,
        start: float | None,
        *,
        unseen: float,
    ) -> None:
        """Count what was borrowed since a time, in which some seconds are charged to nobody."""
        half_life, now = spec.usage_half_life, self._counted
        if half_life is None or now is None:
            self.recent = None
            return
        recent = RecentUse(
            half_life=half_life, borrowed=self.recent.borrowed if self.recent else {}
        )
        if start is not None:
            unseen = min(max(0.0, unseen), max(0.0, now - start))
            recent = recent.advanced(unseen, {}, spec.tenants)
            seconds = max(0.0, now - start - unseen)
            recent = recent.advanced(seconds, _holds(holders), spec.tenants)
        self.recent = recent

    def _count_shares(
        self,
        holders: Iterable[ScheduledJob],
        spec: ClusterSpec,
        parts: Iterable[tuple[str, float]],
    ) -> None:
        shares = shares_of(_holds(holders), spec.tenants, spec.capacity)
        for month, seconds in parts:
            for tenant, share in shares.items():
                more = (seconds * devices for devices in share)
                key = month, tenant
                self._shares[key] = Shares(*map(add, self._shares[key], more))

    def take(self, now: float, *, at_once: bool) -> Charge | None:
        """Return what is to be written down now; None: nothing, or not yet.

        Args:
            at_once: it does not wait for more.
        """
        is_due = at_once or self._is_new or now - self._written >= _INTERVAL
        has_entries = self._is_new or bool(self._used or self._shares)
        if self._counted is None or not (has_entries and is_due):
            return None
        self._is_new = False
        charge = Charge(
            used=dict(self._used),
            shares=dict(self._shares),
            counted=self._counted + self._set_by,
            recent=self.recent,
        )
        self._used.clear()
        self._shares.clear()
        self._written = now
        return charge


def _holds(jobs: Iterable[ScheduledJob]) -> Counter[str]:
    """Return the devices of tenants."""
    holds = Counter[str]()
    for job in jobs:
        holds[job.submission.tenant] += job.target
    return holds
