"""Ownership of the cluster: tenants, and cohorts of tenants that lend to each other.

Pure values.
"""

from __future__ import annotations

import math

import msgspec

from brim.errors import SpecError

MOST_JOBS = 5_000  # of a tenant, where nothing else is said
MOST_CODE = 1 << 30  # bytes


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a tenant, in devices.

    Args:
        cohort: tenants of one cohort lend each other their idle devices.
        guaranteed: its own (nominal quota): lent when idle, taken back on demand.
        exclusive: the part of `guaranteed` that is never lent.
        limit: the most it may hold, borrowed devices included; None has no limit.
        weight: its part of the surplus, against the weights of others.

    The objects of Kubernetes schedulers in these words: Volcano's deserved / guarantee / capability
    are guaranteed / exclusive / limit; Kueue's nominalQuota / lendingLimit / borrowingLimit are
    guaranteed / guaranteed - exclusive / limit - guaranteed; KAI's quota / limit / overQuotaWeight
    are guaranteed / limit / weight.
    """

    cohort: str = "default"
    guaranteed: int = 0
    exclusive: int = 0
    limit: int | None = None
    weight: float = 1.0


class Tenant(Quota, frozen=True, kw_only=True):
    """One owner of quota.

    Args:
        user: the account that its jobs run as; empty: that of the scheduler.
        jobs: the most jobs that it may have that have not ended.
        code: the most bytes that a scheduler keeps of its jobs, ended ones too: code and records.

    Raises:
        SpecError: unless 0 <= exclusive <= guaranteed <= limit and 0 < weight < inf.

    >>> Tenant(id="ctr", guaranteed=8, exclusive=2, limit=12).lendable
    6
    """

    id: str
    user: str = ""
    jobs: int = MOST_JOBS
    code: int = MOST_CODE

    def __post_init__(self) -> None:
        top = self.guaranteed if self.limit is None else self.limit
        if not 0 <= self.exclusive <= self.guaranteed <= top or not 0 < self.weight < math.inf:
            raise SpecError(
                f"tenant {self.id}",
                got=f"exclusive {self.exclusive}, guaranteed {self.guaranteed}, "
                f"{'no limit' if self.limit is None else f'limit {self.limit}'}, "
                f"weight {self.weight}",
                need="0 <= exclusive <= guaranteed <= limit and a finite weight above 0",
            )

        for name, limit in (("jobs", self.jobs), ("code", self.code)):
            if limit < 1:
                raise SpecError(f"tenant {self.id}: {name}", got=str(limit), need="1 or more")

    @property
    def lendable(self) -> int:
        """Devices that others of its cohort may use while it does not."""
        return self.guaranteed - self.exclusive
