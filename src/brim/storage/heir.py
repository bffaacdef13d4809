"""Files that link a worker that outlives its agent, the command, and the next agent.

Where the command starts another agent in place of one that was killed, one worker, the heir, does
not end at once: it leaves the state of the job in a draft of a checkpoint. The next agent is
started once it has ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from brim.host.process import birth_of, state_of

SUCCESSION = "BRIM_SUCCESSION"
PATIENCE = 20.0  # seconds that an heir has from its agent's death to its own end
UNHEARD = "unheard"  # of a run: what its agent has said, and its master may not have heard
_HEIR = "heir"


def succession() -> str:
    """Return the name of this start of a run, where agents follow each other.

    Empty where a killed agent is the last.

    Drafts of heirs have it in their names: only those who belong to the same start take them for
    more than drafts.
    """
    return os.environ.get(SUCCESSION, "")


def be_heir(run_dir: Path) -> None:
    """Write down that this process is the heir, in place of the one before.

    That note is removed first: ext4 brings a file down to the disk before it takes the name of
    another, 3 to 14 ms for which all members would wait.

    Raises:
        OSError: the disk does not take it.
    """
    draft = run_dir / f"{_HEIR}-{os.getpid()}"
    draft.write_text(f"{succession()} {os.getpid()} {birth_of(os.getpid())}")
    (run_dir / _HEIR).unlink(missing_ok=True)
    draft.rename(run_dir / _HEIR)


def forget_heir(run_dir: Path, start: str) -> None:
    """The run has ended; arguments as for `heir_of`."""
    if _last_heir(run_dir, start) is not None:
        (run_dir / _HEIR).unlink(missing_ok=True)


def heir_of(run_dir: Path, start: str) -> int:
    """The process that is the heir in a run; 0 where there is none, or it has ended.

    Args:
        start: of the run, as `succession` names it; a command that resumed the same run has heirs
            of its own.
    """
    pid, birth = _last_heir(run_dir, start) or (0, "")
    return pid if birth_of(pid) == birth and state_of(pid) not in ("Z", "X", "") else 0


def _last_heir(run_dir: Path, start: str) -> tuple[int, str] | None:
    try:
        name, pid, birth = (run_dir / _HEIR).read_text().split()
    except (OSError, ValueError):
        return None
    return (int(pid), birth) if name == start else None
