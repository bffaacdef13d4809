"""Exponentials and logarithms that every processor rounds alike. Pure.

numpy's own take another path on another kind of processor, and differ in the last bit. These are made
of sums, products and quotients of float32, which IEEE 754 rounds in one way alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts: products of the first with whole numbers of 9 bits are exact.
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LARGEST = np.float32(88.0)  # e to this is a float32, and so is its inverse
_UNIT = np.float32(1.0)
_SQRT_HALF = np.float32(0.70710678)
_BIAS, _MANTISSA_BITS = 127, 23  # of a float32
# Cephes, expf.c and logf.c: polynomials of the remainder, highest power first.
_EXP = np.array(
    [1.98756915e-4, 1.39819995e-3, 8.33345191e-3, 4.16657959e-2, 1.66666655e-1, 0.5], np.float32
)
_LOG: Floats = np.array(
    [
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ],
    np.float32,
)


def exp(x: Floats) -> Floats:
    """Return e to the power of each number, as float32.

    It is within 2e-7 of the true value, relatively. Numbers beyond 88 count as 88.

    Source: Moshier, Cephes, expf.c.

    >>> exp(np.float32([0, 1])).tolist()
    [1.0, 2.7182817459106445]
    """
    x = np.clip(x, -_LARGEST, _LARGEST)
    power = np.rint(x * _LOG2_E)
    x -= power * _LN_2_HIGH
    x -= power * _LN_2_LOW
    result = _polynomial(_EXP, x)
    result *= x
    result *= x
    result += x
    result += _UNIT
    result *= _power_of_two(power.astype(np.int32))
    return result


def log(x: Floats) -> Floats:
    """Return the natural logarithm of each positive number, as float32.

    It is within 2e-7 of the true value, relatively. Numbers below the least normal float32 count as
    that.

    Source: Moshier, Cephes, logf.c.

    >>> log(np.float32([1, 10])).tolist()
    [0.0, 2.3025851249694824]
    """
    mantissa, power = np.frexp(np.maximum(x, np.finfo(np.float32).tiny))
    is_low = mantissa < _SQRT_HALF
    power = (power - is_low).astype(np.float32)
    z = np.where(is_low, mantissa + mantissa, mantissa) - _UNIT
    square = z * z
    result = _polynomial(_LOG, z)
    result *= z
    result *= square
    result += power * _LN_2_LOW
    result -= np.float32(0.5) * square
    result += z
    result += power * _LN_2_HIGH
    return result


def _polynomial(coefficients: Floats, x: Floats) -> Floats:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += coefficient
    return result


def _power_of_two(power: NDArray[np.int32]) -> Floats:
    return ((power + np.int32(_BIAS)) << np.int32(_MANTISSA_BITS)).view(np.float32)
