"""What a process that serves or exports changes for itself is as before behind each test."""

import os
import sys
from collections.abc import Iterator

import pytest

from brim.train.data import fitted


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    environment, path, fits = dict(os.environ), list(sys.path), fitted._in_use
    fitted._in_use = None
    yield
    fitted._in_use = fits
    os.environ.clear()
    os.environ |= environment
    sys.path[:] = path
