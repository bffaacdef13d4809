"""TensorBoard: event files in the run's directory.

Each restart says from which step on older values are void.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from brim.host.clock import wall
from brim.loggers.protocol import Entry, LoggedRun

_NUMBER = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class TensorBoard:
    """Writes `tensorboard/` in the run's directory: `tensorboard --logdir runs` shows every run.

    torch's SummaryWriter would write the same files from a thread, by names that two starts within
    a second may sort the wrong way round; readers go by the order of names.
    """

    def begin(self, run: LoggedRun) -> None:
        folder = run.directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{_next_number(folder):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("xb")
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=wall(), file_version="brain.Event:2"))

    def rewind(self, step: int) -> None:
        # Readers drop what they have read of this step and later ones.
        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=wall(), step=step + 1, session_log=start))

    def log(self, entry: Entry) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in entry.values.items()
        ]
        self._write(Event(wall_time=entry.at, step=entry.step, summary=Summary(value=values)))

    def flush(self) -> None:
        self._file.flush()

    def end(self, exit: str) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())


def _next_number(folder: Path) -> int:
    """Return the number of the next file.

    It is the time in seconds since 1970, but behind every file that is there.
    """
    found = [int(match[1]) for path in folder.iterdir() if (match := _NUMBER.match(path.name))]
    return max([int(wall()), *(number + 1 for number in found)])
