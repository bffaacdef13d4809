"""The memory of a safetensors file, laid out before the tensors are copied into it.

Nothing is left to serialise.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import Tensor

from brim.tensors.raw import memory_of

Bytes = npt.NDArray[np.uint8]

_LENGTH = struct.Struct("<Q")
_ZEROS = bytes(1 << 20)


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[bytearray, dict[str, Bytes]]:
    """Make a file of zeros.

    Args:
        tensors: whose names, types and shapes it has.

    Returns:
        The file, and where in it the bytes of each tensor go.
    """
    header: dict[str, Any] = {}
    stop = 0
    # The widest numbers first, so that all of them begin at multiples of their size.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        start, stop = stop, stop + tensor.nbytes
        header[name] = {
            "dtype": _name_of(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    data = bytearray(_LENGTH.pack(len(text)) + text)
    first = len(data)
    for remaining in range(
        stop, 0, -len(_ZEROS)
    ):  # piece by piece: nobody else runs while memory is made
        data += _ZEROS[:remaining]
    memory = np.frombuffer(data, np.uint8)[first:]
    return data, {name: memory[slice(*entry["data_offsets"])] for name, entry in header.items()}


def copy_to(place: Bytes, tensor: Tensor) -> None:
    """Copy the bytes of a tensor to their place.

    By numpy: a thread of its own that computes with torch may start others, and those of a forked
    process hang.
    """
    if tensor.numel():
        np.copyto(place, np.frombuffer(memory_of(tensor), np.uint8))


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    """Return safetensors' name of a type."""
    file = save({"0": torch.zeros(0, dtype=dtype)})
    (length,) = _LENGTH.unpack_from(file)
    return str(json.loads(file[_LENGTH.size : _LENGTH.size + length])["0"]["dtype"])
