"""Whether a run is alive is found out soon, whatever its processes and the clock are at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.errors import EnvironmentFault
from brim.storage.contact import is_alive
from brim.wire.control import ask
from brim.wire.messages import Ask


def test_a_process_that_nobody_has_buried_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()
    assert not is_alive(child.pid)
    assert is_alive(os.getpid())


def test_a_master_that_is_gone_is_not_waited_for_by_the_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = time.time
    monkeypatch.setattr(time, "time", lambda: tell() + 3600.0)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match="did not answer in 0 s"):
        ask(f"unix:{tmp_path}/master", token="t", question=Ask(verb="status"), timeout=0.3)
    assert time.monotonic() - began < 5.0
