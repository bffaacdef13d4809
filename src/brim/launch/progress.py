"""The progress of a command: an address for its reports, and a pattern of its prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from brim.coordination.job.launches import is_mark
from brim.domain.reported import Report, read_report
from brim.errors import SpecError
from brim.host.process import be_called, die_with_parent
from brim.storage.files import temporary_folder, write_whole
from brim.wire.listening import joined_address, take_port

_HOST = "127.0.0.1"
_NO_PROXY = ("no_proxy", "NO_PROXY")
_PIPE_BYTES = 1 << 16
_LONGEST_LINE = 4096  # characters that a pattern is looked for in
_LINE_END = re.compile(r"[\r\n]")  # a bar that moves ends none of its lines but by the first


class ProgressServer:
    """A process that takes a command's reports, beside the worker that keeps the command.

    It is a process, and no thread: the worker forks.

    Attributes:
        is_there: False where the packages that it takes are not installed.
        pid: of the process; 0 where there is none.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._buffer = b""
        self.pid, self._reader = 0, -1
        self._variables: dict[str, str] = {}
        try:
            from brim.wire.authority import Authority
            from brim.wire.identity import open_context
            from brim.wire.progress import take_reports
        except ModuleNotFoundError:
            self.is_there = False
            return
        self.is_there = True
        folder = self._stack.enter_context(temporary_folder("brim-progress-"))
        identity = Authority.make("cluster").issue("progress", addresses=(_HOST,))
        token = secrets.token_urlsafe(24)
        write_whole(folder / "ca.pem", identity.authority, mode=0o600)
        write_whole(folder / "token", token.encode(), mode=0o600)
        write_whole(folder / "header", f"Authorization: Bearer {token}\n".encode(), mode=0o600)
        # It stays open here: where the process is killed, another one answers at the same address.
        listener = self._stack.enter_context(take_port(_HOST))
        self._url = f"https://{joined_address(_HOST, listener.getsockname()[1])}"
        self._variables = _variables(folder)
        context = open_context(identity)
        self._take = partial(take_reports, listener, context, token)
        self._begin()

    def _begin(self) -> None:
        self._reader, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            os.set_blocking(self._reader, False)
            return
        try:
            die_with_parent(parent)
            be_called("brim-progress")
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            encoder = msgspec.json.Encoder()

            def tell(start: int, report: Report) -> None:
                os.write(writer, encoder.encode((start, report)) + b"\n")

            asyncio.run(self._take(tell))
        except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
            print(f"brim: reports of progress end: {error!r}", file=sys.stderr)  # noqa: T201
        finally:
            os._exit(1)

    def variables(self, start: int) -> Mapping[str, str]:
        """Return the variables by which a command finds the address.

        Args:
            start: how often it was started before: late reports of an earlier start do not count.
        """
        if not self.is_there:
            return {}
        url = f"{self._url}/{start}"
        direct = {name: ",".join(filter(None, (os.environ.get(name), _HOST))) for name in _NO_PROXY}
        addresses = dict.fromkeys(("BRIM_PROGRESS_URL", "KUBEFLOW_TRAINER_SERVER_URL"), url)
        return {**self._variables, **direct, **addresses}

    def fresh(self, start: int) -> list[Report]:
        """Return the reports of a start that have come since the last call."""
        if not self.is_there:
            return []
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._reader, _PIPE_BYTES)
            self._buffer += received
            if not received:  # it was killed
                self._end()
                self._begin()
        *lines, self._buffer = self._buffer.split(b"\n")
        numbered: list[Any] = [_decoder.decode(line) for line in lines]
        return [report for number, report in numbered if number == start]

    def close(self) -> None:
        """End the process, and remove its files."""
        if self.pid:
            self._end()
        self.is_there = False
        self._stack.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._reader)
        self.pid, self._buffer = 0, b""


class PrintedProgress:
    """The progress that a command prints.

    Args:
        log: the file that it prints to.
        pattern: with a group `step`; `total` and others are numbers of that step.
    """

    def __init__(self, log: Path, pattern: str) -> None:
        self._log, self._pattern = log, re.compile(pattern)
        self._place = log.stat().st_size if log.exists() else 0
        self._rest = ""

    def fresh(self) -> list[Report]:
        """Return the last report that was printed since the last call, or none."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # Old lines of a long log are taken out, and of many new ones the last say it all.
            self._place = max(min(self._place, size), size - _PIPE_BYTES)
            file.seek(self._place)
            printed = file.read(_PIPE_BYTES)
            self._place += len(printed)
            *lines, self._rest = _LINE_END.split(self._rest + printed.decode(errors="replace"))
            self._rest = self._rest[-_PIPE_BYTES:]
            for line in reversed(lines):
                if not is_mark(line) and (match := self._pattern.search(line[:_LONGEST_LINE])):
                    with contextlib.suppress(SpecError):  # it was another line, or is no number
                        groups = match.groupdict()
                        return [read_report({k: v for k, v in groups.items() if v is not None})]
        return []


_decoder = msgspec.json.Decoder(tuple[int, Report])


def _variables(folder: Path) -> dict[str, str]:
    """Variables that are the same for all starts: brim's own, and those that transformers reads."""
    ca, token = str(folder / "ca.pem"), str(folder / "token")
    return {
        "BRIM_PROGRESS_CA": ca,
        "BRIM_PROGRESS_HEADER": str(folder / "header"),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": ca,
        "KUBEFLOW_TRAINER_SERVER_TOKEN": token,
    }
