"""The values of an embedding's row before its first update: a function of its key alone.

So a row costs no memory before it is trained, and it is the same on whatever worker, and in
whatever order, it is asked for. Whole numbers lead to a value, and one product, which all machines
round alike.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import torch
from torch import Tensor

from brim.domain.seeds import mix as seed_of

KINDS = ("uniform", "normal", "zeros")
_QUANTILE_BITS = 12
_UNIFORM_BITS = 24  # which float32 has, without rounding


def start_values(
    keys: Tensor,
    dim: int,
    *,
    kind: str,
    scale: float,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the rows that keys start with.

    Args:
        keys: int64, shape [N].
        dim: columns of a row.
        kind: `uniform` in ±scale, `normal` with a standard deviation of `scale`, or `zeros`.
        scale: of the values.
        seed: of the table.
        dtype: of the values, float32 or float64.

    Returns:
        Shape [N, dim].
    """
    if kind == "zeros":
        return torch.zeros((len(keys), dim), dtype=dtype)
    columns = torch.tensor([_signed(seed_of(seed, column)) for column in range(dim)])
    bits = _hashed(_hashed(keys).unsqueeze(1) ^ columns)
    if kind == "normal":
        return _quantiles(scale, dtype)[bits >> (64 - _QUANTILE_BITS) & ((1 << _QUANTILE_BITS) - 1)]
    whole = bits >> (64 - _UNIFORM_BITS)  # the sign comes with it
    return (2 * whole + 1).to(dtype) * (scale * 2.0**-_UNIFORM_BITS)


def _hashed(numbers: Tensor) -> Tensor:
    """64 bits that look like chance; products wrap around."""
    mixed = (numbers ^ _right(numbers, 32)) * _signed(0xD6E8FEB86659FD93)
    mixed = (mixed ^ _right(mixed, 32)) * _signed(0xD6E8FEB86659FD93)
    return mixed ^ _right(mixed, 32)


def _right(numbers: Tensor, bits: int) -> Tensor:
    """Shift without regard to the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@functools.lru_cache(maxsize=16)
def _quantiles(scale: float, dtype: torch.dtype) -> Tensor:
    """The middles of so many equal parts of the normal distribution.

    Logarithms differ in their last bit between machines: so six digits are kept.
    """
    count, normal = 1 << _QUANTILE_BITS, NormalDist()
    upper = [round(normal.inv_cdf((count + 2 * i + 1) / (2 * count)), 6) for i in range(count // 2)]
    values = [-value for value in reversed(upper)] + upper
    return torch.tensor([value * scale for value in values], dtype=torch.float64).to(dtype)
