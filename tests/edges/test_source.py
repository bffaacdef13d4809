"""The user's file may be another one when a run is resumed, or its model used:
then they are told.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import recorded_run
from brim.domain.job import JobSpec
from brim.master.decisions import Decisions, Record
from brim.master.entries import Before, Began, Heard, Joined
from brim.master.state import State
from brim.runs.directories import with_kept_code
from brim.runs.trained import find_trained
from brim.storage.bundles import digest_of
from brim.storage.job_file import (
    CHANGED_CODE,
    CODE,
    bundle_of,
    change_of_source,
    from_kept_code,
    keep_code,
    kept_bundle,
    with_code_in_place,
)
from brim.user_code.own_code import code_folder
from brim.wire import messages as wire
from e2e.running import DIGITS
from edges.test_checkpoints import write
from edges.test_master import FACTS


@pytest.mark.parametrize(
    "options", [{"file": "job.py"}, {"file": "", "command": ("python", "job.py", "--lr", "1")}]
)
def test_a_run_keeps_its_file_and_sees_changes(tmp_path: Path, options: dict[str, object]) -> None:
    spec = recorded_run.spec(directory=str(tmp_path), **options)
    run, source = tmp_path / "run", tmp_path / "job.py"
    run.mkdir()
    source.write_text("import rates\nrate = rates.one\n")
    (tmp_path / "rates.py").write_text("one = 1\n")
    for _ in range(2):
        keep_code(run, spec)
        assert change_of_source(run, spec) == ""
    first_bundle = kept_bundle(run)
    (tmp_path / "rates.py").write_text("one = 2\n")
    changed = change_of_source(run, spec)
    assert f"{tmp_path / 'rates.py'} has changed since this run began" in changed
    assert f"{run / CODE} has what it began with" in changed
    keep_code(run, spec)
    assert (run / CODE).read_bytes() == first_bundle
    assert kept_bundle(run) == (run / CHANGED_CODE).read_bytes() != first_bundle
    assert bundle_of(run, digest_of(first_bundle)) == first_bundle
    (tmp_path / "rates.py").write_text("one = 1\n")
    keep_code(run, spec)
    assert kept_bundle(run) == first_bundle
    assert not (run / CHANGED_CODE).exists()
    assert from_kept_code(run, spec) is None
    source.unlink()
    assert change_of_source(run, spec) == ""
    code_spec = from_kept_code(run, spec)
    assert code_spec is not None
    placed = with_code_in_place(run, code_spec)
    file = Path(placed.file or placed.command[1])
    assert file.read_text() == "import rates\nrate = rates.one\n"
    assert (file.parent / "rates.py").read_text() == "one = 1\n"
    assert placed.command[2:] == spec.command[2:]


def test_a_lost_module_runs_from_kept_code(tmp_path: Path) -> None:
    run, package = tmp_path / "run", tmp_path / "flights"
    for folder in (run, package):
        folder.mkdir()
    (package / "train.py").write_text("rate = 1\n")
    (tmp_path / "data.py").write_text("")
    command = ("python", "-m", "flights.train", "data.py")
    spec = JobSpec(command=command, parameters={}, directory=str(tmp_path))
    keep_code(run, spec)
    assert from_kept_code(run, spec) is None
    (package / "train.py").unlink()
    warnings: list[str] = []
    placed = with_code_in_place(run, with_kept_code(run, spec, warn=warnings.append))
    assert warnings == [f"module flights.train is gone: the copy that {run} keeps is used"]
    assert (code_folder(placed) / "flights" / "train.py").read_text() == "rate = 1\n"
    spec = JobSpec(command=("python", "-m", "other"), parameters={}, directory=str(tmp_path))
    assert from_kept_code(run, spec) is None


def test_a_resumed_run_warns_of_a_changed_file(tmp_path: Path) -> None:
    beginning = Began(
        at=0.0,
        now=0.0,
        attempt="1",
        life=1,
        spec=recorded_run.spec(),
        run="run",
        started=0.0,
        before=Before(),
        note="job.py has changed",
    )
    decisions = Decisions(State.after(beginning))
    decisions.take(Joined(at=1.0, now=1.0, agent="a1", session="s", host="h"))
    hello = wire.FromWorker(worker="w1", message=wire.Hello(address="h:1", layout="", facts=FACTS))
    effects = decisions.take(Heard(at=1.0, now=1.0, agent="a1", number=1, message=hello))
    events = [msgspec.json.decode(effect.line) for effect in effects if isinstance(effect, Record)]
    assert [event["message"] for event in events if event["kind"] == "warning"] == [
        "job.py has changed"
    ]


def test_model_users_are_warned_of_changed_files(tmp_path: Path) -> None:
    source = Path(shutil.copy(DIGITS, tmp_path / "digits.py"))
    run = recorded_run.RecordedRun(
        tmp_path / "run", recorded_run.spec(file=str(source), directory=str(tmp_path))
    )
    run.begin()
    write(tmp_path / "run" / "checkpoints", 10)
    keep_code(tmp_path / "run", run.spec)
    warnings: list[str] = []
    assert find_trained(str(tmp_path / "run"), warn=warnings.append).step == 10
    assert not warnings
    source.write_text(source.read_text() + "\n")
    assert find_trained(str(tmp_path / "run"), warn=warnings.append).step == 10
    assert "has changed since this run began" in warnings[0]
    source.unlink()
    found = find_trained(str(tmp_path / "run"), warn=warnings.append)
    assert found.spec.bundle == digest_of(kept_bundle(tmp_path / "run"))
    assert f"{source} is gone: the copy that {tmp_path / 'run'} keeps is used" in warnings[-1]
