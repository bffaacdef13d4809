"""The verbs that look at a run or talk to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.domain.inference import Inference
from brim.errors import EnvironmentFault
from brim.runs.trained import job_with
from recorded_run import RecordedRun, eventful, spec


def brim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.chdir(tmp_path)
    recorded = RecordedRun(Path("runs/flights-1"), spec(), samples=2048)
    recorded.begin()
    recorded.train(3)
    Path("runs/latest").symlink_to("flights-1")
    return recorded


@pytest.fixture
def alive(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("brim.client.status", lambda run_dir: {"queue": 0})

    def resize(*words: object, servers: object) -> dict[str, Any]:
        calls.append(("resize", *words, servers))
        return {}

    def suspend(*words: object) -> dict[str, Any]:
        calls.append(("suspend", *words))
        return {}

    monkeypatch.setattr("brim.client.resize", resize)
    monkeypatch.setattr("brim.client.suspend", suspend)
    return calls


@pytest.mark.parametrize("name", [None, "latest", "flights-1", "runs/flights-1"])
def test_a_run_has_four_names(name: str | None, run: RecordedRun) -> None:
    words = ("report",) if name is None else ("report", name)
    assert brim(*words).stdout == "runs/flights-1/report.html\n"


@pytest.mark.parametrize(
    "verb", ["status", "logs", "report", "ledger", "checkpoints", "evaluate", "predict", "export"]
)
def test_jobs_are_found_by_their_schedulers_state(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "elsewhere"))
    recorded = RecordedRun(tmp_path / "state" / "jobs" / "flights-7", spec(), samples=2048)
    recorded.begin()
    options = {
        "export": ["--output", "model"],
        "predict": ["--output", "p.csv", "--split", "test"],
    }.get(verb, [])
    result_here = brim(verb, "flights-7", *options)
    assert "got 'flights-7', need a run" in result_here.stderr, result_here.output
    result_there = brim(verb, "flights-7", *options, "--state", str(tmp_path / "state"))
    assert "need a run: " not in result_there.stderr, result_there.output
    assert "--state" not in result_there.stderr, result_there.output


def test_a_misspelt_run_is_corrected(run: RecordedRun) -> None:
    result = brim("status", "flight-1")
    assert result.exit_code == 2
    assert "did you mean 'flights-1'?" in result.stderr


@pytest.mark.usefixtures("alive")
def test_status_of_a_run_that_is_alive() -> None:
    text = brim("status").stdout
    assert "runs/flights-1: running" in text
    assert "step 3/8 · epoch 1/2 · loss 0." in text
    assert "world size 4: w0 active, w1 active, w2 active, w3 active" in text
    status = json.loads(brim("status", "--json").stdout)
    assert status["step"] == 3
    assert status["queue"] == 0
    assert [worker["rank"] for worker in status["workers"]] == [0, 1, 2, 3]


@pytest.mark.usefixtures("alive")
def test_status_shows_uneven_shares_and_silence(run: RecordedRun) -> None:
    run.share_out([3, 2, 2, 1], "w3 is 3.0 times slower")
    run.events.append(
        "worker", worker="w1", state="suspect", pid=0, agent="a0", rank=None, reason=""
    )
    text = brim("status").stdout
    assert (
        "w0 active (share 3), w1 suspect (share 2), w2 active (share 2), w3 active (share 1)"
        in text
    )
    assert "round 2: 4 workers, shares 3, 2, 2, 1 from step 3 (w3 is 3.0 times slower)" in text
    assert [load["share"] for load in json.loads(brim("status", "--json").stdout)["workers"]] == [
        3,
        2,
        2,
        1,
    ]
    brim("report", "latest")
    assert "3, 2, 2, 1" in Path("runs/flights-1/report.html").read_text()


@pytest.mark.usefixtures("run")
def test_status_of_a_run_whose_master_was_killed() -> None:
    assert json.loads(brim("status", "--json").stdout)["state"] == "died"


def test_resize_and_suspend_reach_the_run(alive: list[tuple[Any, ...]]) -> None:
    assert brim("resize", "latest", "3").exit_code == 0
    assert brim("resize", "latest", "--ps", "2").exit_code == 0
    assert brim("suspend", "flights-1").exit_code == 0
    run = Path("runs/flights-1")
    assert alive == [("resize", run, 3, None), ("resize", run, 0, 2), ("suspend", run)]


@pytest.mark.usefixtures("alive")
def test_a_resize_says_to_what() -> None:
    assert (
        "WORKERS: got nothing, need a number of workers, or --ps N"
        in brim("resize", "latest").stderr
    )


@pytest.mark.usefixtures("run")
def test_a_run_that_has_ended_cannot_be_suspended() -> None:
    result = brim("suspend", "latest")
    assert result.exit_code == 1
    assert "not running" in result.stderr
    assert "Traceback" not in result.output


def test_logs_stand_under_their_workers_names(run: RecordedRun) -> None:
    folder = run.run_dir / "logs"
    folder.mkdir()
    (folder / "w1.log").write_text("hello\nunfinished")
    (folder / "w10.log").write_text("ten\n")
    (folder / "w2.log").write_text("two\n")
    assert brim("logs").stdout == "w1 | hello\nw2 | two\nw10 | ten\n"
    assert brim("logs", "latest", "--worker", "w2").stdout == "w2 | two\n"
    assert "w1, w10, w2" in brim("logs", "--worker", "x").stderr
    lines = brim("logs", "latest", "--worker", "w1", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"worker": "w1", "text": "hello"}]


def test_logs_follow_until_the_run_ends(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.run_dir / "logs"
    folder.mkdir()
    log = folder / "w0.log"
    log.write_text("one\n")
    questions = 0

    def status(run_dir: Path) -> dict[str, Any]:
        nonlocal questions
        questions += 1
        if questions == 3:
            raise EnvironmentFault("gone")
        with open(log, "a") as file:
            file.write(f"more {questions}\n")
        return {}

    monkeypatch.setattr("brim.client.status", status)
    monkeypatch.setattr("brim.runs.handle._POLL_INTERVAL", 0.0)
    result = brim("logs", "-f")
    assert result.stdout == "w0 | one\nw0 | more 1\nw0 | more 2\n"
    assert "step 3/8 · epoch 1/2 · loss 0." in result.stderr
    assert "4 workers" in result.stderr
    questions = 2
    assert brim("logs", "-f", "--json").stderr == ""


def test_the_ledger_of_an_eventful_run_is_exact(tmp_path: Path) -> None:
    eventful(tmp_path / "run", samples=8192, epochs=2)
    result = brim("ledger", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "exact: every sample of every epoch was applied exactly once" in result.stdout
    account = json.loads(brim("ledger", str(tmp_path / "run"), "--json").stdout)
    assert account["exact"] is True
    assert account["epochs"][1] == {
        "epoch": 2, "samples": 8192, "applied_once": 8192, "missing": 0, "repeated": 0, "mismatched": 0,
    }  # fmt: skip


@pytest.mark.usefixtures("run")
def test_unfinished_ledgers_say_what_is_missing() -> None:
    result = brim("ledger", "latest", "--json")
    assert result.exit_code == 1
    account = json.loads(result.stdout)
    assert account["exact"] is False
    assert [epoch["missing"] for epoch in account["epochs"]] == [512, 2048]


def test_model_use_has_no_training_memory_limit() -> None:
    inference = Inference(
        kind="evaluate", run="r", checkpoints="r/checkpoints", step=1, checkpoint="c"
    )
    values: dict[str, Any] = {"workers": None, "device": None, "faults": ()}
    assert job_with(spec(memory=1 << 30), inference, values).memory is None
