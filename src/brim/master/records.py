"""Files that a master leaves behind: its journal, and the records, which follow from it."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import assert_never

import msgspec

from brim.domain.step_records import StepRecord
from brim.errors import EnvironmentFault
from brim.host.log import LogLine
from brim.interfaces import Clock
from brim.master.decisions import Decisions, Effect, Record, Secure
from brim.master.entries import Before, Began, Entry, Restated, TookOver, decode, encode
from brim.master.state import State, freeze, thaw
from brim.storage.files import open_log
from brim.storage.journal import Journal
from brim.telemetry.events import event_of
from brim.telemetry.record_files import EVENTS, STEPS, RecordFile, RecordName
from brim.wire.messages import Printed

JOURNAL = "journal"
Begin = Callable[[int, Before], Began]
# bytes of a journal before it is put more briefly: its replay takes about a second
_MAX_JOURNAL_BYTES = 16 << 20
_MOST_RECENT = 4 << 20  # bytes: agents have them a second later
_steps = msgspec.json.Decoder(StepRecord)
_log = logging.getLogger(__name__)
_LEVELS = {
    "round": logging.INFO,
    "lost": logging.WARNING,  # a worker
    "warning": logging.WARNING,
    "failed": logging.ERROR,
}
_NOT_LOGGED = ("at", "trace", "tables")


@dataclass(frozen=True, slots=True)
class Written:
    """An entry as it was written, and the lines of the records that followed from it."""

    number: int
    entry: bytes
    lines: list[Record]


class Records:
    """The journal and the record files of one run.

    Args:
        run_dir: where they are.

    Raises:
        EnvironmentFault: another master writes them, or the journal is damaged.
    """

    def __init__(self, run_dir: Path) -> None:
        self._journal = Journal(run_dir / JOURNAL)
        self._logs = run_dir / "logs"
        self._longest = _MAX_JOURNAL_BYTES
        self._attempt: str | None = None  # that the journal is of
        self._files = {name: RecordFile(run_dir / name) for name in (EVENTS, STEPS)}
        self.recent: deque[Written] = deque()  # for the copies of agents that have all before it
        self._recent_size = 0

    def peek(self) -> Decisions | None:
        """Return where the journal leads to; None where there is none that can be followed.

        Raises:
            OSError: something cannot be written.
        """
        try:
            return self._replay()
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - of another version, or damaged: any copy is better
            return None

    def go_on(self, decisions: Decisions, entry: TookOver) -> Decisions:
        """Go on where `peek` led to, in a directory that the journal was not in before."""
        self.take(decisions, entry)
        return decisions

    def open(self, attempt: str, begin: Begin, clock: Clock) -> Decisions:
        """Go on with the attempt that the journal is of, or begin another one.

        What the last master decided and did not come to record is recorded now. A journal of an
        earlier attempt that cannot be followed, such as one of another version, is put aside:
        checkpoints do not need it.

        Args:
            attempt: names this start of the job.
            begin: makes the first entry from the life that it begins, and what there is of attempts
                before it.
            clock: stamps the entry.

        Raises:
            EnvironmentFault: the journal of this attempt cannot be followed.
            OSError: something cannot be written.
        """
        decisions = self._follow(attempt, clock)
        life = decisions.state.life + 1 if decisions else 1
        if decisions is not None and decisions.state.began.attempt == attempt:
            self.take(decisions, TookOver(life=life, at=clock.wall(), now=clock.now()))
            return decisions
        beginning = begin(life, self._earlier_records())
        self._put_instead(beginning)
        return Decisions(State.after(beginning))

    def keep_prints(self, printed: Printed) -> None:
        """Put the output of a worker of another host where logs of this host's workers are.

        The output is dropped where that cannot be done.
        """
        with contextlib.suppress(OSError):
            self._logs.mkdir(exist_ok=True)
            with open_log(self._logs / f"{printed.worker}.log") as log:
                log.write(printed.text.encode())

    def _earlier_records(self) -> Before:
        steps = self._files[STEPS]
        last = steps.last_line()
        return Before(
            sizes={name: file.size for name, file in self._files.items()},
            commits=steps.count_lines(),
            step=_steps.decode(last).step if last else 0,
        )

    def _follow(self, attempt: str, clock: Clock) -> Decisions | None:
        try:
            return self._replay()
        except OSError:
            raise
        except Exception as error:  # decisions of another version may stumble over anything
            if self._attempt == attempt:
                raise
            aside = self._journal.set_aside()
            text = (
                f"the journal of an earlier attempt cannot be followed: {error}; it is {aside} now"
            )
            self._note("warning", clock, message=text)
            return None

    def _replay(self) -> Decisions | None:
        decisions = None
        written = self._journal.written
        self._journal.written = []  # the file has it: nobody needs it twice
        for payload in written:
            entry = decode(payload)
            if isinstance(entry, Began | Restated):
                self._attempt = entry.attempt
            if isinstance(entry, Began):
                decisions = Decisions(State.after(entry))
            elif isinstance(entry, Restated):
                decisions = Decisions(thaw(entry.state))
            elif decisions is None:
                raise EnvironmentFault("the journal has no beginning")
            else:
                self._take(decisions, payload, entry)
        return decisions

    def take(self, decisions: Decisions, entry: Entry) -> None:
        """Write an entry down, then let it have its effects.

        Raises:
            OSError: something cannot be written.
        """
        payload = encode(entry)
        self._journal.append(payload)
        self._take(decisions, payload, entry)
        if self._journal.size > self._longest:
            state = decisions.state
            self._put_instead(
                Restated(
                    at=entry.at,
                    now=entry.now,
                    attempt=state.began.attempt,
                    state=freeze(state),
                )
            )
            self._longest = max(_MAX_JOURNAL_BYTES, 2 * self._journal.size)

    def _take(self, decisions: Decisions, payload: bytes, entry: Entry) -> None:
        effects = decisions.take(entry)
        self._perform(effects)
        lines = [effect for effect in effects if isinstance(effect, Record)]
        self.recent.append(Written(decisions.state.entries, payload, lines))
        self._recent_size += _size_of(self.recent[-1])
        while self._recent_size > _MOST_RECENT:
            self._recent_size -= _size_of(self.recent.popleft())

    def read(self, file: RecordName, place: int, size: int) -> bytes:
        """Return so many bytes of a record file, or as many as there are. Raises OSError."""
        return self._files[file].read(place, size)

    def _put_instead(self, entry: Began | Restated) -> None:
        """Replace the journal.

        Its consequences must be on disk before: nothing could write them again.
        """
        for file in self._files.values():
            file.sync()
        self._journal.replace_with(encode(entry))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for file, group in groupby(effects, key=_file_of):
            if file is None:
                self._journal.sync()
                continue
            records = [effect for effect in group if isinstance(effect, Record)]
            lines = [record.line for record in records]
            fresh = self._files[file].put(records[0].place, *lines)
            if file == EVENTS:
                for line in lines[len(lines) - fresh :]:
                    _tell(line)

    def lament(self, message: str, clock: Clock) -> None:
        """Say why nothing more will be recorded, where that can still be said.

        No journal has this message.
        """
        with contextlib.suppress(OSError):
            self._note("failed", clock, who="environment", message=message, trace="")

    def _note(self, kind: str, clock: Clock, **fields: str) -> None:
        """Record an event that follows from no entry."""
        events = self._files[EVENTS]
        line = msgspec.json.encode(event_of(kind, at=clock.wall(), **fields)) + b"\n"
        events.put(events.size, line)
        _tell(line)

    def close(self) -> None:
        """Leave the files; on disk, since the journal of a finished run is not replayed."""
        self._journal.close()
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.sync()
            file.close()


def _file_of(effect: Effect) -> RecordName | None:
    match effect:
        case Record(file=file):
            return file
        case Secure():
            return None
        case _:
            assert_never(effect)


def _size_of(written: Written) -> int:
    return len(written.entry) + sum(len(line.line) for line in written.lines)


def _tell(line: bytes) -> None:
    """Log an event as it is recorded.

    Rounds and failures are for all readers, the rest is for fault finding.
    """
    if not _log.isEnabledFor(logging.ERROR):
        return
    event: dict[str, object] = msgspec.json.decode(line)
    kind = str(event.pop("kind"))
    level = _LEVELS.get("lost" if event.get("state") == "lost" else kind, logging.DEBUG)
    fields = {
        name: _in_a_line(value)
        for name, value in event.items()
        if name not in _NOT_LOGGED and not isinstance(value, dict)
    }
    _log.log(level, LogLine(kind, **fields))


def _in_a_line(value: object) -> object:
    """Return a field of an event without multi-line parts, such as stacks.

    The records have all of it.
    """
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value.partition("\n")[0] if isinstance(value, str) else value
