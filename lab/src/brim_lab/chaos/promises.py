"""Checks that hold after every trial: each returns the broken promises, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from brim.errors import BrimError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import open_place
from brim.telemetry.history import read_history
from brim.telemetry.ledger import audit_run
from brim.telemetry.record_files import EVENTS, STEPS
from brim_lab.chaos.hosts import Host

_SHARED = Path("/dev/shm")
_NAMES = ("torch_", "psm_", "sem.mp-", "brim")
_OF_LIBRARIES = (".cache", ".config")  # of matplotlib, which draws the report
# Words of a worker's log.
_REPLAYED, _EAGER = "--capture: steps are replayed", "--capture: steps stay eager: "
# What a trial keeps in the folder of its first host.
_OF_TRIAL = {"run", "disk", "clock", "summary-", "stderr-", "agent-"}
_LOCKS = (
    ".journal.lock",
    ".unheard.lock",
    ".agent.lock",
)  # and one for each other agent; they stay: only the lock goes


def result_is_the_calm_one(run_dir: Path, summary: dict[str, Any], digest: str) -> list[str]:
    """The same weights, and every sample of every epoch applied once."""
    broken = []
    if summary.get("exit") != "done":
        broken.append(f"the run ended as {summary.get('exit')!r}, not as done")
    elif summary.get("weights_sha256") != digest:
        broken.append(
            f"weights {summary.get('weights_sha256')}, those of the calm run are {digest}"
        )
    try:
        ledger = audit_run(run_dir, read_history(run_dir))
    except BrimError as error:
        return [*broken, f"there is no ledger: {error}"]
    if not ledger.exact:
        counts = [
            f"epoch {e.epoch}: {e.missing} missing, {e.repeated} repeated"
            for e in ledger.epochs
            if not e.exact
        ]
        broken.append("the ledger is not exact: " + "; ".join([*counts, *ledger.problems][:4]))
    return broken


def run_directory_is_whole(run_dir: Path) -> list[str]:
    """Check that a run's directory has no draft, torn line, damaged checkpoint or dead address."""
    drafts = [path for path in run_dir.rglob(".*") if not path.name.startswith(_LOCKS)]
    broken = [f"left behind: {path.relative_to(run_dir)}" for path in drafts]
    if (run_dir / "master.json").exists():
        broken.append("left behind: master.json")
    for name in (EVENTS, STEPS):
        broken += _torn_lines(run_dir / name)
    return broken + _checkpoints(run_dir / "checkpoints")


def _checkpoints(directory: Path) -> list[str]:
    """Every one is sound, and no file is there that no manifest names."""
    store, broken = Store(open_place(str(directory))), []
    for step in store.steps():
        try:
            store.load(step)
        except BrimError as error:
            broken.append(str(error))
    return broken + [f"a draft is left: {name}" for name in store.drafts()]


def _torn_lines(path: Path) -> list[str]:
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    broken = [f"{path.name} ends within a line"] if lines.pop() else []
    for number, line in enumerate(lines, start=1):
        with contextlib.suppress(msgspec.DecodeError):
            msgspec.json.decode(line)
            continue
        broken.append(f"{path.name}:{number} is not a record: {line[:80]!r}")
    return broken


def brim_did_not_stumble(logs: Iterable[Path]) -> list[str]:
    """Check that master and agent printed no traceback.

    What is foreseen is told in words; anything else is a bug that was survived.
    """
    broken = []
    for log in logs:
        text = log.read_text(errors="replace") if log.exists() else ""
        for trace in text.split("Traceback")[1:]:
            # gRPC tells of calls that it cancels when its server stops; there is no frame of ours
            # in it.
            if "/brim/" in trace:
                broken.append(f"a traceback in {log.name}: {trace.strip().splitlines()[-1]}")
    return broken


def why_none_replayed(logs: Iterable[Path]) -> str:
    """Return why no step of a run with captured steps was replayed; empty where one was.

    Args:
        logs: of its workers.
    """
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    if any(_REPLAYED in line for line in lines):
        return ""
    reasons = {line.partition(_EAGER)[2] for line in lines if _EAGER in line}
    return "; ".join(sorted(reasons)) or "no program was there in time (more --epochs give it time)"


def shared_memory() -> frozenset[str]:
    """Names of shared memory and semaphores that torch and Python give, and no living process has.

    Other programs of this machine have theirs meanwhile.
    """
    if not _SHARED.is_dir():
        return frozenset()
    names = {path.name for path in _SHARED.iterdir() if path.name.startswith(_NAMES)}
    unmapped = names - _mapped() if names else names
    return frozenset(name for name in unmapped if (_SHARED / name).exists())  # nor went meanwhile


def _mapped() -> set[str]:
    """Names of shared memory that a living process has in its memory."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is another account's
            for line in maps.read_text().splitlines():
                _, mount, name = line.partition(f"{_SHARED}/")
                if mount:
                    found.add(name.removesuffix(" (deleted)"))
    return found


def nothing_left_behind(scratch: Path, shared_before: Iterable[str], *, killed: int) -> list[str]:
    """Check that no socket, temporary file or named shared memory is left.

    Args:
        killed: how many agents were killed; nobody is left then to remove the temporary directory
            of each.
    """
    leftovers = [f"left behind in TMPDIR: {path.name}" for path in scratch.iterdir()]
    leftovers = leftovers if len(leftovers) > killed else []
    return leftovers + [
        f"left behind: {_SHARED / name}" for name in sorted(shared_memory() - set(shared_before))
    ]


def nothing_left_on(host: Host, *, killed: int, leads: bool) -> list[str]:
    """Check that a host has no temporary file and no shared memory, and only expected files.

    Args:
        killed: as for `nothing_left_behind`.
        leads: the run was asked for in its folder, too.
    """
    way = host.folder.parts[: len(Path("/tmp").parts) + 1]  # to its folder, where that is in there
    temporary = [
        path
        for place in ("tmp", "var/tmp", "dev/shm")
        for path in (host.root / place).iterdir()
        if ("/", *path.relative_to(host.root).parts) != way
    ]
    leftovers = [f"left behind in /{path.relative_to(host.root)}" for path in temporary]
    leftovers = leftovers if len(leftovers) > killed else []
    expected = {"home", "torch"} | (_OF_TRIAL if host.number == 1 else {"run"} if leads else set())
    extra_names = [
        path.name for path in host.folder.iterdir() if not path.name.startswith(tuple(expected))
    ]
    home = host.folder / "home"
    extra_names += [
        f"home/{path.name}" for path in home.iterdir() if path.name not in _OF_LIBRARIES
    ]
    return [
        f"host {host.number}: {problem}"
        for problem in [*leftovers, *(f"left behind: {n}" for n in extra_names)]
    ]
