"""The moment at which a deadline is promised. Pure."""

from __future__ import annotations

import enum


class PromiseAt(enum.StrEnum):
    """The earliest moment of a promise, which the administrator chooses."""

    ARRIVAL = "arrival"
    """When the job arrives, by the speed that is expected of it."""
    MEASURED = "measured"
    """When it has run and its own speed was seen."""
