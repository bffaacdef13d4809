"""Whose an exception is: the user's, or of the device that they compute on."""

from __future__ import annotations

import errno
import sys
import threading
from unittest.mock import Mock

import pytest
import torch

from brim.errors import BrimError, EnvironmentFault, SpecError, UserCodeError
from brim.train.failures import blame
from brim.train.signals import beat_forever
from brim.wire.messages import failure_of

SPEC = SpecError("--workers", got="0", need="1")


class OnDevice(torch.AcceleratorError):
    """As torch raises it, with the runtime's number."""

    def __init__(self, error_code: int) -> None:
        super().__init__(f"CUDA error {error_code}\nmore")
        self.error_code = error_code


def exit_over(cause: Exception, status: int | str) -> SystemExit:
    """As entry points do it that show an exception themselves."""
    try:
        try:
            raise cause
        except type(cause):
            sys.exit(status)
    except SystemExit as leaving:
        return leaving


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ZeroDivisionError("theirs"), UserCodeError, "ZeroDivisionError: theirs"),
        (SystemExit("no data"), UserCodeError, "SystemExit: no data"),
        (torch.OutOfMemoryError("too large"), UserCodeError, "too large"),
        (
            MemoryError(),
            UserCodeError,
            "out of memory on this host: MemoryError; run fewer workers on it",
        ),
        (OSError(errno.ENOMEM, "no room"), UserCodeError, "out of memory on this host: OSError"),
        (
            RuntimeError("can't start new thread"),
            UserCodeError,
            "no more processes or threads are allowed here: see ulimit -u",
        ),
        (SPEC, SpecError, "--workers"),
        (exit_over(SPEC, 1), SpecError, "--workers"),
        (exit_over(ZeroDivisionError("theirs"), 1), UserCodeError, "ZeroDivisionError: theirs"),
        (exit_over(ZeroDivisionError("theirs"), "no data"), UserCodeError, "SystemExit: no data"),
        (exit_over(OnDevice(214), 1), EnvironmentFault, "the device is lost"),
        (
            OnDevice(214),
            EnvironmentFault,
            "the device is lost: CUDA error 214",
        ),  # uncorrectable memory error
        (
            OnDevice(710),
            UserCodeError,
            "CUDA error 710",
        ),  # an assertion: an index out of range, usually
    ],
)
def test_blame(error: BaseException, kind: type[BrimError], words: str) -> None:
    blamed = blame(error)
    assert type(blamed) is kind
    assert words in str(blamed)
    assert "\nmore" not in str(blamed) or kind is UserCodeError


def test_memory_advice_comes_last() -> None:
    try:
        torch.empty(10**15)
    except RuntimeError as error:
        failed = failure_of(blame(error))
    assert failed.who == "user"
    assert failed.message.startswith("out of memory on this host: RuntimeError: ")
    assert "you tried to allocate 4000000000000000 bytes" in failed.message
    assert failed.trace.splitlines()[-2].startswith("RuntimeError: ")
    device = failure_of(
        blame(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."))
    )
    assert device.message.startswith(
        "out of memory on this device: torch.OutOfMemoryError: CUDA out of memory."
    )


def test_other_errors_say_nothing_of_memory() -> None:
    for error in (
        RuntimeError("shapes differ"),
        OSError(errno.ENOSPC, "no room"),
        KeyError("memory"),
    ):
        assert "out of memory" not in failure_of(blame(error)).message


def test_refused_threads_of_brim_are_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=refusal))
    with pytest.raises(RuntimeError) as refused:
        beat_forever(lambda: None, interval=1.0)
    fault = blame(refused.value)
    assert isinstance(fault, EnvironmentFault)
    assert fault.retryable
