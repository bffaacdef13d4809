"""A run as plain lines: for pipes, logs and dumb terminals."""

from __future__ import annotations

import contextlib
from typing import TextIO

from brim.domain.step_records import StepRecord
from brim.host.terminal import guarded
from brim.interfaces import Clock
from brim.runs.times import clock_time, time_left
from brim.telemetry.events import CommandProgressed, Event, RunFailed
from brim.telemetry.history import RunHistory, describe_event


class PlainView:
    """One timestamped line per event, and one about every `interval` seconds of steps.

    Args:
        stream: where to write.
        clock: stamps what is not in the records.
        interval: seconds between two lines about steps.
    """

    def __init__(self, stream: TextIO, *, clock: Clock, interval: float = 2.0) -> None:
        self._stream, self._clock, self._interval = guarded(stream), clock, interval
        self._next_step_line = 0.0

    def show(self, fresh: list[Event | StepRecord], history: RunHistory) -> None:
        for record in fresh:
            if isinstance(record, StepRecord | CommandProgressed):
                if record.at >= self._next_step_line:
                    self._next_step_line = record.at + self._interval
                    self._line(record.at, describe_progress(record, history))
            # Why a run failed is said at its end, in full.
            elif not isinstance(record, RunFailed) and (text := describe_event(record, history)):
                self._line(record.at, text)

    def note(self, text: str) -> None:
        self._line(self._clock.wall(), text)

    def say(self, line: str) -> None:
        """Write a line of somebody else's, as it is."""
        self._write(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def _line(self, timestamp: float, text: str) -> None:
        self._write(f"{clock_time(timestamp)} {text}")

    def _write(self, line: str) -> None:
        # A reader that went away (`brim train … 2>&1 | head`), or a full disk, must not end the training.
        with contextlib.suppress(OSError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


def describe_progress(step: StepRecord | CommandProgressed, history: RunHistory) -> str:
    """`step 120/1,170 · epoch 1/2 · loss 0.4312 · 52,310 samples/s · 4 workers · 0:12 left`."""
    if isinstance(step, CommandProgressed):
        parts = [step.words]
    else:
        parts = [f"step {step.step:,}/{history.planned or 0:,}"]
        if history.verb == "train":
            parts.append(f"epoch {step.epoch + 1}/{history.planned_epochs}")
            parts.append(
                f"loss {step.loss:.4f}" if step.loss is not None else "loss is not a number"
            )
    if rate := history.samples_per_second():
        parts.append(f"{rate:,.0f} samples/s")
    if history.round:
        parts.append(history.round.members)
    seconds = history.seconds_left()
    if seconds is not None:
        parts.append(f"{time_left(seconds)} left")
    return " · ".join(parts)
