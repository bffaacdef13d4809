"""Each test of serving leaves its process as it was."""

from collections.abc import Iterator

import pytest

from serving.trained import as_before


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with as_before():
        yield
