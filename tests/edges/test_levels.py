"""The level at which a command runs, by its code, and the words in which its user hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.domain.job import JobSpec, WorkerRange
from brim.runs.levels import Level, level_of
from brim.runs.starting import name_of, notes_on_options
from brim.user_code.command_code import keeps_on_each_host

FILES = {
    "prepare.py": "print('ready')",
    "loop.py": "import brim\njob = brim.join(model, optimizer)",
    "renamed.py": "import brim as b\nb.join(model, optimizer)",
    "helped.py": "from loops import fit\nfit()",
    "loops.py": "from brim import join\ndef fit(): join(1, 2)",
    "forgetful.py": "job = brim.join(model, optimizer)",
    "other.py": "brim = print\nbrim.join(1, 2)",
    "starred.py": "from tools import *\nbrim.join(1, 2)",
    "tools.py": "import brim",
    "tuned.py": "from brim.transformers import Trainer",
    "reports.py": "import brim\nbrim.progress(1, 2); ','.join([])",
    "sized.py": "import os\nos.environ['WORLD_SIZE']",
    "forest.py": "from brim import xgboost",
    "broken.py": "def",
    "work/__main__.py": "import brim; brim.join(1, 2)",
}
RESTARTED = "level: restart, from its own checkpoints"
LEVELS = {
    "python prepare.py": f"{RESTARTED} (prepare.py does not call brim.join)",
    "python loop.py --lr 1": "level: exact (loop.py uses brim.join)",
    "python renamed.py": "level: exact (renamed.py uses brim.join)",
    "python helped.py": "level: exact (loops.py uses brim.join)",
    "python forgetful.py": "level: exact (forgetful.py uses brim.join)",
    "python other.py": f"{RESTARTED} (other.py does not call brim.join)",
    "python starred.py": "level: exact (starred.py uses brim.join)",
    "python tuned.py": "level: exact (tuned.py uses brim.transformers)",
    "python reports.py": f"{RESTARTED} (reports.py does not call brim.join)",
    "torchrun --nproc-per-node 2 prepare.py": f"{RESTARTED} (prepare.py does not call brim.join)",
    "python -m work": "level: exact (work/__main__.py uses brim.join)",
    "python -c import\tbrim;brim.join": "level: exact (its code uses brim.join)",
    "python -c print()": RESTARTED,
    "python broken.py": f"{RESTARTED} (broken.py does not call brim.join)",
    "python missing.py": RESTARTED,
    "sh -c ls": RESTARTED,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def described(line: str, workers: str = "1", per: str = "worker") -> list[str]:
    command = tuple(line.split(" "))
    level = level_of(command, None)
    workers_asked = WorkerRange.parse(workers)
    spec = JobSpec(command=command, restart=level.restart, workers=workers_asked, per=per)
    return [level.describe(spec), *level.warnings(spec)]


@pytest.mark.parametrize(("line", "words"), LEVELS.items())
def test_code_decides_the_level(line: str, words: str) -> None:
    assert described(line) == [words]


def test_users_choice_counts_more_than_code() -> None:
    assert level_of(("python", "loop.py"), True) == Level(restart=True)
    assert not level_of(("sh", "loop.sh"), False).restart


def test_changing_sizes_are_warned_of() -> None:
    (first, warning) = described("python prepare.py", workers="1:4")
    assert first.startswith(f"{RESTARTED}, as 1 to 4 processes (")
    assert "--workers 4" in warning
    for line, workers in (
        ("python sized.py", "1:4"),
        ("python forest.py", "1:4"),
        ("sh -c ls", "4"),
    ):
        assert len(described(line, workers=workers)) == 1


def test_boosting_needs_no_shared_disk() -> None:
    lines = ("python forest.py", "python -c import\tbrim.xgboost", "python prepare.py", "sh -c ls")
    assert [keeps_on_each_host(line.split(" ")) for line in lines] == [True, True, False, False]


def test_torchrun_for_each_worker_is_warned_of() -> None:
    (_, warning) = described("torchrun prepare.py", workers="2")
    assert "--per node" in warning
    assert len(described("torchrun prepare.py", workers="2", per="node")) == 1
    assert len(described("torchrun prepare.py")) == 1


def test_options_behind_the_command_are_told() -> None:
    Path("own.py").write_text("parser.add_argument('--workers')")
    (note,) = notes_on_options(("python", "loop.py", "--workers=2", "--lr", "1"))
    assert note.startswith("--workers goes to the command")
    for line in ("python own.py --workers 2", "python loop.py --seed 2", "sh -c ls --workers"):
        assert notes_on_options(tuple(line.split())) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python -m work.train --lr 1", "train"),
        ("python -m torch.distributed.run prepare.py", "prepare.py"),
        ("sh -m ls", "sh"),
    ],
)
def test_jobs_are_named_after_what_they_run(line: str, name: str) -> None:
    assert name_of(JobSpec(command=tuple(line.split(" ")))) == name


def test_arguments_of_a_module_name_no_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = ("python", "-m", "train", "data.py")
    assert name_of(JobSpec(command=command, directory=str(tmp_path))) == "train"
