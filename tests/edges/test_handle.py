"""The handle of a run of which little is written down."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from brim.errors import SpecError
from brim.runs.handle import RunHandle
from brim.telemetry.events import RunFailed


def test_a_run_that_has_not_begun_is_not_called_dead(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="workers are not ready yet"):
        RunHandle(tmp_path).wait()


def test_a_run_that_failed_before_it_began_says_why(tmp_path: Path) -> None:
    failed = RunFailed(at=2.0, who="user", message="no such column", trace="")
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(failed) + b"\n")
    ending = RunHandle(tmp_path).wait()
    assert ending.state == "failed"
    assert "no such column" in ending.why
