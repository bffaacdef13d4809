"""The ways to find the right words: help, hints and the completion of shells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

import brim
from brim.cli.__main__ import cli
from brim.cli.shared.sections import SECTIONS
from recorded_run import RecordedRun, spec

VERBS = cli.list_commands(click.Context(cli))


def invoked(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_help_lists_grouped_verbs_before_options() -> None:
    text = invoked("--help").stdout
    assert text.startswith("Usage: brim [OPTIONS] VERB")
    order = [
        text.index(f"\n{title}:\n")
        for title in ("Train", "Use a trained model", "Try it out", "Options")
    ]
    assert order == sorted(order)
    assert all(f"\n  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_by_word_or_option_is_the_same(verb: str) -> None:
    by_word, option = invoked("help", verb), invoked(verb, "--help")
    assert by_word.exit_code == option.exit_code == 0
    assert by_word.stdout == option.stdout
    first = option.stdout.split("\n\n")[1].split()[0]
    assert first in {
        "Add", "Answer", "Break", "Change", "Check", "Compute", "Continue", "Delete", "End", "Give", "Hand", "Lead",
        "List", "Pause", "Replace", "Restore", "Run", "Save", "Send", "Show", "Start", "Tell", "Train", "Write",
    }  # fmt: skip


SECTIONED = ("train", "run", "master", "submit", "pod")


def command_of(verb: str) -> click.Command:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


@pytest.mark.parametrize("verb", SECTIONED)
def test_sections_list_each_option_once(verb: str) -> None:
    listed = [option for options in SECTIONS.values() for option in options]
    assert len(listed) == len(set(listed))
    command = command_of(verb)
    params = command.get_params(click.Context(command))
    options = [param for param in params if isinstance(param, click.Option)]
    assert all(set(param.opts) & set(listed) for param in options)
    lines = invoked(verb, "--help").stdout.splitlines()
    for param in options:
        option_lines = [line for line in lines if line.startswith(("  -h, ", "  --"))]
        assert sum(param.opts[-1] in line.split() for line in option_lines) == 1


def test_sections_have_no_unused_option() -> None:
    used = {
        option for verb in SECTIONED for param in command_of(verb).params for option in param.opts
    }
    listed = {option for options in SECTIONS.values() for option in options}
    assert listed - used == {"--help"}


@pytest.mark.parametrize("verb", ["train", "submit"])
def test_ten_usual_options_come_first(verb: str) -> None:
    text = invoked(verb, "--help").stdout
    usual = text.partition("\nUsual options:\n")[2].partition("\n\n")[0]
    assert len(re.findall(r"^  --", usual, re.MULTILINE)) == 10
    assert text.index("Usual options:") < text.index("Code and data:")


@pytest.mark.parametrize("verb", SECTIONED)
def test_options_fit_a_terminal_of_80_columns(verb: str) -> None:
    text = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80).stdout
    options = text.partition("\nUsual options:\n")[2].partition("\nHelp:\n")[0]
    assert max(map(len, options.splitlines())) <= 80


def test_each_verb_has_a_file_of_its_name() -> None:
    own_verbs = [verb for verb in VERBS if verb not in cli.added()]
    assert len(own_verbs) > 25
    for verb in own_verbs:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert command.callback is not None
        assert (command.callback.__module__, command.name) == (f"brim.cli.{verb}", verb)


def test_help_of_a_verbs_verb_and_of_none() -> None:
    assert (
        invoked("help", "simulate", "generate").stdout
        == invoked("simulate", "generate", "--help").stdout
    )
    assert invoked("help").stdout == invoked("--help").stdout
    wrong = invoked("help", "trian")
    assert wrong.exit_code == 2
    assert "did you mean 'train'?" in wrong.stderr


@pytest.mark.parametrize("words", [("-V",), ("--version",)])
def test_module_can_be_run_and_prints_its_version(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brim", *words], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"brim {brim.__version__}\n"


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "state"))
    for age, name in enumerate(("flights-1", "digits-2")):
        RecordedRun(Path("runs") / name, spec(), samples=2048).begin()
        os.utime(Path("runs") / name, (1_000_000_000 + age,) * 2)
    Path("runs/latest").symlink_to("digits-2")
    Path("runs/digits-2/logs").mkdir()
    Path("runs/digits-2/logs/w1.log").touch()
    Path("state/jobs/flights-7").mkdir(parents=True)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("words", "incomplete", "completed"),
    [
        ([], "su", ["suspend", "submit"]),
        (["train"], "fli", ["file"]),
        (["submit"], "", ["file"]),
        (["run", "--", "python"], "lo", ["file"]),
        (["train", "--device"], "c", ["cpu", "cuda"]),
        (["train"], "--glob", ["--global-batch-size"]),
        (["status"], "", ["latest", "digits-2", "flights-1", "flights-7"]),
        (["resume"], "fl", ["flights-1", "flights-7"]),
        (["evaluate"], "runs/", ["dir"]),
        (["cancel"], "", ["flights-7"]),
        (["explain"], "f", ["flights-7"]),
        (["logs", "latest", "--worker"], "w", ["w1"]),
        (["demo"], "exp", ["experiment-1", "experiment-2", "experiment-3"]),
        (["help"], "ledg", ["ledger"]),
        (["trian"], "x", []),
    ],
)
def test_a_shell_completes(words: list[str], incomplete: str, completed: list[str]) -> None:
    found = BashComplete(cli, {}, "brim", "_BRIM_COMPLETE").get_completions(words, incomplete)
    assert [item.value if item.type == "plain" else item.type for item in found] == completed


def test_completing_a_verb_imports_none_of_them() -> None:
    program = "import sys, brim.cli.__main__ as m; m.cli(); "
    check = (
        "import sys, atexit; atexit.register(lambda: print('brim.cli.train' in sys.modules, "
        "file=sys.stderr)); "
    )
    environment = {
        **os.environ,
        "_BRIM_COMPLETE": "bash_complete",
        "COMP_WORDS": "brim trai",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", check + program],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.stdout == "plain,train\n", done.stderr
    assert done.stderr.endswith("False\n")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("train job.py --lr 0.1", "--set lr=0.1, if the file reads 'lr' with brim.param"),
        ("train job.py --learning-rate=0.1", "--set learning_rate=0.1"),
        ("submit job.py --dropout", "--set dropout=VALUE"),
        ("run --lr 0.1 -- python job.py", "after it: brim run -- python loop.py --lr 0.1"),
        ("submit --lr 0.1 -- python job.py", "after it: brim submit -- python loop.py --lr 0.1"),
        ("submit --gpus 4 -- python job.py", "--workers 4: each worker takes one GPU"),
        ("train job.py --epoch 2", "did you mean '--epochs'?"),
        ("status --depth 2", "brim status --help"),
    ],
)
def test_unknown_option_hints_at_a_parameter(line: str, hint: str) -> None:
    result = invoked(*line.split())
    assert result.exit_code == 2
    assert f"hint: {hint}" in result.stderr or hint in result.stderr.partition("hint: ")[2]


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("train jbo.py", "job.py"),
        ("submit jbo.py", "job.py"),
        ("submit jbo.yaml", "job.yaml"),
        ("apply jbo.yaml", "job.yaml"),
        ("up --cluster jbo.yaml", "job.yaml"),
        ("chaos jbo.py", "job.py"),
        ("run jbo.py", "job.py"),
        ("run -- python jbo.py", "job.py"),
        ("simulate --trace jbo.csv", "job.csv"),
        ("explain 1 --sim sin", "sim"),
    ],
)
def test_missing_file_is_named_with_a_suggestion(line: str, meaning: str) -> None:
    for name in ("job.py", "job.yaml", "job.csv"):
        Path(name).touch()
    Path("sim").mkdir()
    result = invoked(*line.split())
    assert result.exit_code == 2, result.output
    assert "no such f" in result.stderr
    assert f"did you mean '{meaning}'?" in result.stderr
