"""Options of `brim chaos` that its runs differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brim_lab.chaos import trial
from brim_lab.chaos.results import Calm, Job
from brim_lab.cli.chaos import chaos

JOB = Path(__file__).parents[2] / "benchmarks" / "chaos" / "job.py"


def test_only_disturbed_runs_replay_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, tuple[str, ...]] = {}

    class Enough(Exception):
        pass

    def calm_run(job: Job, *_: object, **__: object) -> Calm:
        options["calm"] = job.options
        return Calm("0" * 64, 50, 1 << 20)

    def run_trial(job: Job, *_: object, **__: object) -> Any:
        options["disturbed"] = job.options
        raise Enough

    monkeypatch.setattr(trial, "calm_run", calm_run)
    monkeypatch.setattr(trial, "run_trial", run_trial)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Enough):
        CliRunner().invoke(chaos, [str(JOB), "--capture", "--runs", "1"], catch_exceptions=False)
    assert options["disturbed"] == (*options["calm"], "--capture")
    assert "--capture" not in options["calm"]
