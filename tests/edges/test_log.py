"""Lines of log: their content, and that they appear only on request."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim.host.log import LogLine
from brim.master import records
from brim.wire import messages as wire
from e2e.running import until
from edges.test_master import Desk, lose_everyone, play
from edges.test_scheduler import Served, ask, served

__all__ = ["served"]

WRITES = """
import logging
from brim.host.log import LogLine, write_to_stderr
write_to_stderr(usual={usual!r})
logging.getLogger("brim.part").info(LogLine("cycle", jobs=2))
logging.getLogger("brim.part").warning(LogLine("failed", why="no disk"))
logging.getLogger("other").info("of somebody else")
"""


def test_importing_brim_configures_no_logger() -> None:
    program = (
        "import logging, brim; brim.Client, brim.Run, brim.run, brim.submit\n"
        "loggers = [logging.getLogger(), logging.getLogger('brim')]\n"
        "print([(each.handlers, each.level, each.propagate) for each in loggers])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[([], 30, True), ([], 0, True)]\n", done.stderr


@pytest.mark.parametrize(
    ("level", "usual", "levels"),
    [
        ("", "", []),
        ("nonsense", "", []),
        ("", "warning", ["failed"]),
        ("info", "", ["cycle", "failed"]),
        ("INFO", "warning", ["cycle", "failed"]),
        ("error", "warning", []),
    ],
)
def test_programs_log_from_the_requested_level(level: str, usual: str, levels: list[str]) -> None:
    program = WRITES.format(usual=usual)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"BRIM_LOG": level},
        check=True,
    )
    lines = [line.split(maxsplit=3) for line in done.stderr.splitlines()]
    assert [line[3].split()[0] for line in lines] == levels
    assert all(line[0].endswith("Z") and line[2] == "brim.part" for line in lines)
    if "cycle" in levels:
        assert lines[0][1:] == ["INFO", "brim.part", "cycle jobs=2"]
        assert lines[1][1:] == ["WARNING", "brim.part", 'failed why="no disk"']


def test_the_command_says_which_level_there_is_none() -> None:
    command = [sys.executable, "-m", "brim.cli", "--log-level", "inf", "help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--log-level: got 'inf', need one of debug, info, warning, error" in done.stderr
    assert "did you mean 'info'?" in done.stderr


@pytest.mark.parametrize("level", ["DEBUG", " info", "loud"])
def test_log_levels_are_read_in_any_case(level: str) -> None:
    command = [sys.executable, "-m", "brim.cli", "help", "status"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "BRIM_LOG": level}
    )
    assert (done.returncode, done.stderr) == (0, "")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[int, LogLine]]:
    return [
        (record.levelno, record.msg) for record in caplog.records if isinstance(record.msg, LogLine)
    ]


@pytest.mark.parametrize("kind", ["failed", "warning"])
def test_run_failures_are_logged_as_errors(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "brim")
    records._tell(json.dumps({"kind": kind, "at": 1.0, "message": "no"}).encode())
    assert [str(line) for _, line in lines_of(caplog)] == (
        ["failed message=no"] if kind == "failed" else []
    )


def test_a_successor_repeats_no_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "brim")
    desk = Desk(tmp_path, workers=2, agents=1)

    async def story(desk: Desk) -> None:
        await lose_everyone(desk, "w1")
        await desk.ready("A", "w2", "w3")
        await desk.say("A", wire.LoseWorker(worker="w2", reason="signal 9"))

    play(desk, story)
    log_lines = lines_of(caplog)
    rounds = [event for event in desk.records("events.jsonl") if event["kind"] == "round"]
    assert [line.fields["round"] for _, line in log_lines if line.event == "round"] == [
        line["round"] for line in rounds
    ]
    lost = [(level, str(line)) for level, line in log_lines if line.event == "worker"]
    assert len(lost) == 2
    assert lost[0][0] == logging.WARNING
    assert "worker=w1 state=lost" in lost[0][1]
    assert 'reason="signal 9"' in lost[0][1]
    desk.kill()
    caplog.clear()
    desk.start()
    assert not [line for _, line in lines_of(caplog) if line.event in ("round", "worker")]


def test_schedulers_log_each_cycle_and_failure(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "brim")
    served.client.submit(ask("1:4"))
    until(lambda: served.processes.of("job-1").workers == 4, "4 workers")
    served.processes.end("job-1", "failed", who="user", problem="it raised")
    served.client.wait("job-1", timeout=60.0)
    log_lines = lines_of(caplog)
    cycles = [line for _, line in log_lines if line.event == "cycle"]
    assert any((cycle.fields["jobs"], cycle.fields["workers"]) == (1, 4) for cycle in cycles)
    failed = [(level, line.fields["job"]) for level, line in log_lines if line.event == "failed"]
    assert failed == [(logging.WARNING, "job-1")]
    assert json.dumps(dict(cycles[0].fields))  # as a handler of JSON has them
