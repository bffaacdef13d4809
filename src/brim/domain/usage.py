"""Usage of devices by month: months in UTC, and who lends to whom. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from brim.domain.tenancy import Tenant
from brim.errors import SpecError

_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1970, 9998


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
