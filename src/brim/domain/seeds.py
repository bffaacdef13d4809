"""Seeds derived from seeds.

The random part of a job follows from its seed and from where it happens. Pure.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(*parts: int) -> int:
    """One 64-bit seed from several whole numbers, for instance (job seed, step, micro-batch).

    The order and the number of the parts matter; neighbouring parts give unrelated seeds. The
    values are part of a job's identity: they never change between versions.

    Args:
        parts: whole numbers of any sign; only their lowest 64 bits count.

    Returns:
        A number in [0, 2**64).

    Source: SplitMix64's finaliser, Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014, section 4; absorbed part by part.

    >>> mix(1, 2) == mix(2, 1)
    False
    """
    return _absorb(_start(len(parts), parts[:-1]), (*parts[-1:], 0))


@lru_cache(maxsize=64)
def _start(count: int, parts: tuple[int, ...]) -> int:
    """Absorb all parts but the last: seeds that are asked for in turn have these in common."""
    return _absorb(count, parts)


def _absorb(state: int, parts: tuple[int, ...]) -> int:
    for part in parts:
        z = ((state ^ (part & _MASK)) + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        state = z ^ (z >> 31)
    return state
