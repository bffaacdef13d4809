"""The usage of the last months, as `brim usage` has it of each."""

from __future__ import annotations

from brim.client import Client
from brim.wire.cluster import UsageView

_MOST_MONTHS = 12


def usage_by_month(client: Client) -> list[UsageView]:
    """Return the usage of tenants in the months that have been counted, the newest first; a year at most.

    It blocks.
    """
    views = [client.usage()]
    first = views[0].first_month
    while first and views[-1].month > first and len(views) < _MOST_MONTHS:
        views.append(client.usage(month_before(views[-1].month)))
    return views


def month_before(month: str) -> str:
    """Return the month before a month.

    >>> month_before("2026-11"), month_before("2026-01")
    ('2026-10', '2025-12')
    """
    year, number = map(int, month.split("-"))
    return f"{year - (number == 1)}-{(number - 2) % 12 + 1:02}"
