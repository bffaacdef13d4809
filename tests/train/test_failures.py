"""Whose an exception is: the user's, or of the device that they compute on."""

from __future__ import annotations

import pytest
import torch

from brim.errors import BrimError, EnvironmentFault, SpecError, UserCodeError
from brim.train.failures import blame

SPEC = SpecError("--workers", got="0", need="1")


class OnDevice(torch.AcceleratorError):
    """As torch raises it, with the runtime's number."""

    def __init__(self, error_code: int) -> None:
        super().__init__(f"CUDA error {error_code}\nmore")
        self.error_code = error_code


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ZeroDivisionError("theirs"), UserCodeError, "ZeroDivisionError: theirs"),
        (SystemExit("no data"), UserCodeError, "SystemExit: no data"),
        (torch.OutOfMemoryError("too large"), UserCodeError, "too large"),
        (SPEC, SpecError, "--workers"),
        (OnDevice(214), EnvironmentFault, "the device is lost: CUDA error 214"),  # uncorrectable memory error
        (OnDevice(710), UserCodeError, "CUDA error 710"),  # an assertion: an index out of range, usually
    ],
)
def test_blame(error: BaseException, kind: type[BrimError], words: str) -> None:
    blamed = blame(error)
    assert type(blamed) is kind
    assert words in str(blamed)
    assert "\nmore" not in str(blamed) or kind is UserCodeError
