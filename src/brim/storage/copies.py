"""Files of a copy of a master's journal and records: as an agent keeps them, and as they come back.

An agent's copy lasts as long as the agent, and is not synced: a host that goes down takes both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.storage.files import sync_directory
from brim.storage.job_file import CODE
from brim.storage.journal import Journal

JOURNAL = "journal"
RECORDS = ("events.jsonl", "steps.jsonl")
_CHUNK = 1 << 20
_RECEIVED = (*RECORDS, JOURNAL, CODE)
_ASIDE = ".before"  # behind the name of a file that a copy takes the place of


class CopiedFiles:
    """The files of one agent's copy.

    Args:
        folder: of its own, in that of the agent, which has the job's code; made if it is missing.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self._folder = folder
        try:
            self._journal = Journal(folder / JOURNAL)
        except EnvironmentFault as fault:
            raise OSError(str(fault)) from fault
        self._records = {
            name: os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for name in RECORDS
        }

    def clear(self) -> None:
        """Remove all content. Raises OSError."""
        self._journal.empty()
        for file in self._records.values():
            os.ftruncate(file, 0)

    def put(self, name: str, place: int, data: bytes) -> None:
        """Write bytes of a record file at their place. Raises OSError."""
        written = os.pwrite(self._records[name], data, place)
        if written != len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes: is the disk full?")

    def add(self, entries: list[bytes]) -> None:
        """Add entries to the journal, all of them or none. Raises OSError."""
        if entries:
            self._journal.append(*entries)

    def restate(self, entries: list[bytes]) -> None:
        """Put entries in place of the whole journal, at once. Raises OSError."""
        self._journal.replace_with(*entries)

    def content(self) -> Iterator[tuple[str, bytes]]:
        """Yield all there is, and the job's code, by file and in chunks. Raises OSError."""
        paths = [self._folder / name for name in (*RECORDS, JOURNAL)]
        for path in (*paths, self._folder.with_name(CODE)):
            if path.name == CODE and not path.exists():
                continue  # this host takes no part, or the job has none
            name = path.name
            with path.open("rb") as file:
                while data := file.read(_CHUNK):
                    yield name, data

    def close(self) -> None:
        """Leave the files."""
        self._journal.close()
        for file in self._records.values():
            with contextlib.suppress(OSError):
                os.close(file)


class ReceivedCopy:
    """A copy on its way into a run's directory; a context, which drops it unless it was kept.

    Args:
        run_dir: the directory, without other writers meanwhile.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._drafts = {name: run_dir / f".{name}.coming" for name in _RECEIVED}
        self._files = {name: path.open("wb") for name, path in self._drafts.items()}

    def __enter__(self) -> ReceivedCopy:
        return self

    def write(self, name: str, data: bytes) -> None:
        """Append to one of its files. Raises OSError."""
        self._files[name].write(data)

    def keep(self) -> None:
        """Put the files into the directory; present ones are set aside. Raises OSError."""
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            path = self._run_dir / name
            if name != CODE and path.exists():
                path.replace(path.with_name(f"{name}{_ASIDE}"))
        sync_directory(self._run_dir)
        for name, draft in self._drafts.items():
            if name != CODE or draft.stat().st_size:
                draft.replace(self._run_dir / name)
        sync_directory(self._run_dir)

    def __exit__(self, *_: object) -> None:
        for name, file in self._files.items():
            with contextlib.suppress(OSError):  # a full disk
                file.close()
            self._drafts[name].unlink(missing_ok=True)
