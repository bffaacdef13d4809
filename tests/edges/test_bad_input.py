"""A bad spec fails before anything starts, with the field, the value got, the value needed, and a
hint.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.errors import SpecError
from brim.runs.training_file import check_command
from recorded_run import RecordedRun, spec

GOOD = """
def model(): ...
def dataset(split): ...
def loss(output, target): ...
def optimizer(model): ...
"""
FILES = {
    "rows.csv": "1,2\n3,4\n",
    "good.py": GOOD,
    "syntax.py": "def model():\n    return (1,\n\ndef dataset(split): ...\n",
    "no_dataset.py": GOOD.replace("def dataset(split): ...", ""),
    "optimiser.py": GOOD.replace("def optimizer", "def optimiser"),
    "class_model.py": GOOD.replace("def model(): ...", "class Model: ..."),
    "model_arity.py": GOOD.replace("def model():", "def model(width):"),
    "loss_arity.py": GOOD.replace("loss(output, target)", "loss(output)"),
    "dataset_keyword.py": GOOD.replace("dataset(split)", "dataset(split, *, path)"),
    "own_loop.py": "import brim\njob = brim.join(None, None)\n",
    "empty.py": "",
    "lightning_data.py": "def model(): ...\ndef datamodule(stage): ...\n",
    "lightning_loss.py": "import lightning\ndef model(): ...\ndef loss(output, target): ...\n",
    "picture.png": "\x00\x01",
    "pack/__init__.py": "",
    "pack/train.py": "",
}

# name: (arguments, environment, field, got, need, hint)
CASES: dict[str, tuple[str, dict[str, str], str, str, str, str]] = {
    "no such file": ("train god.py", {}, "god.py", "no such file", "a Python file", "did you mean 'good.py'?"),
    "no such directory": ("train x/y.py", {}, "x/y.py", "no such file", "a Python file", "no directory 'x'"),
    "directory": ("train .", {}, ".", "a directory", "a Python file", "brim train"),
    "syntax error": ("train syntax.py", {}, "syntax.py:2", "'(' was never "
                                                           "closed", "valid Python", "py_compile"),
    "not text": ("train picture.png", {}, "picture.png", "null bytes", "Python", "py"),
    "no dataset": ("train no_dataset.py", {}, "no_dataset.py", "no function "
                                                               "'dataset'", "dataset(split)", "help"),
    "misspelt function": (
        "train optimiser.py", {}, "optimiser.py", "no function 'optimizer'", "optimizer(model)",
        "rename 'optimiser' to 'optimizer'?",
    ),
    "class in place of function": (
        "train class_model.py", {}, "class_model.py", "no function 'model'", "model()",
        "the file has a class Model; brim needs a function: def model(): return Model()",
    ),
    "one port": ("train good.py --ports 4100", {}, "--ports", "'4100'", "FIRST-LAST", "4100-4199"),
    "ports backwards": ("up --ports 4199-4100", {}, "--ports", "'4199-4100'", "smaller", "4100-4199"),
    "no such port": ("node --join h:1 --ports 1-70000", {}, "--ports", "'1-70000'", "65535", "--ports"),
    "ports of the environment": (
        "agent h:1", {"BRIM_PORTS": "many"}, "--ports (from BRIM_PORTS)", "'many'", "FIRST-LAST", "--ports 4100-4199",
    ),
    "empty file": ("train empty.py", {}, "empty.py", "no function "
                                                     "'model'", "model()", "brim train --help"),
    "own loop under "
    "train": ("train own_loop.py", {}, "own_loop.py", "no function", "model()", "brim run -- "
                                                                                "python"),
    "a datamodule takes arguments": (
        "train lightning_data.py", {}, "lightning_data.py:2", "datamodule(stage)", "as datamodule()", "def datamodule",
    ),
    "a loss beside a LightningModule": (
        "train lightning_loss.py", {}, "lightning_loss.py", "no function "
                                                            "'dataset'", "dataset(split)", "help",
    ),
    "model takes arguments": (
        "train model_arity.py", {}, "model_arity.py:2", "model(width)", "called as model()", "def model():",
    ),
    "loss takes one": (
        "train loss_arity.py", {}, "loss_arity.py:4", "loss(output)", "loss(output, "
                                                                      "target)", "def loss",
    ),
    "dataset has keyword": (
        "train dataset_keyword.py", {}, "dataset_keyword.py:3", "split, *, path", "dataset(split)", "def dataset",
    ),
    "no file": ("train", {}, "FILE", "nothing", "a training file", "brim train --help"),
    "no cluster file": ("apply", {}, "FILE", "nothing", "a cluster.yaml", "brim apply --help"),
    "no node to drain": ("drain", {}, "NODE", "nothing", "brim nodes lists them", "brim drain"),
    "no bundle": ("serve", {}, "BUNDLE", "nothing", "brim export", "brim serve --help"),
    "two files": ("train good.py "
                  "good.py", {}, "brim train", "extra argument", "[OPTIONS] FILE", "--help"),
    "misspelt verb": ("trian good.py", {}, "brim", "'trian'", "verbs", "did you mean 'train'?"),
    "file for verb": ("good.py", {}, "brim", "'good.py'", "verbs", "brim train good.py"),
    "misspelt flag": (
        "train good.py --worker 4", {}, "--worker", "does not have", "options", "did you mean "
                                                                                "'--workers'?",
    ),
    "flag without value": ("train good.py "
                           "--workers", {}, "--workers", "requires", "a value", "--help"),
    "set without =": ("train good.py --set "
                      "lr", {}, "--set", "'lr'", "NAME=VALUE", "--set learning_rate=0.01"),
    "set twice": ("train good.py --set a=1 --set "
                  "a=2", {}, "--set a", "'1' and '2'", "one value", "keep one"),
    "set no name": ("train good.py --set "
                    "my-lr=1", {}, "--set my-lr", "'my-lr'", "letters", "learning_rate"),
    "env of brim's own": (
        "train good.py --env BRIM_TOKEN=x", {}, "--env BRIM_TOKEN", "begins with "
                                                                    "BRIM_", "brim's own", "--env TOKEN=",
    ),
    "env not set here": (
        "train good.py --env "
        "NOT_SET", {}, "--env NOT_SET", "not set here", "NAME=VALUE", "--env NOT_SET=VALUE",
    ),
    "env no name": ("train good.py --env "
                    "a-b=1", {}, "--env a-b", "'a-b'", "letters", "--env OMP_NUM_THREADS=2"),
    "workers no number": ("train good.py --workers "
                          "many", {}, "--workers", "'many'", "MINIMUM:MAXIMUM", "1:4"),
    "workers empty range": ("train good.py --workers "
                            "4:1", {}, "--workers", "'4:1'", "MINIMUM <= MAXIMUM", "1:4"),
    "workers zero": ("train good.py --workers "
                     "0", {}, "--workers", "'0'", "1 <= MINIMUM", "--workers 1:4"),
    "workers beyond the host": (
        "run --workers 1:200000 -- python good.py", {}, "--workers", "1:200000", "on this host",
        "--workers 4",
    ),
    "data as a training file": ("train rows.csv", {}, "rows.csv", "a .csv file", "a Python file",
                                "brim train --help"),
    "epochs zero": ("train good.py --epochs 0", {}, "--epochs", "'0'", "from 1", "--epochs 1"),
    "epochs from environment": (
        "train good.py", {"BRIM_EPOCHS": "two"}, "--epochs (from "
                                                 "BRIM_EPOCHS)", "'two'", "a whole number",
        "--epochs 1",
    ),
    "batch below micro-batches": (
        "train good.py --global-batch-size 4", {}, "--global-batch-size", "4", "each of the 8 "
                                                                               "micro-batches",
        "--global-batch-size 8",
    ),
    "micro-batches zero": ("train good.py --micro-batches "
                           "0", {}, "--micro-batches", "'0'", "from 1", "hint"),
    "micro-batches in words": (
        "train good.py --micro-batches "
        "automatic", {}, "--micro-batches", "'automatic'", "from 1, or auto",
        "--micro-batches auto",
    ),
    "more workers than micro-batches": (
        "train good.py --workers 5 --micro-batches 4", {}, "--micro-batches", "4 for up to 5 "
                                                                              "workers",
        "one micro-batch for each worker", "--micro-batches 8",
    ),
    "seed negative": ("train good.py --seed=-1", {}, "--seed", "'-1'", "from 0", "--seed"),
    "seed huge": (f"train good.py --seed {2**70}", {}, "--seed", str(2**70), "at most", "--seed 0"),
    "clip norm zero": ("train good.py --clip-norm "
                       "0", {}, "--clip-norm", "0", "above 0", "leave it out"),
    "clip norm no number": ("train good.py --clip-norm "
                            "big", {}, "--clip-norm", "'big'", "a number", "1.0"),
    "clip norm nan": ("train good.py --clip-norm "
                      "nan", {}, "--clip-norm", "nan", "above 0", "leave it out"),
    "threads zero": ("train good.py --threads 0", {}, "--threads", "'0'", "from 1", "--threads 1"),
    "heartbeat no unit": (
        "train good.py --heartbeat-timeout "
        "3parsec", {}, "--heartbeat-timeout", "'3parsec'", "duration", "units",
    ),
    "heartbeat zero": (
        "train good.py --heartbeat-timeout 0s", {}, "--heartbeat-timeout", "'0s'", "above 0", "3s",
    ),
    "log limit no size": ("train good.py --log-limit "
                          "1XB", {}, "--log-limit", "'1XB'", "a size above 0", "GiB"),
    "log limit tiny": ("train good.py --log-limit "
                       "4KiB", {}, "--log-limit", "4,096 bytes", "at least 1 MiB", "256MiB"),
    "log limit huge": (
        "train good.py --log-limit "
        f"{'9' * 400}TiB", {}, "--log-limit", "'999", "a size above 0", "units: KiB",
    ),
    "faults misspelt": (
        "train good.py --faults", {"ARG": "kil rank 1 at step 4"}, "--faults", "'kil rank 1 at "
                                                                               "step 4'",
        "kill, term, stop, add, remove, interrupt, cut, delay, fill, jump or slow", "did you mean 'kill'?",
    ),
    "faults second clause": (
        "train good.py --faults", {"ARG": "add 1 at step 2; kill 1 at step "
                                          "4"}, "--faults", "'kill 1 at step 4'",
        "like 'kill rank 1 at step 40'", "--faults",
    ),
    "faults add too many": (
        "train good.py --workers 4 --faults", {"ARG": "add 6 at step 2"}, "--faults",
        "'add 6 at step 2', which makes 10 workers", "at most 8 workers", "--micro-batches 10",
    ),
    "faults bad duration": (
        "train good.py --faults", {"ARG": "stop rank 0 for ages at step "
                                          "4"}, "--faults", "'ages'", "a duration",
        "units",
    ),
    "faults rank too high": (
        "train good.py --faults", {"ARG": "kill rank 9 at step "
                                          "4"}, "--faults", "kill rank 9", "below 8",
        "count from 0",
    ),
    "start method": (
        "train good.py --start-method frok", {}, "--start-method", "'frok'", "auto, fork, "
                                                                             "spawn", "'fork'",
    ),
    "transport": ("train good.py --transport "
                  "nccl", {}, "--transport", "'nccl'", "auto, distributed", "known"),
    "loaders": ("train good.py --loaders -1", {}, "--loaders", "'-1'", "a whole number from "
                                                                       "0", "--loaders 1"),
    "device": ("train good.py --device gpu", {}, "--device", "'gpu'", "auto, cpu, cuda", "hint"),
    "listen": ("train good.py --listen 4000", {}, "--listen", "'4000'", "HOST:PORT", "0.0.0.0:0"),
    "listen on IPv6": ("train good.py --listen ::1:4000", {}, "--listen", "'::1:4000'", "in "
                                                                         "brackets", "[::1]:4000"),
    "listen on one link": (
        "train good.py --listen [fe80::1%eth0]:4000", {}, "--listen", "an address of one link", "all "
        "hosts", "ip -6 address show",
    ),
    "join on one link": (
        "agent 10.0.0.7:1,[fe80::1]:4000", {}, "MASTER_ADDRESS", "an address of one link", "all hosts",
        "ip -6 address show",
    ),
    "server on one link": (
        "--server https://[fe80::1%25eth0]:4000 jobs", {}, "--server", "an address of one link", "its "
        "name", "ip -6 address show",
    ),
    "distributed between hosts": (
        "train good.py --transport distributed --listen 10.0.0.7:0", {}, "--transport distributed",
        "neither encrypt nor authenticate", "a private network", "--insecure",
    ),
    "insecure": ("train good.py --insecure", {}, "--insecure", "one host", "other hosts",
                 "leave it out, or --listen HOST:PORT"),
    "insecure again": ("resume old --insecure", {}, "--insecure", "one host", "other hosts",
                       "--listen HOST:PORT"),
    "agents": ("train good.py --agents 0", {}, "--agents", "'0'", "from 1", "--agents 1"),
    "run dir is a run": ("train good.py --run-dir "
                         "old", {}, "--run-dir", "holds a run", "new directory", "--resume"),
    "run dir is a file": ("train good.py --run-dir "
                          "good.py", {}, "--run-dir", "a file", "new or empty", "good.py-1"),
    "run dir has files": ("train good.py --run-dir "
                          "full", {}, "--run-dir", "other files", "empty", "full-1"),
    "run dir unwritable": (
        "train good.py --run-dir "
        "good.py/x", {}, "--run-dir", "cannot be written", "can be made", "runs/mine",
    ),
    "resume nothing": ("train good.py "
                       "--resume", {}, "--resume", "'latest'", "a run", "brim train FILE.py"),
    "resume other seed": (
        "train flights.py --resume --run-dir old --seed "
        "7", {}, "--seed", "7", "0, as the run", "leave --seed out",
    ),
    "resume other file": (
        "train good.py --resume --run-dir old", {}, "FILE", "'good.py'", "'flights.py', as the "
                                                                         "run", "same file",
    ),
    "resume other parameters": (
        "train flights.py --resume --run-dir old --set lr=1", {}, "--set", "lr=1", "nothing, as "
                                                                                   "the run", "leave",
    ),
    "run without command": ("run", {}, "COMMAND", "nothing", "a command", "brim run -- python "
                                                                          "loop.py"),
    "run no such program": ("run -- pyton9 "
                            "loop.py", {}, "COMMAND", "'pyton9'", "a program", "installed"),
    "run no such script": ("run -- python "
                           "lop.py", {}, "lop.py", "no such file", "a Python file", "hint"),
    "run no such module": (
        "run -- python -u -m pack.trian", {}, "COMMAND", "python -m pack.trian",
        "a file pack/trian.py or pack/trian/__main__.py", "did you mean 'train'?",
    ),
    "run a package without a main module": (
        "run -- python -m pack", {}, "COMMAND", "python -m pack", "a file pack/__main__.py", "pack.MODULE",
    ),
    "status of nothing": ("status nix", {}, "RUN", "'nix'", "a path, a name under "
                                                            "runs", "none here yet"),
    "resize no number": ("resize old many", {}, "WORKERS", "'many'", "from 1", "hint"),
    "resize without number": ("resize old", {}, "WORKERS", "nothing", "a number of "
                                                                      "workers", "brim resize old "
                                                                                 "4"),
    "logs of no worker": ("logs old --worker "
                          "w9", {}, "--worker", "'w9'", "a worker of old", "hint"),
    "ledger of nothing": ("ledger", {}, "RUN", "'latest'", "a run", "none here yet"),
    "resume of nothing": ("resume nix", {}, "RUN", "'nix'", "a path, a name under "
                                                            "runs", "none here yet"),
    "resume without workers": ("resume old --workers "
                               "0", {}, "--workers", "'0'", "1 <= MINIMUM", "1:4"),
    "resume with too many workers": (
        "resume old --workers 9", {}, "--micro-batches", "8 for up to 9 "
                                                         "workers", "one micro-batch", "hint",
    ),
    "evaluate without a "
    "run": ("evaluate", {}, "RUN|CHECKPOINT", "nothing", "a run that trained", "--help"),
    "evaluate of nothing": ("evaluate nix", {}, "RUN", "'nix'", "a path, a name under "
                                                                "runs", "none here yet"),
    "evaluate without a checkpoint": (
        "evaluate old", {}, "old", "a run without a checkpoint", "a run that has "
                                                                 "one", "brim checkpoints old",
    ),
    "evaluate no such checkpoint": (
        "evaluate old/checkpoints/step-00000009", {}, "old/checkpoints", "no directory", "RUN/checkpoints",
        "brim checkpoints RUN",
    ),
    "evaluate two things": (
        "evaluate old --split test --input a.csv", {}, "--split", "--input beside "
                                                                  "it", "one of them", "leave",
    ),
    "predict without rows": ("predict old --output "
                             "p.csv", {}, "--input", "nothing", "rows", "--input FILE"),
    "predict without output": ("predict old --input "
                               "a.csv", {}, "--output", "nothing", "a value", "--help"),
    "predict to an odd file": (
        "predict old --input a.csv --output p.json", {}, "--output", "'p.json'", ".parquet or "
                                                                                 ".csv", "p.csv",
    ),
    "predict to nowhere": (
        "predict old --input a.csv --output "
        "nix/p.csv", {}, "--output", "'nix/p.csv'", "a folder", "mkdir -p",
    ),
    "keep without a file": (
        "predict old --split test --output p.csv --keep "
        "a", {}, "--keep", "'a'", "--input", "leave it out",
    ),
    "export to a full directory": (
        "export old --output full", {}, "--output", "files in it", "a new directory", "full-1",
    ),
    "export in no such format": (
        "export old --output m --format onxx", {}, "--format", "'onxx'", "safetensors, "
                                                                         "torch-export", "'onnx'",
    ),
    "agent without token": (
        "agent 10.0.0.1:4000", {}, "the run's token", "none", "BRIM_TOKEN, or "
                                                              "--token-file", "brim train --listen",
    ),
    "agent bad address of IPv6": (
        "agent fd00::1:4000", {}, "MASTER_ADDRESS", "'fd00::1:4000'", "in brackets",
        "[fd00::1]:4000",
    ),
    "agent bad address": ("agent nowhere", {}, "MASTER_ADDRESS", "'nowhere'", "HOST:PORT", "hint"),
}  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with training files, one old run, and a runtime that must not be reached."""
    (tmp_path / "pack").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "flights.py").write_text(GOOD)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    RecordedRun(tmp_path / "old", spec()).begin()

    def start(*_: Any, **__: Any) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr("brim.backends.local.start", start)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BRIM_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.usefixtures("workplace")
def test_foreign_modules_are_not_refused() -> None:
    for words in (("-m", "pack."), ("-E", "-m", "pack.other"), ("-m", "json.tool")):
        check_command(("python", *words))


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_programs_that_cannot_run_have_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/sh\n")
    Path("loop.py").write_text("print(1)\n")
    Path("flights.py").write_text(
        "def model(): ...\ndef dataset(split): ...\n"
        "def loss(output, target): ...\ndef optimizer(model): ...\n"
    )
    hints = {
        "./job.sh": "chmod +x ./job.sh, if it is to be run",
        "loop.py": "-- python loop.py",
        "flights.py": "for a training file: brim train flights.py",
    }
    for program, hint in hints.items():
        with pytest.raises(SpecError) as refusal:
            check_command((program,))
        assert refusal.value.hint == hint


@pytest.mark.parametrize("name", CASES)
def test_a_bad_spec_fails_before_anything_starts(name: str, workplace: Path) -> None:
    arguments, given_fields, field, actual, need, hint = CASES[name]
    files_before = names_in(workplace)
    environment: Mapping[str, str] = {
        key: value for key, value in given_fields.items() if key != "ARG"
    }
    words = arguments.split() + ([given_fields["ARG"]] if "ARG" in given_fields else [])
    result = CliRunner().invoke(cli, words, env=environment)
    message, _, hint_line = result.stderr.partition("\n  hint: ")
    subject, _, rest = message.partition(": got ")
    found, _, needed = rest.rpartition(", need ")
    assert result.exit_code == 2, result.output
    assert subject.startswith(field), message
    assert actual in found, message
    assert need in needed, message
    assert hint.removeprefix("hint") in hint_line, result.stderr
    assert hint_line.strip()
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert names_in(workplace) == files_before


def test_without_torch_it_says_which_extra_to_install(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    result = CliRunner().invoke(cli, ["train", "good.py"])
    assert result.exit_code == 2
    assert "torch: got no such package" in result.stderr
    assert "[train]'" in result.stderr.partition("hint: pip install ")[2]
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    "name",
    ["no such file", "misspelt verb", "misspelt flag", "workers empty range", "run dir is a run"],
)
def test_usage_errors_exit_2_without_a_trace(name: str, workplace: Path) -> None:
    arguments, _, field, actual, _, hint = CASES[name]
    done = subprocess.run(
        [sys.executable, "-m", "brim.cli", *arguments.split()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(field)
    assert actual in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (workplace / "runs").exists()
