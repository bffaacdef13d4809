"""Code that several threads collect at once, although Python 3.11 counts the depth of trees for all of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from brim.storage.bundles import LARGEST
from brim.user_code.own_code import CodeFile, collect


@pytest.fixture
def often_another_thread() -> Iterator[None]:
    """Python code runs, and threads change, while trees are made."""

    def busy(*_: Any) -> None:
        for _turn in range(50):
            pass

    interval_before, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20)
    gc.callbacks.append(busy)
    yield
    gc.callbacks.remove(busy)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval_before)


@pytest.mark.usefixtures("often_another_thread")
def test_code_is_collected_in_several_threads_at_once(tmp_path: Path) -> None:
    """Without a lock each run of this failed."""
    deep = "def model():\n    return " + "[" * 20 + "1" + "]" * 20 + "\n"
    file = CodeFile(tmp_path / "job.py", "job.py")
    file.path.write_text(deep * 100)
    with ThreadPoolExecutor(6) as threads:
        found = [threads.submit(collect, file, (), limit_bytes=LARGEST) for _ in range(24)]
        assert {tuple(collected.result().files) for collected in found} == {("job.py",)}
