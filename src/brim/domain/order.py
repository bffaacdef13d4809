"""The order of an epoch's samples: a permutation that is computed, never stored.

Pure: numpy and arithmetic.

Every rank computes the samples of its own positions from (seed, epoch, size) alone, so no list of
indices is sent, a cursor is the only state of an epoch, and a resize cannot lose or repeat a
sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from brim.domain.seeds import mix

_ROUNDS = 6
_MAXIMUM_SIZE = 1 << 62
_BLOCKS, _SLOT, _INNER = 1, 2, 3  # which permutation a key is for
_SHIFT = np.uint64(32)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """A permutation of [0, size).

    It depends on (seed, epoch, size, block_size) and on nothing else.

    Args:
        seed: the job's seed; any whole number.
        epoch: which pass over the data; each has its own order.
        size: samples in the dataset, from 0.
        block_size: 1 permutes single samples. A larger number shuffles by blocks, for files where
            random access is dear: blocks of so many consecutive samples are permuted whole, and the
            samples inside a block among themselves, so that a reader visits one block at a time.
            The last block may be short.

    Raises:
        ValueError: a negative size, or a block size below 1.

    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002: the generalised
    Feistel network of section 5 over [0, a) x [0, b), with the cycle walking of section 3 where a *
    b exceeds size.

    >>> EpochOrder(seed=0, epoch=0, size=10).samples(0, 10).tolist()
    [0, 6, 8, 2, 1, 5, 3, 7, 4, 9]
    """

    seed: int
    epoch: int
    size: int
    block_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MAXIMUM_SIZE:
            raise ValueError(f"size: got {self.size}, need 0 to 2**62")
        if self.block_size < 1:
            raise ValueError(f"block_size: got {self.block_size}, need a whole number from 1")

    def samples(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The samples at positions [start, stop) of this epoch, in order.

        Args:
            start: first position, from 0.
            stop: one past the last position, at most `size`.

        Returns:
            int64 [stop - start], each in [0, size).

        Raises:
            ValueError: positions outside the epoch.
        """
        if not 0 <= start <= stop <= self.size:
            raise ValueError(
                f"positions: got [{start}, {stop}), need 0 <= start <= stop <= {self.size}"
            )
        if start == stop:
            return np.empty(0, np.int64)
        if self.block_size == 1:
            key = np.array([self._key(_BLOCKS)], np.uint64)
            return _permute(np.arange(start, stop, dtype=np.uint64), self.size, key).astype(
                np.int64
            )
        return self._by_blocks(start, stop).astype(np.int64)

    def _by_blocks(self, start: int, stop: int) -> Numbers:
        # Whole blocks go through one permutation and the short last block is put between them at a
        # slot of its own, so that a position's block follows by division and no permutation need
        # ever be inverted.
        whole, rest = divmod(self.size, self.block_size)
        slot = mix(self._key(_SLOT)) % (whole + 1) if rest else whole
        short_start = slot * self.block_size
        short_stop = short_start + rest
        parts = []
        if start < short_start:
            parts.append(self._whole_blocks(start, min(stop, short_start)))
        if start < short_stop and short_start < stop:
            positions = np.arange(max(start, short_start), min(stop, short_stop), dtype=np.uint64)
            key = np.array([mix(self._key(_INNER), whole)], np.uint64)
            positions -= np.uint64(short_start)
            parts.append(_permute(positions, rest, key) + np.uint64(whole * self.block_size))
        if short_stop < stop:
            parts.append(self._whole_blocks(max(start, short_stop) - rest, stop - rest))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _whole_blocks(self, start: int, stop: int) -> Numbers:
        """The samples at these positions of the order that has the whole blocks only."""
        whole, width = self.size // self.block_size, np.uint64(self.block_size)
        turn, position = np.divmod(np.arange(start, stop, dtype=np.uint64), width)
        turns = np.arange(turn[0], turn[-1] + np.uint64(1), dtype=np.uint64)
        blocks = _permute(turns, whole, np.array([self._key(_BLOCKS)], np.uint64))
        inside_key = self._key(_INNER)
        keys = np.array([mix(inside_key, block) for block in blocks.tolist()], np.uint64)
        block_index = turn - turn[0]
        samples: Numbers = blocks[block_index] * width + _permute(
            position, self.block_size, keys[block_index]
        )
        return samples

    def _key(self, purpose: int) -> int:
        return mix(self.seed, self.epoch, self.size, self.block_size, purpose)


def _permute(numbers: Numbers, size: int, keys: Numbers) -> Numbers:
    """Return the image of each number of [0, size) under the permutation of its key.

    `keys` has one key, or one for each number.
    """
    left_size, right_size = _sides(size)
    images = _feistel(numbers, left_size, right_size, keys)
    # The few images outside go through again until they land inside: still a bijection of [0,
    # size).
    out_of_range = np.flatnonzero(images >= np.uint64(size))
    while out_of_range.size:
        own_keys = keys if keys.size == 1 else keys[out_of_range]
        images[out_of_range] = _feistel(images[out_of_range], left_size, right_size, own_keys)
        out_of_range = out_of_range[images[out_of_range] >= np.uint64(size)]
    return images


def _feistel(numbers: Numbers, left_size: int, right_size: int, keys: Numbers) -> Numbers:
    # Arithmetic is modulo 2**64 throughout; keys are an array, since numpy warns of overflow in
    # scalars only.
    sides = (np.uint64(left_size), np.uint64(right_size))
    halves = list(np.divmod(numbers, sides[1]))
    for turn in range(_ROUNDS):
        side_after = turn % 2
        keys = keys * _MIX + _SPREAD
        shifted = halves[side_after] + _scatter(halves[1 - side_after], keys, sides[side_after])
        # Both addends are below the side, so one subtraction reduces; where it is one too many it
        # wraps round to a huge number, and the minimum takes the other.
        halves[side_after] = np.minimum(shifted, shifted - sides[side_after])
    images: Numbers = halves[0] * sides[1] + halves[1]
    return images


def _scatter(half: Numbers, keys: Numbers, side: np.uint64) -> Numbers:
    """A pseudorandom number below `side` (which is below 2**32) from each half and key."""
    z = half * _SPREAD
    z ^= keys
    z ^= z >> _SHIFT
    z *= _MIX
    z ^= z >> _SHIFT
    z *= _MIX
    z >>= _SHIFT
    z *= side
    z >>= _SHIFT
    return z


@lru_cache(maxsize=256)
def _sides(size: int) -> tuple[int, int]:
    """Return the sides of a rectangle of an area of at least `size`.

    It is nearly square, with little left over.

    >>> _sides(72_000)
    (288, 250)
    """
    low = math.isqrt(max(size, 1) - 1) + 1
    # Sides far from a square (a prime by 1) would only rotate.
    width = min(
        range(low, low + min(low // 4, 64) + 1),
        key=lambda width: (width * -(-size // width), width),
    )
    return width, -(-size // width)
