"""The live block has the facts for a person, in colour or without."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from brim.host.clock import VirtualClock
from brim.runs.live import LiveView
from brim.telemetry.history import RunReader
from recorded_run import RecordedRun, spec


def drawn(run_dir: Path, *, color: bool = False) -> str:
    """The block after everything in the run's records."""
    stream = io.StringIO()
    console = Console(file=stream, width=90, force_terminal=color, no_color=not color)
    view = LiveView(console, clock=VirtualClock(1_790_000_000.0))
    reader = RunReader(run_dir, keep_steps=False)
    view.show(reader.poll(), reader.history)
    view.note("stopping at the next step")
    view.close()
    return stream.getvalue()


def test_the_view_says_starting_before_any_record(tmp_path: Path) -> None:
    assert "starting …" in drawn(tmp_path)


def test_the_block_shows_progress_speed_and_events(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    run.train(6)
    run.lose(1)
    run.train(2)
    block = drawn(tmp_path)
    for words in (
        "flights.py", "epoch 1/2", "step 8/32", "samples/s", "left", "●✗●●● 4",
        "w1 lost (signal 9) · round 2 · 3 workers · 24 ms · 1 redone",
        "w4 joined · round 3 · 4 workers · 8 ms",
        "stopping at the next step",
    ):  # fmt: skip
        assert words in block, block
    assert block.count("w1 lost") == 1
    assert "\x1b[3" not in block


def test_on_a_terminal_it_is_coloured(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    run.train(2)
    assert "\x1b[32m" in drawn(tmp_path, color=True)


def test_a_silent_worker_and_uneven_shares_are_seen(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, spec(), samples=8192)
    run.begin()
    run.train(2)
    run.share_out([3, 2, 2, 1], "w3 is 3.0 times slower")
    run.events.append(
        "worker", worker="w1", state="suspect", pid=0, agent="a0", rank=None, reason=""
    )
    block = drawn(tmp_path)
    assert "●◌●● 4   shares 3, 2, 2, 1" in block
    assert "w3 is 3.0 times slower · round 2 · 4 workers" in block
    run.events.append(
        "worker", worker="w1", state="active", pid=0, agent="a0", rank=None, reason=""
    )
    assert "●●●● 4" in drawn(tmp_path)
