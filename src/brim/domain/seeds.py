"""Seeds derived from seeds.

The random part of a job follows from its seed and from where it happens. Pure.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

_AHEAD = 256  # steps whose seeds are computed at once
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


class StepSeeds:
    """The seeds `mix(seed, step, number)`, computed for many steps at once.

    One by one, numbers of 64 bits take Python as long as twenty calls.

    Args:
        seed: the job's.

    >>> StepSeeds(1).seed(20, 3) == mix(1, 20, 3)
    True
    """

    def __init__(self, seed: int) -> None:
        self._start = _start(3, (seed,))
        self._base = 0
        self._steps: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._seeds: dict[int, list[int]] = {}  # by number, of so many steps from the first

    def seed(self, step: int, number: int) -> int:
        """Return the seed of a step and, for instance, a micro-batch."""
        seeds = self._seeds.get(number)
        if seeds is None or not 0 <= step - self._base < _AHEAD:
            seeds = self._compute(step, number)
        return seeds[step - self._base]

    def _compute(self, step: int, number: int) -> list[int]:
        if not (len(self._steps) and 0 <= step - self._base < _AHEAD):
            self._base, self._seeds = step, {}
            steps = np.arange(step, step + _AHEAD, dtype=np.uint64)
            self._steps = _absorb_all(np.full(_AHEAD, self._start, np.uint64), steps)
        states = _absorb_all(self._steps, np.uint64(number & _MASK))
        seeds: list[int] = _absorb_all(states, np.uint64(0)).tolist()
        self._seeds[number] = seeds
        return seeds


def _absorb_all(
    states: npt.NDArray[np.uint64], parts: npt.NDArray[np.uint64] | np.uint64
) -> npt.NDArray[np.uint64]:
    """Absorb a part into each state, as `_absorb` does; arrays are modulo 2**64."""
    mixed: npt.NDArray[np.uint64] = (states ^ parts) + np.uint64(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _absorb(state: int, parts: tuple[int, ...]) -> int:
    for part in parts:
        z = ((state ^ (part & _MASK)) + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        state = z ^ (z >> 31)
    return state
