"""Asynchronous training applies every batch once, within its bound, through deaths, resizes and
pauses.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.running import DIGITS, FILES, PACED, Run, check_ledger, lines, started, train, until
from tiers import long_after

pytestmark = pytest.mark.e2e

CLICKS = (str(FILES / "large_embedding.py"), "--epochs", "3", "--global-batch-size", "64")
SMALL = (DIGITS, "--epochs", "3", "--global-batch-size", "32")


def check_bound(steps: list[dict[str, Any]], *, limit: int) -> None:
    """Within a round and an epoch no worker begins a batch more than `limit` ahead of another that
    still has batches.
    """
    for _, phase in itertools.groupby(steps, key=lambda step: (step["round"], step["epoch"])):
        ranks = [step["parts"][0][0] for step in phase]
        counts: Counter[int] = Counter()
        for index, rank in enumerate(ranks):
            slowest = min(counts[rank] for rank in set(ranks[index:]))
            assert counts[rank] - slowest <= limit, (rank, counts)
            counts[rank] += 1


def restored(run: Path) -> list[int]:
    """The steps that the run went back to."""
    return [event["step"] for event in lines(run / "events.jsonl") if event["kind"] == "restored"]


@pytest.mark.parametrize("workers", long_after(1, [2, 1, 4]))
def test_batches_apply_once_within_the_lead_limit(tmp_path: Path, workers: int) -> None:
    run = tmp_path / "run"
    summary = train(run, *CLICKS, "--async", "1", "--workers", str(workers))
    assert summary["exit"] == "done"
    assert summary["steps"] == 192
    check_ledger(run)
    steps = lines(run / "steps.jsonl")
    assert [step["step"] for step in steps] == list(range(1, 193))
    check_bound(steps, limit=1)
    assert {part[0] for step in steps for part in step["parts"]} == set(range(workers))
    stale = max(step["staleness"] for step in steps)
    assert stale == 0 if workers == 1 else stale >= workers - 1


@pytest.mark.long
def test_batches_apply_once_through_deaths_within_turns(
    tmp_path: Path,
) -> None:
    """Gradients that depend on nothing give the same sum in any order:
    to the bit, tables and all.
    """
    job = (str(FILES / "sums.py"), "--epochs", "2", "--global-batch-size", "64")
    exact = train(tmp_path / "exact", *job, "--workers", "1")
    run = tmp_path / "run"
    summary = train(run, *job, "--workers", "3", "--async", "2", "--set", "deaths=3,17,18,40,51")
    assert {path.name for path in run.glob("death-*")} == {
        f"death-{step}" for step in (3, 17, 18, 40, 51)
    }
    check_ledger(run)
    assert summary["weights_sha256"] == exact["weights_sha256"]


@pytest.mark.parametrize("seed", long_after(1, range(3)))
def test_batches_apply_once_through_deaths_and_resizes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(5, 180), 8))
    faults = [f"kill rank {rng.randrange(3)} at step {step}" for step in moments[:6]]
    faults += [f"add 1 at step {moments[6]}", f"remove 2 at step {moments[7]}"]
    run = tmp_path / "run"
    summary = train(
        run,
        *CLICKS,
        "--async",
        "2",
        "--workers",
        "3",
        "--micro-batches",
        "8",
        "--faults",
        "; ".join(faults),
    )
    assert summary["exit"] == "done"
    assert summary["steps"] == 192
    if not restored(
        run
    ):  # who had the state did not die at once: only what was under way is done again
        assert summary["steps_redone"] <= 7
    check_ledger(run)
    check_bound(lines(run / "steps.jsonl"), limit=2)


@pytest.mark.long
def test_a_suspended_run_resumes_its_remaining_batches(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fault = (
        "term rank 0 at step 20; term rank 0 at step 21; term rank 1 at step 20; term rank 1 "
        "at step 21"
    )
    with started(
        run, "train", *SMALL, "--async", "2", "--workers", "2", "--faults", fault
    ) as first:
        assert first.finish()["exit"] == "suspended"
    last_step = lines(run / "steps.jsonl")[-1]["step"]
    assert last_step < 47
    summary = train(run, *SMALL, "--resume", "--async", "2", "--workers", "3")
    assert summary["exit"] == "done"
    assert summary["steps"] == 141
    assert summary["steps_redone"] == 0
    check_ledger(run)


def test_total_loss_returns_to_the_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    faults = "; ".join(f"kill rank {rank} at step 30" for rank in range(3))
    job = (*SMALL, "--async", "2", "--workers", "3", "--checkpoint-every", "5", "--spares", "0")
    with started(run, "train", *job, *PACED, "--faults", faults) as paced:
        until(lambda: bool(restored(run)), "a restore", paced)
        paced.hurry()
        summary = paced.finish()
    assert summary["exit"] == "done"
    check_ledger(run)
    assert [0 < step <= 30 for step in restored(run)] == [True]


@pytest.mark.parametrize("keyed", ["false", "true"])
@pytest.mark.long
def test_tables_apply_batches_once_through_agent_death(tmp_path: Path, keyed: str) -> None:
    job = (
        str(FILES / "sums.py"),
        "--epochs",
        "2",
        "--global-batch-size",
        "64",
        "--set",
        f"keyed={keyed}",
    )
    exact = train(tmp_path / "exact", *job, "--workers", "1")
    options = ("--async", "2", "--workers", "3", "--checkpoint-every", "10")
    with started(tmp_path / "run", "train", *job, *PACED, *options) as run:
        run.wait_for_step(25)
        agent_of(run).kill()
        until(lambda: bool(run.events("restored")), "a restore", run)
        run.wait_for_step(run.events("restored")[0]["step"] + 3)
        run.hurry()
        summary = run.finish()
    check_ledger(tmp_path / "run")
    assert summary["weights_sha256"] == exact["weights_sha256"]


@pytest.mark.long
def test_a_newcomer_joins_at_a_lone_workers_checkpoint(tmp_path: Path) -> None:
    """Both begin the checkpoint that the newcomer finds in the state, and only then take turns."""
    run = tmp_path / "run"
    options = ("--async", "2", "--workers", "1:2", "--checkpoint-every", "1")
    summary = train(run, *SMALL, *options, "--faults", "remove 1 at step 1; add 1 at step 20")
    assert summary["exit"] == "done"
    assert summary["steps"] == 141
    check_ledger(run)


def agent_of(run: Run) -> psutil.Process:
    children = psutil.Process(run.process.pid).children()
    return next(
        child for child in children if any("brim.agent" in word for word in child.cmdline())
    )


@pytest.mark.long
def test_a_loop_that_stops_early_leaves_no_gap(tmp_path: Path) -> None:
    run, loop = tmp_path / "run", str(FILES / "stopping_loop.py")
    options = ("--async", "2", "--workers", "3", "--faults", "kill rank 1 at step 120")
    with started(run, "run", *options, "--", sys.executable, loop) as stopping:
        summary = stopping.finish()
    assert summary["exit"] == "done", stopping.err
    assert 130 < summary["steps"] < 145
    check_ledger(run)


def test_slow_workers_are_awaited_only_at_the_bound(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(run, "train", *SMALL, *PACED, "--async", "3", "--workers", "2") as paced:
        paced.wait_for_step(4)
        paced.hurry()
        assert paced.finish()["exit"] == "done"
    check_bound(lines(run / "steps.jsonl"), limit=3)
    check_ledger(run)
