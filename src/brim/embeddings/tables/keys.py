"""Keys of an embedding's ids.

A bijection of 63 bits that spreads ids evenly, however close they are.

A key is never negative. Its highest bits say where it lies; so neighbouring ids, and ids that were
hashes already, fill all parts of a table alike. That the mixing can be undone makes a key as good
as its id.
"""

from __future__ import annotations

import torch
from torch import Tensor

from brim.errors import SpecError

BITS = 63
_MASK = (1 << BITS) - 1
_SHIFTS = (
    30,
    27,
    31,
)  # and the factors: SplitMix64's finaliser, whose steps are bijections of 63 bits, too
_FACTORS = (0xBF58476D1CE4E5B9 & _MASK, 0x94D049BB133111EB & _MASK)


def mix(ids: Tensor) -> Tensor:
    """Return the keys of ids.

    Args:
        ids: int64 of any shape, none negative.

    >>> int(unmix(mix(torch.tensor(42))))
    42
    """
    keys = ids ^ (ids >> _SHIFTS[0])
    for factor, shift in zip(_FACTORS, _SHIFTS[1:], strict=True):
        keys = (keys * factor) & _MASK
        keys = keys ^ (keys >> shift)
    return keys


def unmix(keys: Tensor) -> Tensor:
    """The inverse of `mix`."""
    ids = keys
    for factor, shift in zip(reversed(_FACTORS), reversed(_SHIFTS[1:]), strict=True):
        ids = _unshifted(ids, shift)
        ids = (ids * pow(factor, -1, 1 << BITS)) & _MASK
    return _unshifted(ids, _SHIFTS[0])


def _unshifted(mixed: Tensor, shift: int) -> Tensor:
    """The x of which `mixed` is x ^ (x >> shift)."""
    found = mixed
    for _ in range(shift, BITS, shift):  # each turn has so many more bits right
        found = mixed ^ (found >> shift)
    return found


def check_ids(ids: Tensor, *, subject: str) -> None:
    """Check that these can be ids.

    Args:
        ids: of any shape.
        subject: the embedding, for an error.

    Raises:
        SpecError: one of them is negative, or they are no whole numbers.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise SpecError(
            f"ids of {subject}", got=f"{ids.dtype}".removeprefix("torch."), need="int64 or int32"
        )
    if len(negative := ids[ids < 0]):
        raise SpecError(
            f"ids of {subject}", got=str(int(negative[0])), need="whole numbers from 0, below 2**63"
        )
