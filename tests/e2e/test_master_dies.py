"""kill -9 of a real master wherever it writes, once a run: the result is that of a calm run.

`python -m e2e.test_master_dies` in `tests/` tries every write of a run; the tests here try some of
them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from e2e.running import DIGITS, PACED, Run, check_ledger, started, until
from tiers import long_after

pytestmark = pytest.mark.e2e

# Two rounds, a loss, a newcomer, two epochs with a checkpoint each.
JOB = ("train", DIGITS, "--workers", "2", "--epochs", "2", "--checkpoint-every", "5")
FAULTS = ("--faults", "kill rank 1 at step 2; add 1 at step 4")
DOOMED = str(Path(__file__).parent / "doomed")


def doomed(directory: Path, doom: str) -> tuple[dict[str, Any], int]:
    """A run whose master dies as `doom` says; its summary, and how often a master died."""
    with (
        mock.patch.dict(os.environ, DOOM=doom, PYTHONPATH=DOOMED),
        started(directory, *JOB, *FAULTS) as run,
    ):
        summary = run.finish()
    assert run.process.returncode == 0, run.err
    check_ledger(directory)
    assert not list(directory.glob("**/.*.tmp")) + list(directory.glob("**/.step-*"))
    took_over = [e for e in run.events("warning") if "the master died" in e["message"]]
    return summary, len(took_over)


def count_writes(directory: Path) -> tuple[str, int]:
    """The digest of a run whose master does not die, and how often that one writes."""
    counter = directory.parent / "writes"
    summary, deaths = doomed(directory, f"count:0:{counter}")
    assert deaths == 0
    return summary["weights_sha256"], int(counter.read_text())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    return count_writes(tmp_path_factory.mktemp("calm") / "run")


# The first replaces a file; then the beginning, the middle and the end of a run, before, in and
# after a write.
@pytest.mark.parametrize(
    ("share", "byte_count"),
    long_after(1, [(0.3, 7), (1.0, 10_000), (0.0, 0), (0.1, 0), (0.5, 10_000), (0.8, 0)]),
)
def test_a_master_may_die_wherever_it_writes(
    tmp_path: Path, calm: tuple[str, int], share: float, byte_count: int
) -> None:
    digest, writes = calm
    # Near the end: the commits of a run come in parcels, so their number varies, and the last may
    # be behind the end.
    summary, deaths = doomed(
        tmp_path / "run", f"{int(share * (writes - 5))}:{byte_count}:{tmp_path / 'died'}"
    )
    assert summary["weights_sha256"] == digest
    if share < 1:
        assert (tmp_path / "died").exists()
        assert deaths == (0 if share == 0 else 1)  # it had nothing yet that another could take over


def _master(run: Run) -> int:
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # as the one before may be by now
            if "brim.master" in process.cmdline():
                return int(process.pid)
    raise AssertionError("no master")


def has_lived(run: Run, lives: int) -> bool:
    """Whether so many masters have taken over."""
    return sum("took" in str(e) or "taken" in str(e) for e in run.events("warning")) == lives


def test_training_goes_on_while_there_is_no_master(tmp_path: Path) -> None:
    """Its death is nothing to a run on one host: no round ends, no step is redone."""
    with started(
        tmp_path / "run", "train", DIGITS, *PACED, "--workers", "2", "--epochs", "100"
    ) as run:
        run.wait_for_step(5)
        for lives in range(1, 4):
            os.kill(_master(run), signal.SIGKILL)
            until(
                partial(has_lived, run, lives),
                "another master",
                run,
            )
        run.hurry()
        summary = run.finish()
    assert (summary["exit"], summary["steps_redone"], summary["seconds"]["re_forming"]) == (
        "done",
        0,
        0,
    )
    assert len(run.events("round")) == 1
    check_ledger(tmp_path / "run")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        digest, writes = count_writes(Path(scratch) / "calm")
        broken = 0
        for byte_count in (0, 7, 10_000):
            for last in range(writes):
                directory = Path(scratch) / f"{byte_count}-{last}"
                directory.mkdir()
                start_time = time.monotonic()
                deaths: int | str
                try:
                    summary, deaths = doomed(
                        directory / "run", f"{last}:{byte_count}:{directory / 'died'}"
                    )
                    well = summary["weights_sha256"] == digest
                except AssertionError as error:
                    well, deaths = False, str(error)
                broken += not well
                died = (directory / "died").exists()
                words = f"write {last}/{writes} bytes {byte_count}: {'same digest' if well else 'BROKEN'}"
                elapsed = time.monotonic() - start_time
                print(words, f"died {died} {deaths} {elapsed:.1f} s", flush=True)  # noqa: T201
        print(f"{3 * writes} runs, {broken} broken")  # noqa: T201
        sys.exit(bool(broken))


if __name__ == "__main__":
    main()
