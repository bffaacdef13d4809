"""Checkpoints of real runs: deaths, outages and losses while they are written, and the choice of
one to resume from.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim_lab.driver import Driver
from e2e.running import DIGITS, FILES, JOB, PACED, check_ledger, started, train, undisturbed, until
from objectstore import ObjectStore, object_store
from tiers import long_after

pytestmark = pytest.mark.e2e

COMMAND = ("train", *JOB)


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def whole(place: str) -> bool:
    """Whether `brim checkpoints` finds every byte of all of them."""
    return Driver().call("checkpoints", place, codes=()).returncode == 0


@pytest.mark.parametrize("remote", long_after(1, [False, True]))
def test_writers_that_are_killed_leave_nothing_half_written(
    tmp_path: Path, s3: ObjectStore, remote: bool
) -> None:
    """A checkpoint at every step, so that a kill of rank 0 meets one in any state."""
    s3.clear()
    place = s3.url if remote else str(tmp_path / "checkpoints")
    calm = undisturbed(*JOB)
    kills = "; ".join(f"kill rank 0 at step {step}" for step in (20, 41, 62, 83, 104))
    options = (
        "--workers",
        "2",
        "--checkpoint-every",
        "1",
        "--checkpoints",
        place,
        "--faults",
        kills,
    )
    summary = train(tmp_path / "run", *JOB, *options)
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")
    assert whole(str(tmp_path / "run"))
    files_left = s3.names() if remote else sorted(Directory(Path(place)).names())
    assert len(files_left) == 4, (
        f"two files for each of two checkpoints, and no draft: {files_left}"
    )


@pytest.mark.long
def test_a_large_embedding_resumes_from_base_and_deltas(tmp_path: Path) -> None:
    """Its writer is killed while it writes a base, and later every worker with the rows."""
    job = [str(FILES / "large_embedding.py"), "--set", "ids=900000", "--epochs", "3"]
    job += ["--global-batch-size", "128"]
    calm = undisturbed(*job)
    kills = "kill rank 0 at step 7; kill rank 0 at step 80; kill rank 1 at step 80"
    # A step takes some 50 ms, so that a base, which takes a second, is official long before step 80.
    options = (
        "--workers",
        "2",
        "--set",
        "pause=0.01",
        "--checkpoint-every",
        "5",
        "--faults",
        kills,
    )
    with started(tmp_path / "run", "train", *job, *options) as run:
        summary = run.finish()
    assert summary["exit"] == "done", run.err
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(tmp_path / "run")
    restored = [event["step"] for event in run.events("restored")]
    assert len(restored) == 1
    assert 0 < restored[0] <= 80, "a base was official by then"
    assert whole(str(tmp_path / "run"))
    store = Store(Directory(tmp_path / "run" / "checkpoints"))
    assert store.drafts() == []
    tables = store.load(store.steps()[-1]).tables
    assert max(len(table.parts) for table in tables) > 1, (
        "a base and deltas; small tables are written whole"
    )
    written = [event["bytes"] for event in run.events("checkpoint")]
    assert min(written) < max(written) / 2, "a checkpoint is not all of the table"


def test_frozen_weights_are_stored_once(tmp_path: Path) -> None:
    """A worker is killed and replaced, then all are, and the last checkpoint is restored."""
    job = [str(FILES / "adapted.py"), "--epochs", "3", "--global-batch-size", "128"]
    calm = undisturbed(*job)
    options = ("--workers", "2", "--checkpoint-every", "4", "--heartbeat-timeout", "1m")
    faults = ("--faults", "kill rank 0 at step 2")
    with started(tmp_path / "run", "train", *job, *PACED, *options, *faults) as run:
        until(lambda: len(run.events("checkpoint")) > 1, "two checkpoints", run)
        until(lambda: len(run.members()) == 2, "no newcomer that could keep the state", run)
        pids = [run.pid(worker) for worker in run.members()]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none gives its state away
            for pid in pids:
                os.kill(pid, number)
        run.hurry()
        summary = run.finish()
    assert summary["exit"] == "done", run.err
    assert summary["weights_sha256"] == calm["weights_sha256"]
    (restored,) = [event["step"] for event in run.events("restored")]
    assert restored >= 8
    written = sorted(event["bytes"] for event in run.events("checkpoint"))
    assert written[-2] < (1 << 20) / 3, "all but the first have what trains"
    names = Directory(tmp_path / "run" / "checkpoints").names()
    assert sum(name.startswith("frozen/") for name in names) == 1
    assert Store(Directory(tmp_path / "run" / "checkpoints")).drafts() == []
    assert whole(str(tmp_path / "run"))


def test_a_lost_host_resumes_from_object_storage(tmp_path: Path, s3: ObjectStore) -> None:
    s3.clear()
    calm = undisturbed(*JOB)
    slow = (*PACED, "--set", f"hurry={tmp_path / 'hurry'}")
    options = (*slow, "--checkpoints", s3.url, "--checkpoint-every", "10")
    with started(tmp_path / "run", *COMMAND, "--workers", "2", *options) as run:
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        run.dismiss_all()
        assert run.finish()["exit"] == "suspended"
    stopped_at = run.steps()[-1]["step"]
    shutil.rmtree(tmp_path / "run")
    assert whole(s3.url)
    (tmp_path / "hurry").touch()
    with started(tmp_path / "new", *COMMAND, "--workers", "3", *options, "--resume") as resumed:
        summary = resumed.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    (restored,) = resumed.events("restored")
    assert restored["step"] == stopped_at
    assert resumed.steps()[0]["step"] == stopped_at + 1


@pytest.mark.long
def test_training_goes_on_while_the_store_is_away(tmp_path: Path, s3: ObjectStore) -> None:
    s3.clear()
    options = ("--checkpoints", s3.url, "--checkpoint-every", "5", "--workers", "2")
    with started(tmp_path / "run", "train", DIGITS, *PACED, "--epochs", "60", *options) as run:
        until(lambda: bool(run.events("checkpoint")), "a checkpoint", run)
        s3.go_away()
        until(lambda: bool(run.events("warning")), "a word that it is away", run)
        run.hurry()
        step = run.steps()[-1]["step"]
        run.wait_for_step(step + 20)
        s3.come_back()
        assert run.finish()["exit"] == "done"
    texts = [event["message"] for event in run.events("warning")]
    assert any("trying again" in text for text in texts)
    assert any("is still being written" in text for text in texts)
    assert whole(s3.url)


@pytest.mark.long
def test_an_interval_may_be_a_time(tmp_path: Path) -> None:
    with started(
        tmp_path / "run",
        "train",
        DIGITS,
        "--epochs",
        "40",
        "--checkpoint-every",
        "200ms",
        "--workers",
        "2",
    ) as run:
        assert run.finish()["exit"] == "done"
    checkpoints = run.events("checkpoint")
    assert len(checkpoints) >= 2
    # By their number: on a busy host the news of one may be late, and that of the next not.
    assert len(checkpoints) <= 3 + (checkpoints[-1]["at"] - checkpoints[0]["at"]) / 0.2
    check_ledger(tmp_path / "run")


@pytest.mark.parametrize(
    ("best", "problem"),
    [("nosuch", "this file measures none"), ("auc", "known: accuracy")],
)
def test_an_unmeasured_metric_is_refused_before_steps(
    tmp_path: Path, best: str, problem: str
) -> None:
    file = tmp_path / "measured.py"
    file.write_text(Path(DIGITS).read_text())
    if best == "nosuch":
        file.write_text(Path(DIGITS).read_text().replace("def metrics", "def none_of_these"))
    with started(tmp_path / "run", "train", str(file), "--keep-best", best) as run:
        run.finish()
        assert run.process.returncode == 2
        assert problem in run.err
        assert not (tmp_path / "run").exists()
