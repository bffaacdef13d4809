"""Counts device-seconds of jobs, and what tenants own, borrow and lend, by month. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import add

from brim.domain.cluster import ClusterSpec
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.usage import Shares, by_month, shares_of

_INTERVAL = 60.0  # seconds between two entries in the book, where no job ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Usage to be added to what is written down.

    Args:
        used: device-seconds by (month, tenant, account, job).
        shares: device-seconds by (month, tenant).
        counted: all time up to here is counted.
    """

    used: Mapping[tuple[str, str, str, str], float]
    shares: Mapping[tuple[str, str], Shares]
    counted: float


class Meter:
    """Counts the devices that jobs hold, from look to look.

    Args:
        counted: the time up to which an earlier scheduler has counted; None: there was none. Jobs
            that lived through the time since then have held their devices all the while; if none
            has, nothing is counted for it.
    """

    def __init__(self, counted: float | None) -> None:
        self._counted = counted
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
    ) -> None:
        """Count the time since the last call.

        Args:
            jobs: that have had processes since then, as far as anybody knew.
            survivors: jobs that have been seen to be alive.
            spec: of the cluster, with all nodes.
            unseen: seconds of that time that are charged to nobody.
            set_by: seconds that months are ahead of these times.
        """
        start, is_first = self._counted, self._is_first
        self._counted, self._is_first = now, False
        if is_first:
            self._written = now
        holders = [job for job in jobs if job.target and (not is_first or job.id in survivors)]
        if start is None or (is_first and not holders):
            return
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

    def _count_shares(
        self,
        holders: Iterable[ScheduledJob],
        spec: ClusterSpec,
        parts: Iterable[tuple[str, float]],
    ) -> None:
        holds = Counter[str]()
        for job in holders:
            holds[job.submission.tenant] += job.target
        shares = shares_of(holds, spec.tenants, spec.capacity)
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
        charge = Charge(used=dict(self._used), shares=dict(self._shares), counted=self._counted)
        self._used.clear()
        self._shares.clear()
        self._written = now
        return charge
