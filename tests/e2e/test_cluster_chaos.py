"""A scheduler and its jobs under chaos keep every promise: two fixed schedules that have every kind
of deed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.domain.job import WorkerRange
from brim_lab.chaos.cluster import ClusterTrial, run_cluster_trial
from brim_lab.chaos.deeds import DeedKind, parse_deeds
from brim_lab.chaos.results import Calm, Job
from brim_lab.chaos.trial import calm_run
from e2e.running import ROOT
from tiers import LONG, NEEDS_HAPROXY, long_after

pytestmark = pytest.mark.e2e

WORDS = "--set pause=0.008 --global-batch-size 128 --checkpoint-every 20 --heartbeat-timeout 3s"
OPTIONS = tuple(WORDS.split())
JOB = Job(file=str(ROOT / "benchmarks" / "chaos" / "job.py"), options=OPTIONS)
EPOCHS = 8
DEADLINE = 200.0
SCHEDULES = (
    "submit 1:4 of ads for 8 epochs by 1m30s at 0s; submit 1:2 of web for 8 epochs at 300ms;"
    " kill scheduler for 500ms at 1s; stop master of job 1 for 300ms at 3s; kill worker of job 1 "
    "at 3500ms;"
    " suspend job 2 for 500ms at 4s; kill agent of job 1 at 4s; kill everything for 1ms at 7s",
    "submit 1:3 of ads for 8 epochs at 0s; submit 1:4 of web for 8 epochs by 1m30s at 0s;"
    " submit 1 of ads for 8 epochs at 500ms; stop scheduler for 500ms at 2s; kill master of job 1 "
    "at 3s;"
    " kill node 2 at 6s; apply ads 3 web 1 at 3s;"
    " resize job 2 to 1:2 at 3500ms; cancel job 3 at 4s; down for 200ms at 4500ms;"
    " kill scheduler for 1ms at 6s",
)
WITH_SERVICE = (
    "serve 1:2 of web at 0s; submit 1:3 of ads for 8 epochs at 0s; ask job 1 15 times a second at 1s;"
    " kill replica of job 1 at 3s; kill scheduler for 500ms at 3100ms; kill front of job 1 at 4500ms;"
    " kill worker of job 1 at 5s; restart job 1 at 5s; kill master of job 1 at 6s"
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Calm]:
    job = Job(file=JOB.file, options=(*OPTIONS, "--epochs", str(EPOCHS)))
    return {EPOCHS: calm_run(job, tmp_path_factory.mktemp("calm") / "calm", deadline=DEADLINE)}


@pytest.mark.parametrize("text", long_after(1, SCHEDULES))
def test_every_promise_of_a_cluster_holds(text: str, calm: dict[int, Calm], tmp_path: Path) -> None:
    deeds = parse_deeds(text)
    nodes = max(deed.node for deed in deeds) or 1
    trial = ClusterTrial(seed=0, workers=WorkerRange.parse("1:4"), nodes=nodes, deeds=deeds)
    result = run_cluster_trial(JOB, trial, calm, tmp_path / "trial", deadline=DEADLINE)
    assert not result.broken
    assert result.lives > 1
    assert result.strikes


def test_every_kind_is_performed_here() -> None:
    texts = (*SCHEDULES, WITH_SERVICE)
    assert {deed.kind for text in texts for deed in parse_deeds(text)} == set(DeedKind)


@LONG
@NEEDS_HAPROXY
def test_every_promise_of_a_service_holds(calm: dict[int, Calm], tmp_path: Path) -> None:
    deeds = parse_deeds(WITH_SERVICE)
    trial = ClusterTrial(seed=0, workers=WorkerRange.parse("1:4"), deeds=deeds)
    result = run_cluster_trial(JOB, trial, calm, tmp_path / "trial", deadline=DEADLINE)
    assert not result.broken
    assert len(result.strikes) == len(deeds) - 2


@pytest.mark.long
def test_wrong_weights_are_found(calm: dict[int, Calm], tmp_path: Path) -> None:
    """The judge is not blind, and its findings are kept."""
    other_calm = {EPOCHS: Calm(digest="0" * 64, steps=calm[EPOCHS].steps)}
    deeds = parse_deeds("submit 4 of ads for 8 epochs at 0s")
    trial = ClusterTrial(seed=0, workers=WorkerRange.parse("1:4"), deeds=deeds)
    (broken,) = run_cluster_trial(
        JOB, trial, other_calm, tmp_path / "trial", deadline=DEADLINE
    ).broken
    assert broken.startswith(f"job-1: weights {calm[EPOCHS].digest}, those of the calm run are 000")
    assert (tmp_path / "trial" / "state" / "jobs" / "job-1" / "events.jsonl").exists()
