"""Progress of a run in a pod of a TrainJob: what is reported, and to whom."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.domain.reported import Report
from brim.launch.progress import ProgressServer
from brim.loggers import trainjob
from brim.runs.followers import Followers
from brim.telemetry.history import RunHistory, read_history
from brim.wire import status_server
from recorded_run import RecordedRun, spec


@pytest.fixture(scope="module")
def server() -> Iterator[ProgressServer]:
    """A server that takes reports of the same form, with TLS and a token."""
    server = ProgressServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def pod(server: ProgressServer, monkeypatch: pytest.MonkeyPatch) -> ProgressServer:
    """This process, as one in a pod of a TrainJob."""
    for name, value in server.variables(1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(status_server, "_TO_ANSWER", 60.0)
    server.fresh(1)
    return server


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    run = RecordedRun(tmp_path / "run", spec())
    run.begin()
    run.train(10)
    return run


def at_once(_: float) -> bool:
    """Be the end of a run for whoever looks."""
    return True


def told(server: ProgressServer) -> list[Report]:
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        if found := server.fresh(1):
            return found
        time.sleep(0.01)
    raise AssertionError("no report came")


def metrics_of(history: RunHistory) -> dict[str, str]:
    status = trainjob.status_of(history, {})
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_run_reports_steps_and_metrics(pod: ProgressServer, run: RecordedRun) -> None:
    trainjob.report(run.run_dir, at_once)
    (report,) = told(pod)
    assert (report.step, report.total) == (10, read_history(run.run_dir).planned)
    assert set(report.values) >= {"loss", "workers"}


def test_last_percent_is_for_the_end(run: RecordedRun) -> None:
    history = read_history(run.run_dir)
    planned = history.planned or 0
    run.train(planned - 10)
    status = trainjob.status_of(read_history(run.run_dir), {})
    assert status["progressPercentage"] == 99
    assert status["estimatedRemainingSeconds"] == 0
    run.end()
    status = trainjob.status_of(read_history(run.run_dir), {})
    assert status["progressPercentage"] == 100
    assert metrics_of(read_history(run.run_dir))["current_step"] == str(planned)


def test_status_stays_within_its_bounds(run: RecordedRun) -> None:
    values = {f"metric {number}": 1.0 / 3.0 for number in range(400)} | {"x" * 65: 1.0, "": 1.0}
    status = trainjob.status_of(read_history(run.run_dir), values)
    assert len(status["metrics"]) <= 256
    assert all(0 < len(metric["name"]) <= 64 for metric in status["metrics"])
    assert all(0 < len(metric["value"]) <= 64 for metric in status["metrics"])
    assert {"name": "current_step", "value": "10"} in status["metrics"]


def test_token_goes_to_no_other_server(
    pod: ProgressServer,
    run: RecordedRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    impostor = ProgressServer()  # of an authority of its own
    try:
        monkeypatch.setenv(trainjob.VARIABLES[0], impostor.variables(1)[trainjob.VARIABLES[0]])
        trainjob.report(run.run_dir, at_once)
        assert "certificate" in capsys.readouterr().err.lower()
        monkeypatch.setenv(trainjob.VARIABLES[0], "http://127.0.0.1:9/1")
        trainjob.report(run.run_dir, at_once)
        assert "no https:// URL" in capsys.readouterr().err
        assert not impostor.fresh(1)
    finally:
        impostor.close()


def test_refusal_is_said_once(
    pod: ProgressServer,
    run: RecordedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "token").write_text("another")
    monkeypatch.setenv(trainjob.VARIABLES[2], str(tmp_path / "token"))
    looks = iter((False, False, True))
    trainjob.report(run.run_dir, lambda _: next(looks))
    assert capsys.readouterr().err == "the status server answered 401\n"


def test_last_status_is_posted_again(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["no answer in 3 s", ""])
    monkeypatch.setattr(trainjob, "_post", lambda _: next(answers))
    trainjob.report(run.run_dir, at_once)
    assert next(answers, None) is None, "it was not posted a second time"


@pytest.mark.parametrize("content", [b"secret\nsecret", "secret€".encode(), b"secret\xff"])
def test_files_without_a_token_are_not_quoted(
    pod: ProgressServer,
    run: RecordedRun,
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "token").write_bytes(content)
    monkeypatch.setenv(trainjob.VARIABLES[2], str(tmp_path / "token"))
    trainjob.report(run.run_dir, at_once)
    said = capsys.readouterr().err
    assert "no line of printable ASCII" in said
    assert "secret" not in said


def test_address_that_is_no_url_is_said(
    pod: ProgressServer,
    run: RecordedRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(trainjob.VARIABLES[0], "https://[status/1")
    trainjob.report(run.run_dir, at_once)
    assert "Invalid IPv6 URL" in capsys.readouterr().err


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/1"


def test_silent_server_is_given_up(
    pod: ProgressServer,
    run: RecordedRun,
    silent: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(status_server, "_TO_ANSWER", 0.1)
    monkeypatch.setenv(trainjob.VARIABLES[0], silent)
    trainjob.report(run.run_dir, at_once)
    assert "the status server cannot be asked" in capsys.readouterr().err


class View:
    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_every_run_in_a_pod_reports(
    pod: ProgressServer, run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.runs.followers._TO_END", 60.0)
    followers = Followers(run.run_dir)
    followers.tend(View())
    run.end()
    assert followers.finish() == []
    assert told(pod)[-1].step == 10


def test_run_elsewhere_reports_nothing(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch, pod: ProgressServer
) -> None:
    monkeypatch.delenv(trainjob.VARIABLES[1])
    assert not trainjob.is_wanted()
    assert Followers(run.run_dir).finish() == []
