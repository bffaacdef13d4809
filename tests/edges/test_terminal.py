"""Texts of others (a job's name, a line of a log, an error) give no orders to a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.live import Live
from rich.text import Text

from brim.domain.printable import printable
from brim.host.clock import VirtualClock
from brim.host.terminal import console, guarded, guarded_streams
from brim.runs.live import LiveView
from brim.telemetry.history import RunReader
from recorded_run import RecordedRun, spec

# Rename the window, answer a question as if typed, clear the screen, the same in C1, overwrite a
# line, turn it round.
ORDERS = [
    "\x1b]0;owned\x07",
    "\x1b[6n",
    "\x1b[2J",
    "\x9b2J",
    "a\rb",
    "\x7f",
    "\u202egnp.exe",
    "\x1bc",
    "\x00",
]


def on_a_terminal(*words: str) -> str:
    """The output of a command on a terminal."""
    own_end, program_end = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "brim", *words], stdout=program_end, stderr=program_end
    )
    os.close(program_end)
    output = b"".join(_all_of(own_end))
    command.wait(timeout=300)
    return output.decode()


def _all_of(terminal: int) -> Iterator[bytes]:
    try:
        while content := os.read(terminal, 65536):
            yield content
    except OSError:  # nobody has the other end any more
        pass
    finally:
        os.close(terminal)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_shown_and_not_carried_out(order: str) -> None:
    output = printable(f"a job {order} of mine")
    assert order not in output
    assert output.isprintable()
    assert output.startswith("a job ")
    assert output.endswith(" of mine")


def test_colours_stay_and_end_with_their_line() -> None:
    assert printable("\x1b[1;31mred\x1b[0m") == "\x1b[1;31mred\x1b[0m"
    assert printable("\x1b[8mhidden\nnext\n") == "\x1b[8mhidden\x1b[0m\nnext\n"


def test_logs_of_a_run(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "w1.log").write_text("".join(f"line {order}\n" for order in ORDERS))
    output = on_a_terminal("logs", str(tmp_path))
    assert "w1 | line \\x1b]0;owned\\x07" in output
    assert "w1 | line \\x9b2J" in output
    assert not set(output) & set("\x1b\x07\x9b\x7f\x00\u202e")


def test_errors(tmp_path: Path) -> None:
    output = on_a_terminal("report", "no such\x1b]0;owned\x07run")
    assert "owned" in output
    assert "\x1b" not in output


def test_the_live_block(tmp_path: Path) -> None:
    """The block moves the cursor; the name of a file, and a line of a log, within it do not."""
    run = RecordedRun(tmp_path, spec(file="a\x1b[2Jb.py"), samples=8192)
    run.begin()
    run.train(2)
    stream = io.StringIO()
    view = LiveView(
        console(stream, width=90, force_terminal=True), clock=VirtualClock(1_790_000_000.0)
    )
    reader = RunReader(tmp_path, keep_steps=False)
    view.show(reader.poll(), reader.history)
    view.say("a line \x1b]0;owned\x07")
    view.note("a note \x1b[6n")
    view.close()
    drawn = stream.getvalue()
    assert r"a\x1b[2Jb.py" in drawn
    assert r"a line \x1b]0;owned" in drawn
    assert r"a note \x1b[6n" in drawn
    assert not any(order in drawn for order in ("\x1b]0", "\x1b[2J", "\x1b[6n"))
    assert "\x1b[?25l" in drawn  # rich's own


def test_guards_do_not_stack(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded_streams(), guarded_streams():
        assert guarded(sys.stdout) is sys.stdout
        click.echo("echoed \x1b[2J")
        with Live(Text("drawn \x1b[2J"), console=console(sys.stdout, force_terminal=True)):
            pass
    sys.stdout.write("as before \x1b[2J")
    assert capsys.readouterr().out.count("\x1b[2J") == 1
