"""Options of `brim chaos` that its runs differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brim.train.captured.captured_steps import tell_of_eager_steps, tell_of_replayed_steps
from brim_lab.chaos import trial
from brim_lab.chaos.promises import why_none_replayed
from brim_lab.chaos.results import Calm, Job, Result
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


@pytest.mark.parametrize(
    ("reasons", "code"), [(("slower", "slower"), 1), (("slower", ""), 0), (("", ""), 0)]
)
def test_trials_that_replay_nothing_fail(
    reasons: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = iter(reasons)

    def run_trial(job: Job, trial_: trial.Trial, *_: object, **__: object) -> Result:
        reason = next(remaining)
        facts: dict[str, Any] = {"seconds": 1.0, "lives": 1, "still_eager": reason}
        return Result(trial=trial_, broken=(), strikes=(), **facts)

    monkeypatch.setattr(trial, "calm_run", lambda *_, **__: Calm("0" * 64, 50, 1 << 20))
    monkeypatch.setattr(trial, "run_trial", run_trial)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(chaos, [str(JOB), "--capture", "--runs", "2"], standalone_mode=False)
    assert done.return_value == code
    assert ("nothing was replayed in 2 runs: slower" in done.stderr) == bool(code)


def test_logs_tell_whether_steps_were_replayed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = [tmp_path / "w1.log", tmp_path / "w2.log"]
    for log in logs:
        log.write_text("")
    assert "in time" in why_none_replayed(logs)
    tell_of_eager_steps("a parameter has hooks")
    logs[0].write_text(capfd.readouterr().err)
    assert why_none_replayed(logs) == "a parameter has hooks"
    tell_of_replayed_steps("a step's passes take 1 ms")
    logs[1].write_text(capfd.readouterr().err)
    assert why_none_replayed(logs) == ""
