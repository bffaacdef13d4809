"""The profile of an unmeasured model.

It says which number of workers comes next, and when the profile is complete. Pure.

The first steps of such a job are made on 1, 2, 4 … workers, and they are steps like all others. The
policy does not know: while a size is measured, the job is shown to it as one that may have no more
workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from brim.domain.measuring import Measured, curve_of, divides
from brim.domain.quantities import counted

_STEPS = 5  # at a size, at least,
_SECONDS = 1.0  # seconds of them, too, before it is measured
_SIZE_TIMEOUT = 20.0  # seconds after which a size that was not had, or not measured, is given up
_MAX_PROFILE_SECONDS = 60.0  # seconds that a profile may take,
_AFFORDED = 0.1  # of the time to the deadline, at most
_GAIN = 1.05  # times that a size must be faster than the one before, or larger ones are not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The progress of a job's profile.

    Args:
        size: workers that it is measured on.
        since: when it was first wanted there, seconds; None before the first step of all.
        until: when the profile ends, with any number of measurements.
    """

    size: int
    since: float | None = None
    until: float | None = None


class ProfileNote(NamedTuple):
    """A line for a job's story about its profile.

    Attributes:
        event: `measured` or `not measured`.
        detail: the number of workers, and the measurement or why there is none.
    """

    event: str
    detail: str


@lru_cache(maxsize=256)
def sizes_to_measure(*, parts: int, minimum: int, maximum: int) -> tuple[int, ...]:
    """Return the numbers of workers at which a curve is measured.

    Each is worth twice the one before; the last is the most that helps.

    Args:
        parts: micro-batches of a step where ranks take whole ones, else 0.

    >>> sizes_to_measure(parts=8, minimum=1, maximum=8), sizes_to_measure(parts=0, minimum=3, maximum=16)
    ((1, 2, 4, 8), (3, 6, 12, 16))
    """
    useful = curve_of({}, parts=parts, minimum=minimum, maximum=maximum).sizes
    found = [useful[0]]
    for size in useful[1:]:
        if divides(parts, size) >= 2.0 * divides(parts, found[-1]) or size == useful[-1]:
            found.append(size)
    return tuple(found)


def advance(
    profile: Profile,
    measured: Measured,
    sizes: tuple[int, ...],
    *,
    now: float,
    deadline: float | None,
) -> tuple[Profile | None, ProfileNote | None]:
    """Return the next state of the profile (None where it is over), and what is new about it.

    Args:
        measured: in all, by this job and others like it; the job has made a step.
        sizes: see `sizes_to_measure`.
    """
    if profile.since is None or profile.until is None:
        longest = (
            _MAX_PROFILE_SECONDS
            if deadline is None
            else min(_MAX_PROFILE_SECONDS, _AFFORDED * (deadline - now))
        )
        return replace(profile, since=now, until=now + longest), None
    rates, place = measured.rates, f"at {counted(profile.size, 'worker')}"
    if _is_enough(measured, profile.size):
        sentence = f"{place}: {rates[profile.size]:.3g} steps/s"
        smaller = max((n for n in sizes if n < profile.size and n in rates), default=None)
        if smaller is not None and rates[profile.size] < _GAIN * rates[smaller]:
            is_slower = rates[profile.size] < rates[smaller]
            word = "slower" if is_slower else f"less than {100.0 * (_GAIN - 1.0):.0f} % faster"
            previous = f"at {rates[smaller]:.3g} steps/s with {counted(smaller, 'worker')}"
            return None, ProfileNote("measured", f"{sentence}, {word} than {previous}")
        remaining = [n for n in sizes if n > profile.size and not _is_enough(measured, n)]
        following = replace(profile, size=remaining[0], since=now) if remaining else None
        return following, ProfileNote("measured", sentence)
    if now >= profile.until:
        return None, ProfileNote("not measured", f"{place}: the time for it is over")
    if now - profile.since > _SIZE_TIMEOUT:
        text = f"{place}: none to be had, or too slow, for {_SIZE_TIMEOUT:.0f} s"
        return None, ProfileNote("not measured", text)
    return profile, None


def _is_enough(measured: Measured, size: int) -> bool:
    steps, seconds = measured.totals.get(size, (0.0, 0.0))
    return size in measured.rates and steps >= _STEPS - 0.5 and seconds >= _SECONDS
