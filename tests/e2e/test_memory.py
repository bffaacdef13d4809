"""A worker with too much memory is ended and said to be, and no other is: not its job, not the
jobs beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.running import FILES, JOB, PACED, started, undisturbed
from e2e.test_scheduler import Home

pytestmark = [pytest.mark.e2e, pytest.mark.cold]

HUNGRY = str(FILES / "hungry.py")
LIMIT = ("--memory", "600MiB")
TOLD = "of the 600 MiB that --memory gives a worker"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def test_one_memory_excess_replaces_the_worker_exactly(tmp_path: Path, notes: Path) -> None:
    calm = undisturbed(*JOB)
    options = (
        *LIMIT,
        "--set",
        f"notes={notes}",
        "--set",
        "where=child",
        *JOB[1:],
        "--workers",
        "2",
    )
    with started(tmp_path / "run", "train", HUNGRY, *options, *PACED, "--spares", "0") as run:
        run.wait_for_step(3)
        assert adjusted(run.pid("w1")) == adjusted(run.pid("w2")) == 500
        assert adjusted(run.process.pid) < 500
        (notes / "go").touch()
        run.wait_for_step(6)
        run.hurry()
        summary = run.finish()
    assert (summary["exit"], summary["out_of_memory"]) == ("done", 1)
    assert summary["weights_sha256"] == calm["weights_sha256"]
    (lost,) = [event for event in run.events("worker") if event["state"] == "lost"]
    assert lost["worker"] == "w2"
    assert lost["reason"].startswith("out of memory: it had ")
    assert lost["reason"].endswith(TOLD)
    # On a busy machine another may say that it is waited for.
    warnings = [event["message"] for event in run.events("warning")]
    (warning,) = [message for message in warnings if message.startswith("w2 (rank 1) ")]
    assert warning.startswith("w2 (rank 1) was ended, out of memory: it had ")
    assert "give workers more (--memory)" in warning


def adjusted(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.long
def test_memory_excess_everywhere_fails_the_run_with_advice(tmp_path: Path, notes: Path) -> None:
    (notes / "go").touch()
    options = (
        *LIMIT,
        "--set",
        f"notes={notes}",
        "--set",
        "times=100",
        "--workers",
        "2",
        "--spares",
        "0",
    )
    with started(tmp_path / "run", "train", HUNGRY, *options) as run:
        summary = run.finish()
    assert run.process.returncode == 1
    assert (summary["exit"], summary["out_of_memory"]) == ("failed", 6)
    (failed,) = run.events("failed")
    assert failed["who"] == "user"  # another start would end as this one
    assert "6 in a row died young on a1, the last: out of memory: it had " in failed["message"]
    assert f"{TOLD}; give workers more (--memory)" in failed["message"]
    assert failed["message"] in run.err


@pytest.mark.long
def test_memory_limit_spares_the_neighbouring_job(tmp_path: Path, notes: Path) -> None:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    try:
        words = ("--set", f"notes={notes}", "--workers", "2", *PACED)
        jobs = {
            "hungry": home.submit(*words, *LIMIT, file=HUNGRY),
            "calm": home.submit("--workers", "2", *PACED, tenant="web"),
        }
        for job in jobs.values():
            home.wait_for_step(job, 3)
        (notes / "go").touch()
        home.wait_for_step(jobs["hungry"], 12)
        for job in jobs.values():
            (home.run_dir(job) / "hurry").touch()
        ends = {name: home.finished(job) for name, job in jobs.items()}
        assert [end["exit"] for end in ends.values()] == ["done", "done"]
        assert ends["hungry"]["weights_sha256"] == ends["calm"]["weights_sha256"]
        assert (ends["hungry"]["out_of_memory"], ends["calm"]["out_of_memory"]) == (1, 0)
        assert not [
            event for event in home.events(jobs["calm"], "worker") if event["state"] == "lost"
        ]
        (story_line,) = [
            line for line in home.story(jobs["hungry"]) if line["event"] == "out of memory"
        ]
        assert story_line["detail"].startswith("w2: it had ")
        assert story_line["detail"].endswith(TOLD)
    finally:
        home.brim("down", "--kill")
