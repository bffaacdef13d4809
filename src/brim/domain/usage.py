"""Usage of devices: by month in UTC, who lends to whom, and what tenants borrowed lately. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from brim.domain.quantities import format_duration
from brim.domain.tenancy import Tenant
from brim.errors import SpecError

_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1970, 9998
# A half-life in seconds: with a shorter one, devices would change hands at nearly each cycle.
_SHORTEST, _LONGEST = 60.0, 3650 * 86_400.0
_FORGOTTEN = 1e-3  # devices on average, below which a tenant has borrowed none


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentUse:
    """Devices that tenants have borrowed lately: exponential averages of what each moment had.

    Devices count as borrowed beyond the tenant's guarantee. What was borrowed one half-life ago
    counts half as much as what is borrowed now.

    Args:
        half_life: in seconds.
        borrowed: average devices by tenant; tenants that are not named have borrowed none.
    """

    half_life: float
    borrowed: Mapping[str, float] = field(default_factory=dict)

    def advanced(
        self, seconds: float, holds: Mapping[str, int], tenants: Collection[Tenant]
    ) -> RecentUse:
        """Return the averages after a time in which tenants have held so many devices.

        Args:
            tenants: with their guarantees; one that is not declared has none.

        >>> RecentUse(half_life=3600.0).advanced(3600.0, {"ads": 8}, [Tenant(id="ads", guaranteed=2)])
        RecentUse(half_life=3600.0, borrowed={'ads': 3.0})
        """
        factor = 0.5 ** (seconds / self.half_life)
        guaranteed = {tenant.id: tenant.guaranteed for tenant in tenants}
        averages = {}
        for name in sorted({*self.borrowed, *holds}):
            borrows = max(0, holds.get(name, 0) - guaranteed.get(name, 0))
            average = factor * self.borrowed.get(name, 0.0) + (1.0 - factor) * borrows
            if average > _FORGOTTEN or borrows:
                averages[name] = average
        return replace(self, borrowed=averages)

    def share_of(self, tenant: str) -> float:
        """Return the part of all that was borrowed lately which a tenant had, from 0 to 1.

        >>> RecentUse(half_life=3600.0, borrowed={"ads": 3.0, "web": 1.0}).share_of("ads")
        0.75
        """
        total = sum(self.borrowed.values())
        return self.borrowed.get(tenant, 0.0) / total if total else 0.0


def check_half_life(seconds: float, tenants: Collection[Tenant] | None, *, field: str) -> None:
    """Check that recent use can be weighed with a half-life.

    Args:
        tenants: whose use it is; None: they are not known yet.

    Raises:
        SpecError: it is too short or too long, or there are no tenants.
    """
    if not _SHORTEST <= seconds <= _LONGEST:
        need = "a time from 1m to 3650d"
        raise SpecError(field, got=format_duration(seconds), need=need, hint=f"{field} 7d")
    if tenants is not None and not tenants:
        need = "tenants, whose use is to count"
        raise SpecError(
            field, got="no tenants", need=need, hint="describe tenants, or leave it out"
        )


class Shares(NamedTuple):
    """Devices of a tenant at a moment, or device-seconds over a time.

    Attributes:
        owned: its quota.
        borrowed: held beyond that.
        lent: of its quota, held by others of its cohort.
    """

    owned: float
    borrowed: float
    lent: float


def shares_of(
    holds: Mapping[str, int], tenants: Collection[Tenant], capacity: int
) -> dict[str, Shares]:
    """Return what each tenant owns, borrows and lends.

    What a cohort borrows comes from devices that nobody owns first, then from the idle devices of its
    members, in proportion to these.

    Args:
        holds: devices by tenant.
        capacity: devices for training.

    >>> ads, web = Tenant(id="ads", guaranteed=4), Tenant(id="web", guaranteed=4)
    >>> shares_of({"ads": 6, "web": 1}, [ads, web], 8)["web"]
    Shares(owned=4, borrowed=0, lent=2.0)
    """
    borrowed = {
        tenant.id: max(0, holds.get(tenant.id, 0) - tenant.guaranteed) for tenant in tenants
    }
    idle = {
        tenant.id: max(0, min(tenant.guaranteed - holds.get(tenant.id, 0), tenant.lendable))
        for tenant in tenants
    }
    owned_by_nobody = max(0, capacity - sum(tenant.guaranteed for tenant in tenants))
    total = sum(borrowed.values())
    # Cohorts share the devices without an owner by what they borrow.
    from_owners = max(0.0, 1.0 - owned_by_nobody / total) if total else 0.0
    borrowed_total, idle_total = Counter[str](), Counter[str]()
    for tenant in tenants:
        borrowed_total[tenant.cohort] += borrowed[tenant.id]
        idle_total[tenant.cohort] += idle[tenant.id]
    found = {}
    for tenant in tenants:
        part = idle[tenant.id] / idle_total[tenant.cohort] if idle[tenant.id] else 0.0
        lent = part * min(borrowed_total[tenant.cohort] * from_owners, idle_total[tenant.cohort])
        found[tenant.id] = Shares(tenant.guaranteed, borrowed[tenant.id], lent)
    return found


def month_of(moment: float) -> str:
    """Return the month of a time in seconds since 1970, in UTC.

    >>> month_of(1.7e9)
    '2023-11'
    """
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m}"


def bounds_of(month: str) -> tuple[float, float]:
    """Return the first moment of a month, and that of the next one.

    >>> first, end = bounds_of("2024-02")
    >>> (end - first) / 86_400
    29.0
    """
    year, number = map(int, month.split("-"))
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    first, end = (datetime(*each, 1, tzinfo=UTC) for each in ((year, number), following))
    return first.timestamp(), end.timestamp()


def parse_month(text: str, *, now: float, field: str) -> str:
    """Read `2026-11`; empty: the present month.

    Raises:
        SpecError: it is no month, or has not begun.
    """
    if not text:
        return month_of(now)
    found = _MONTH.fullmatch(text)
    if (
        found is None
        or not 1 <= int(found[2]) <= 12
        or not _FIRST_YEAR <= int(found[1]) <= _LAST_YEAR
    ):
        raise SpecError(field, got=repr(text[:40]), need="a month", hint=f"{field} {month_of(now)}")
    if text > month_of(now):
        need = "a month that has begun, in UTC"
        raise SpecError(field, got=repr(text), need=need, hint=f"{field} {month_of(now)}")
    return text


def by_month(start: float, end: float) -> Iterator[tuple[str, float]]:
    """Divide a time among its months: (month, seconds).

    >>> [(month, seconds) for month, seconds in by_month(1_764_547_190.0, 1_764_547_230.0)]
    [('2025-11', 10.0), ('2025-12', 30.0)]
    """
    while start < end:
        month = month_of(start)
        part_end = min(end, bounds_of(month)[1])
        yield month, part_end - start
        start = part_end
