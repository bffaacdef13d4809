"""The verbs as functions of Python: their names, their options, and their messages on wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import brim
from brim.cli import run as cli_run
from brim.cli import submit as cli_submit
from brim.cli import train as cli_train
from brim.errors import EnvironmentFault, SpecError, UserCodeError
from brim.runs.keywords import context_of, keyword_of
from brim.runs.options import build_spec
from brim.runs.outcome import error_of
from brim.runs.verbs import _RUN, RunOptions, SubmitOptions
from brim.telemetry.history import read_history
from recorded_run import RecordedRun, spec

GOOD = (
    "def model(): ...\ndef dataset(split): ...\ndef loss(output, target): ...\ndef "
    "optimizer(model): ...\n"
)


@pytest.mark.parametrize(
    "program",
    [
        "import brim; import brim.train.params; brim.train",
        "import brim; brim.train; import brim.train.params; brim.train",
        "import brim.train.params; import brim; brim.train",
        "from brim import train; import brim.train.params; import brim; assert train is "
        "brim.train; train",
        "from brim.train import params; import brim; brim.train",
        "import brim; brim.data; brim.train",
    ],
)
def test_train_is_both_verb_and_package(program: str) -> None:
    *first_lines, name = program.split("; ")
    check = [
        *first_lines,
        "try:",
        f"    {name}('missing.py')",
        "except brim.errors.SpecError as e: print(e.got)",
    ]
    lines = "\n".join(
        ["import brim.errors", *check, "import brim.train.params as p; print(p.param.__name__)"]
    )
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "no such file\nparam\n", done.stderr


@pytest.mark.parametrize("name", ["train", "run", "submit", "Run"])
def test_torch_is_not_loaded_before_a_run_starts(name: str) -> None:
    program = f"import brim, sys; brim.{name}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("command", "options", "left_out"),
    [
        (cli_train.train, RunOptions, {"json"}),
        (cli_run.run, RunOptions, {"json", "prints", "tty"}),
        (
            cli_submit.submit,
            SubmitOptions,
            {
                "json",
                "wait",
                "dry_run",
                "state",
                "to",
                "tty",
                "image",
                "mode",
                "gang",
                "processes_per_worker",
                "service",
            },
        ),
    ],
)
def test_keywords_are_the_options_of_the_command_line(
    command: click.Command, options: Any, left_out: set[str]
) -> None:
    keywords = {keyword_of(param) for param in command.params if isinstance(param, click.Option)}
    assert keywords - left_out == set(options.__annotations__)


def train(*words: Any, **options: Any) -> Any:
    package: Any = brim.train  # it can be called, which a checker of types does not see
    return package(*words, **options)


@pytest.mark.parametrize(
    ("call", "field", "actual", "hint"),
    [
        (lambda: train("good.py", worker=4), "worker=", "brim.train does not "
                                                             "have", "did you mean 'workers'?"),
        (lambda: train("good.py", lr=0.1), "lr=", "brim.train does not "
                                                       "have", "set={'lr': 0.1}"),
        (lambda: train("good.py", workers="4:1"), "workers=", "'4:1'", "workers='1:4'"),
        (lambda: train("good.py", epochs=0), "epochs=", "'0'", "epochs=1"),
        (lambda: train("good.py", exact="no"), "exact=", "'no'", "exact=True"),
        (
            lambda: train("good.py", set={"my-lr": 1}), "set={'my-lr': …}", "'my-lr'",
            "set={'learning_rate': '0.01'}",
        ),
        (
            lambda: train("good.py", workers=5, micro_batches=4), "micro_batches=", "4 for up to 5 workers",
            "micro_batches=8, or leave it out",
        ),
        (lambda: train("good.py", env={"BRIM_TOKEN": "x"}), "env={'BRIM_TOKEN': "
                                                                 "…}", "BRIM_", "env={"),
        (lambda: train("good.py", env=["NOT_SET"]), "env={'NOT_SET': "
                                                         "…}", "not set", "env={'NOT_SET': "
                                                                          "'VALUE'}"),
        (lambda: train("good.py", logger="tensorbord"), "logger=", "'tensorbord'", "did you mean 'tensorboard'?"),
        (lambda: brim.run("python good.py", logger=["good.py"]), "logger=", "'good.py'", ""),
        (lambda: train("good.py", logger=Path), "logger=", "a type", ""),
        (lambda: train("god.py"), "god.py", "no such file", "did you mean 'good.py'?"),
        (lambda: train("good.py", run_dir="full"), "run_dir=", "a directory with other "
                                                                    "files", "run_dir='full-1'"),
        (lambda: brim.run([]), "command", "[]", "brim.run(["),
        (lambda: brim.run("python lop.py", workers=2), "lop.py", "no such file", ""),
        (lambda: brim.submit("good.py", deadline="soon"), "deadline=", "'soon'", "deadline='2h'"),
        (lambda: brim.submit("good.py", retries=101), "retries=", "101", "retries=3"),
        (lambda: brim.submit("good.py", array="x"), "array=", "'x'", "array='1-100%4'"),
        (lambda: brim.submit("good.py", notify="mail:dnoe"), "notify=", "'mail:dnoe'", "did you mean 'done'?"),
        (lambda: brim.submit("good.py", spares=1), "spares=", "brim.submit does not have", "set={"),
        (lambda: brim.Run("nowhere"), "RUN", "'nowhere'", "brim train"),
    ],
)  # fmt: skip
def test_python_errors_use_python_terms(
    call: Callable[[], Any],
    field: str,
    actual: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "state"))
    Path("good.py").write_text(GOOD)
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    with pytest.raises(SpecError) as raised:
        call()
    wrong = raised.value
    assert wrong.field == field
    assert actual in wrong.got
    assert hint in wrong.hint
    assert "--" not in str(wrong).replace("run -- python", "")


def test_a_run_without_scheduler_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = RecordedRun(Path("runs/a"), spec(), samples=2048)
    recorded.begin()
    recorded.train(2)
    run = brim.Run("a")
    assert (run.status, len(run.steps)) == ("died", 2)
    recorded.train_to_end()
    recorded.end()
    assert run.status == "done"  # what it says is as of now
    assert len(run.steps) == run.summary["steps"]
    assert run.wait() is run
    assert run.metrics == {"auc": 0.7712, "log_loss": 0.4581}
    with pytest.raises(SpecError, match=r"JOB: got runs/a, a run without a scheduler"):
        run.cancel()
    assert "brim-run" in run._repr_html_()
    assert "var(--" not in run._repr_svg_()


@pytest.mark.parametrize(
    ("culprit", "message", "error"),
    [
        ("user", "ZeroDivisionError: x", UserCodeError("Traceback …")),
        (
            "spec",
            "column 'a': got no such column, need one\n  hint: b",
            SpecError("column 'a'", got="", need=""),
        ),
        ("environment", "the disk is full", EnvironmentFault("the disk is full")),
    ],
)
def test_a_failed_run_raises_as_whoever_must_act(
    culprit: str, message: str, error: Exception, tmp_path: Path
) -> None:
    recorded = RecordedRun(tmp_path / "a", spec(), samples=2048)
    recorded.begin()
    recorded.events.append("failed", who=culprit, message=message, trace="Traceback …")
    recorded.end("failed")
    found = error_of(read_history(tmp_path / "a"), tmp_path / "a")
    assert type(found) is type(error)
    assert str(found) == (message if culprit != "user" else "Traceback …")


@pytest.mark.parametrize(("workers", "parts"), [("1", 1), ("1:4", 4), (3, 4)])
def test_automatic_micro_batches_are_recorded_as_a_number(workers: int | str, parts: int) -> None:
    options = {"workers": workers, "micro_batches": "auto"}
    context = context_of(_RUN, "brim.train", options)
    assert build_spec(context.params, file="good.py").micro_batches == parts
