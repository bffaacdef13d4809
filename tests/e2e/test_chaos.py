"""Short jobs under chaos keep every promise: a fixed schedule for each kind of fault, and a few
seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.domain.faults import FaultKind, parse_faults
from brim.domain.job import WorkerRange
from brim_lab.chaos.random_faults import random_faults, random_workers
from brim_lab.chaos.results import Calm, Job, Result, Strike
from brim_lab.chaos.trial import Trial, calm_run, kinds_possible_here, run_trial
from e2e.running import FILES, ROOT
from tiers import long_after

pytestmark = pytest.mark.e2e

OPTIONS = "--epochs 20 --global-batch-size 128 --checkpoint-every 20 --heartbeat-timeout 1s"
DEADLINE = 300.0
JOB = Job(file=str(ROOT / "benchmarks" / "chaos" / "job.py"), options=tuple(OPTIONS.split()))
ONE_HOST = (
    "kill rank 1 at step 20; add 2 at step 21; fill disk for 500ms at step 40; stop rank 0 for "
    "200ms at step 60; kill master at step 80; kill template at step 100; kill rank 1 at step 101;"
    " remove 1 at step 120; slow rank 1 by 50ms for 1s at step 130; term rank 0 at step 160; stop "
    "master for 300ms at step 180; stop agent for 500ms at step 190; kill agent 1 at step 200",
    "jump clock by -1h at step 10; kill everything at step 50; jump clock by 1d at step 52; stop "
    "rank 1 for ever at step 90; kill command at step 140; interrupt at step 180",
)
TWO_HOSTS = (
    "delay host 2 by 20ms for 500ms at step 20; cut host 2 for 500ms at step 80; kill agent 2 at "
    "step 140",
    "cut to host 2 for 300ms at step 30; cut from host 2 for 300ms at step 90; kill master at step "
    "150",
)
THREE_HOSTS = (
    "kill host 2 at step 20; cut from host 3 for 6s at step 80; term agent 2 at step 160",
    "kill rank 1 at step 20; kill host 1 at step 80; kill rank 0 at step 160",
)
SEVERAL = [(2, text) for text in TWO_HOSTS] + [(3, text) for text in THREE_HOSTS]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    return calm_run(JOB, tmp_path_factory.mktemp("calm") / "calm", deadline=DEADLINE)


def perform(text: str, calm: Calm, directory: Path, *, hosts: int = 1) -> Result:
    trial = Trial(seed=0, workers=WorkerRange.parse("3"), hosts=hosts, faults=parse_faults(text))
    reasons = kinds_possible_here(hosts)
    lacking = {reasons[fault.kind] for fault in trial.faults} - {""}
    if lacking:
        pytest.skip(f"this machine {', '.join(lacking)}")
    return run_trial(JOB, trial, calm, directory, deadline=DEADLINE)


def step_of(strike: Strike) -> int:
    (fault,) = parse_faults(strike.text)
    return fault.step


@pytest.mark.parametrize("text", long_after(1, ONE_HOST))
def test_every_promise_holds(text: str, calm: Calm, tmp_path: Path) -> None:
    result = perform(text, calm, tmp_path / "trial")
    assert not result.broken
    assert sorted(step_of(strike) for strike in result.strikes) == [
        f.step for f in parse_faults(text)
    ]


@pytest.mark.long
def test_promises_hold_for_id_rows_with_servers(tmp_path: Path) -> None:
    rules = "--set optimizer=adamw --set admit_after=2 --set expire_after=12 --epochs 8"
    job = Job(file=str(FILES / "keyed_embedding.py"), options=(*OPTIONS.split(), *rules.split()))
    calm = calm_run(job, tmp_path / "calm", deadline=DEADLINE)
    faults = parse_faults(
        "kill rank 3 at step 20; kill rank 0 at step 21; stop rank 2 for 300ms at step 60; kill "
        "everything at step 90;"
        " kill rank 2 at step 130; remove 1 at step 150; kill rank 1 at step 180"
    )
    trial = Trial(seed=0, workers=WorkerRange.parse("2"), servers=2, faults=faults)
    result = run_trial(job, trial, calm, tmp_path / "trial", deadline=DEADLINE)
    assert not result.broken
    assert len(result.strikes) == len(faults)


@pytest.mark.netns
@pytest.mark.parametrize(("hosts", "text"), long_after(1, SEVERAL))
def test_every_promise_holds_between_hosts(
    hosts: int, text: str, calm: Calm, tmp_path: Path
) -> None:
    result = perform(text, calm, tmp_path / "trial", hosts=hosts)
    assert not result.broken
    assert sorted(step_of(strike) for strike in result.strikes) == [
        f.step for f in parse_faults(text)
    ]
    assert result.lives == 1 + text.count("kill host 1")


def test_every_kind_is_performed_here() -> None:
    texts = (*ONE_HOST, *TWO_HOSTS, *THREE_HOSTS)
    assert {fault.kind for text in texts for fault in parse_faults(text)} == set(FaultKind)


@pytest.mark.long
@pytest.mark.parametrize("seed", [9])
def test_a_seed_keeps_every_promise(seed: int, calm: Calm, tmp_path: Path) -> None:
    workers = random_workers(seed, WorkerRange.parse("1:4"))
    kinds = [kind for kind, reason in kinds_possible_here(1).items() if not reason]
    faults = random_faults(seed, kinds=kinds, steps=calm.steps, workers=workers.maximum)
    trial = Trial(seed=seed, workers=workers, faults=faults)
    assert not run_trial(JOB, trial, calm, tmp_path / "trial", deadline=DEADLINE).broken


def test_a_broken_promise_is_found_and_kept(calm: Calm, tmp_path: Path) -> None:
    """The weights are not those of another job, and a run that cannot end in time is ended."""
    other_calm = Calm(digest="0" * 64, steps=calm.steps)
    (broken,) = perform("add 1 at step 9", other_calm, tmp_path / "other").broken
    assert broken.startswith(f"weights {calm.digest}, those of the calm run are 000")
    assert (tmp_path / "other" / "run" / "events.jsonl").exists()
    slow = Trial(seed=0, workers=WorkerRange.parse("2"))
    late = run_trial(JOB, slow, calm, tmp_path / "late", deadline=1.0)
    assert late.broken[0].startswith("it had not ended by its deadline")
    assert not any("process" in problem for problem in late.broken)
