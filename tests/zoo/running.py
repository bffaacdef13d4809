"""Runs of the zoo: real processes out of a warm one, two at once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.backends.local import fresh_token, prepare
from brim.domain.job import JobSpec
from brim.storage.journal import set_aside_if_damaged
from brim.telemetry.history import RunHistory, read_history
from brim.telemetry.ledger import audit_run

CASES = Path(__file__).parent / "cases"
TO_ANSWER = 210.0  # seconds; the nursery kills a run before
TO_BE_GONE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended.

    Args:
        exit: its own word for that: done, suspended or failed.
        digest: of its weights, where it is done.
        steps: that count.
        said: everything that it told people: errors, warnings and what it printed.
        exactly_once: whether each sample of each epoch counted once; None without records.
        epochs: of which that is known.
        world_sizes: that it had.
        metrics: of its last epoch.
    """

    exit: str
    digest: str
    steps: int
    said: str
    exactly_once: bool | None = None
    epochs: int | None = None
    world_sizes: tuple[int, ...] = (1,)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether it trained to its end."""
        return self.exit == "done"


class Nursery:
    """The client of `nursery.py`; a context manager, behind which no process is left.

    Args:
        imports: modules that its runs would need seconds to import.
    """

    def __init__(self, imports: Sequence[str] = ()) -> None:
        self._imports = imports

    def __enter__(self) -> Nursery:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("BRIM_")
        }
        environment["KERAS_BACKEND"] = "torch"  # of the Keras that is imported ahead
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py")), *self._imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._waiting: dict[int, Future[tuple[int, int]]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, and the caller has been told
            self._process.stdin.close()
        self._process.wait(TO_ANSWER)
        self._reader.join(TO_ANSWER)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["number"])
            if answer["is_late"]:  # what has come of a run that was killed shows nothing
                waiting.set_exception(TimeoutError("a run did not end by itself, and was killed"))
            else:
                waiting.set_result((answer["status"], answer["pid"]))
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError("the nursery died"))

    def _ask(self, **request: Any) -> int:
        """Have a run forked, and wait for its end: its exit status."""
        answer: Future[tuple[int, int]] = Future()
        with self._lock:
            self._number += 1
            self._waiting[self._number] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"number": self._number, **request}) + "\n")
            self._process.stdin.flush()
        status, session = answer.result(TO_ANSWER)
        _wait_until_gone(session)
        return status

    def alone(self, folder: Path, command: Sequence[str], *, threads: int = 0) -> Ended:
        """`python loop.py arguments…`, with nothing of brim around it.

        Args:
            folder: that it runs in.
            command: the script and its arguments.
            threads: of torch; 0: as many as torch takes by itself.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log, end = folder / "output.log", folder / "end.json"
        status = self._ask(
            argv=list(command),
            log=str(log),
            end=str(end),
            directory=str(folder),
            environment={},
            threads=threads,
        )
        found: dict[str, Any] = json.loads(end.read_text()) if end.exists() else {"steps": 0}
        return Ended(
            exit="done" if status == 0 and "weights_sha256" in found else "failed",
            digest=found.get("weights_sha256", ""),
            steps=found["steps"],
            said=log.read_text(),
            metrics=found.get("metrics", {}),
        )

    def run(self, folder: Path, spec: JobSpec) -> Ended:
        """Act as `brim train` or `brim run` with a spec that it has made; again for a folder that was
        used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        set_aside_if_damaged(folder / "journal")
        self._ask(
            argv=["brim.agent", *prepare(spec, folder.resolve())],
            log=str(folder / "logs" / "agent.log"),
            directory=spec.directory or str(folder),
            environment=fresh_token(),
        )
        return _ended(folder)


def _wait_until_gone(session: int) -> None:
    """Nothing of a run may be left: its processes have a session of their own."""
    end = time.monotonic() + TO_BE_GONE
    while remaining := _of_session(session):
        assert time.monotonic() < end, f"processes left over: {remaining}"
        time.sleep(0.005)


def _of_session(session: int) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            name, _, rest = (
                Path("/proc", entry, "stat")
                .read_text(errors="replace")
                .partition("(")[2]
                .rpartition(")")
            )
        except OSError:
            continue
        state, _, _, session_of_process, *_ = rest.split()
        if int(session_of_process) == session and state != "Z":
            found.append(f"{entry} {name}")
    return found


def _ended(folder: Path) -> Ended:
    history = read_history(folder)
    summary = dict(history.ended.summary) if history.ended else {}
    account = audit_run(folder, history) if history.dataset and history.started else None
    return Ended(
        exit=str(summary.get("exit", "failed")),
        digest=summary.get("weights_sha256") or "",
        steps=history.step,
        said=_said(folder, history),
        exactly_once=account.exact if account else None,
        epochs=len(account.epochs) if account else None,
        world_sizes=tuple(summary.get("world_sizes", ())),
        metrics=summary.get("metrics", {}),
    )


def _said(folder: Path, history: RunHistory) -> str:
    messages = [f"{history.failed.message}\n{history.failed.trace}"] if history.failed else []
    messages += [str(getattr(event, "message", "")) for event in history.events]
    messages += [path.read_text() for path in sorted((folder / "logs").glob("*.log"))]
    return "\n".join(text for text in messages if text)
