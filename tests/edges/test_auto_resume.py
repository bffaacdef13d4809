"""A master that is started by one command, whether its run was begun or not."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import recorded_run
from brim.coordination.job.membership import RunOutcome
from brim.master.alone import encode_summary
from brim.master.entries import Began, decode
from brim.master.progress import Progress
from brim.storage.bundles import digest_of, pack
from brim.storage.checkpoints import Checkpoint, Store
from brim.storage.file_stores import open_place
from brim.storage.job_file import CODE, JOB_FILE, read_job, write_job
from brim.storage.journal import read_frames
from brim.storage.kept_runs import Keeping
from brim_lab.driver import Driver
from e2e.running import DIGITS, until

LISTEN = ("--auto-resume", "--run-dir", "run", "--listen", "127.0.0.1:0")


@contextlib.contextmanager
def started(folder: Path, *words: str, token: str = "t") -> Iterator[subprocess.Popen[str]]:
    driver = Driver(folder, BRIM_TOKEN=token)
    command = ("master", *words, *LISTEN, "--heartbeat-file", str(folder / "heart"))
    with driver.start(*command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            driver.end()


def says(folder: Path) -> str:
    path = folder / "heart"
    return path.read_text().strip() if path.exists() else ""


def output_after_signal(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """Its words, once it has ended by a signal."""
    process.send_signal(number)
    explanation = process.communicate(timeout=300)[1]
    assert process.returncode == (0 if number == signal.SIGTERM else -number), explanation
    assert "Traceback" not in explanation
    return explanation


def lead(folder: Path, *words: str, token: str = "t") -> str:
    """Have a master lead a run without agents for a moment; its words."""
    with started(folder, *words, token=token) as process:
        until(lambda: says(folder) == "ready" or process.poll() is not None, "a start")
        return output_after_signal(process)


def attempts(run_dir: Path) -> list[str]:
    frames, _ = read_frames((run_dir / "journal").read_bytes(), name="journal")
    return [entry.attempt for entry in map(decode, frames) if isinstance(entry, Began)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((*LISTEN,), "FILE: got nothing"),
        ((DIGITS, "--auto-resume", "--listen", "127.0.0.1:0"), "--run-dir: got nothing"),
        ((DIGITS, "--listen", "127.0.0.1:0", "--rejoin-timeout", "1s"), "--rejoin-timeout: got"),
        (("no/job.json", *LISTEN), "no/job.json: No such file"),
        ((DIGITS, *LISTEN, "--heartbeat-file", "no/where"), "--heartbeat-file: got 'no/where'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    done = Driver(tmp_path, BRIM_TOKEN="t").call("master", *words, codes=(1, 2))
    assert error in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_tokenless_master_is_not_restarted_repeatedly(tmp_path: Path) -> None:
    done = Driver(tmp_path).call("master", DIGITS, *LISTEN, codes=(2,))
    assert "the run's token: got none" in done.stderr


def test_one_command_begins_and_continues_a_run(tmp_path: Path) -> None:
    run, waits = tmp_path / "run", ("--rejoin-timeout", "1h")
    with started(tmp_path, DIGITS, *waits) as process:
        until(lambda: (run / "master.json").exists(), "a master that waits")
        assert says(tmp_path) == "waiting"
        output_after_signal(process)
    assert not run.exists(), "no run has begun there"
    assert not (tmp_path / "heart").exists()
    with started(tmp_path, DIGITS, *waits) as process:
        until(lambda: (run / "master.json").exists(), "a master that waits")
        output_after_signal(process, signal.SIGKILL)
    at_once = (DIGITS, "--rejoin-timeout", "none")
    assert "goes on" not in lead(tmp_path, *at_once)
    first = attempts(run)
    assert "goes on at step 0, from its own journal" in lead(tmp_path, *at_once)
    assert "goes on" not in lead(tmp_path, *at_once, token="of another start")
    second = attempts(run)
    assert first != second, "another start of the run is another attempt"
    assert "t" not in first
    with (run / "journal").open("ab") as file:
        file.write(b"damage" * 10)
    assert "is damaged" in lead(tmp_path, *at_once, token="of another start")


def test_a_run_that_has_ended_stays_ended(tmp_path: Path) -> None:
    words = (DIGITS, *LISTEN, "--rejoin-timeout", "none", "--patience", "1s")
    driver = Driver(tmp_path, BRIM_TOKEN="t")
    driver.call("master", *words)
    events = tmp_path / "run" / "events.jsonl"
    ended = events.read_bytes()
    assert json.loads(ended.splitlines()[-1])["summary"]["exit"] == "suspended"
    assert "the run has ended (suspended)" in driver.call("master", *words).stderr
    assert events.read_bytes() == ended, "one start has one end"
    events.write_bytes(ended.replace(b'"exit":"suspended"', b'"exit":"done"'))
    second_call = Driver(tmp_path, BRIM_TOKEN="another").call("master", *words)
    assert "the run has ended (done)" in second_call.stderr


def test_a_lost_directory_resumes_from_the_newest_checkpoint(
    tmp_path: Path,
) -> None:
    place = str(tmp_path / "checkpoints")
    store = Store(open_place(place))
    for step in (3, 7):
        checkpoint = Checkpoint(step=step, tree={"a": 1}, versions={}, data=b"x")
        store.publish(store.draft(checkpoint, writer="w1"))
    explanation = lead(tmp_path, DIGITS, "--rejoin-timeout", "none", "--checkpoints", place)
    assert f"goes on from its newest checkpoint, {store.location(7)}" in explanation


def test_records_that_are_kept_elsewhere_are_brought_back(tmp_path: Path) -> None:
    kept_runs, run_dir = tmp_path / "runs", tmp_path / "before" / "run"
    options = {"file": DIGITS, "directory": str(tmp_path), "runs": str(kept_runs)}
    run_before = recorded_run.RecordedRun(run_dir, recorded_run.spec(**options))
    run_before.begin()
    run_before.train(4)
    write_job(run_dir, run_before.spec)
    Keeping(run_dir, open_place(str(kept_runs / "run"))).bring_up_to_date()
    job = (DIGITS, "--runs", str(kept_runs), "--epochs", "2")
    explanation = lead(tmp_path, *job, "--rejoin-timeout", "none")
    assert f"its records were brought back from {kept_runs / 'run'}" in explanation
    records = (tmp_path / "run" / "steps.jsonl").read_bytes()
    assert records == (run_dir / "steps.jsonl").read_bytes()


def test_a_job_comes_with_its_code(tmp_path: Path) -> None:
    """From a volume of Kubernetes, whose files are links to links."""
    folder, code = tmp_path / "job", pack({"digits.py": Path(DIGITS).read_bytes()})
    written = folder / "..2026_11_28"
    written.mkdir(parents=True)
    spec = recorded_run.spec(file="digits.py", bundle=digest_of(code), faults=())
    write_job(written, spec)
    (written / CODE).write_bytes(code)
    (folder / "..data").symlink_to(written.name)
    for name in (JOB_FILE, CODE):
        (folder / name).symlink_to(f"..data/{name}")
    job = str(folder / JOB_FILE)
    typed = Driver(tmp_path, BRIM_TOKEN="t").call(
        "master", job, *LISTEN, "--epochs", "3", codes=(2,)
    )
    assert "--epochs: got an option of a new run, need only options of this start" in typed.stderr
    lead(tmp_path, job, "--rejoin-timeout", "none")
    assert read_job(tmp_path / "run") == spec
    assert (tmp_path / "run" / CODE).read_bytes() == code
    with started(tmp_path, job) as process:
        until(lambda: says(tmp_path) == "ready", "a start")
        assert "BRIM_TOKEN=t" not in output_after_signal(process), "its token is in its log"


@pytest.mark.parametrize(
    ("metrics", "sizes", "length"), [(3, 3, 3), (900, 3, 0), (900, 2000, None)]
)
def test_a_summary_fits_the_container_limit(metrics: int, sizes: int, length: int | None) -> None:
    """Kubernetes cuts a longer one at its front, and the end of the run would be unreadable."""
    progress = Progress(run="/brim/run", started=0.0, step=40, weights_sha256="a" * 64)
    progress.metrics = {f"accuracy of class {number}": 0.5 for number in range(metrics)}
    progress.world_sizes = set(range(1, sizes + 1))
    text = encode_summary(progress.summary(RunOutcome.DONE, 9.0))
    assert len(text) <= 4096
    found = json.loads(text)
    assert (found["exit"], found["steps"], found["weights_sha256"]) == ("done", 40, "a" * 64)
    assert len(found["metrics"]) == length if length is not None else "metrics" not in found
