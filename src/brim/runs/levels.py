"""The level of a command: exact where its code calls brim.join, restart for any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.domain.job import PER_NODE, WORLD_MAX, JobSpec
from brim.user_code.command_code import code_of, parts_of

# Names of brim by which code takes part in its training; `*` may be any.
_TRAINERS = frozenset(("join", "keras", "lightning", "transformers", "*"))
# Variables by which a script keeps its global batch, whatever the number of processes.
_SIZES = frozenset((WORLD_MAX, "WORLD_SIZE", "JAX_NUM_PROCESSES", "TF_CONFIG"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The level at which a command runs.

    Args:
        restart: it is started again at each change; False: its code calls brim.join.
        reason: for the level, unless its user has chosen it; may be empty.
        keeps_batch: its code visibly keeps the global batch at any size.
    """

    restart: bool
    reason: str = ""
    keeps_batch: bool = False

    def describe(self, spec: JobSpec) -> str:
        """Return the level of a job in a sentence, and the reason for it."""
        reason = f" ({self.reason})" if self.reason else ""
        if not spec.restart:
            return f"level: exact{reason}"
        fewest, most = spec.workers.minimum, spec.workers.maximum
        count = f"{most}" if fewest == most else f"{fewest} to {most}"
        size = f", as {count} processes" if most > 1 and spec.per != PER_NODE else ""
        return f"level: restart, from its own checkpoints{size}{reason}"

    def warnings(self, spec: JobSpec) -> list[str]:
        """Return a sentence for each option that does not suit a command at the restart level."""
        most = spec.workers.maximum
        if not spec.restart or most == 1:
            return []
        found = []
        if Path(spec.command[0]).name == "torchrun" and spec.per != PER_NODE:
            found.append(
                "torchrun starts a process for each worker itself: add --per node, which starts it "
                "once on each node"
            )
        if not self.keeps_batch and spec.workers.minimum != most:
            found.append(
                "a batch that is taken per process makes another global batch at each size: divide it "
                f"by WORLD_SIZE, accumulate by {WORLD_MAX}, or --workers {most}"
            )
        return found


def level_of(command: tuple[str, ...], choice: bool | None) -> Level:
    """Return the level of a command.

    Args:
        command: in the present directory.
        choice: of its user: True for the restart level, False for the exact one; None: by its code.
    """
    code = code_of(command)
    parts = parts_of(command, code)
    keeps_batch = "xgboost" in parts or bool(code and _SIZES & code.variables().keys())
    if choice is not None:
        return Level(restart=choice, keeps_batch=keeps_batch)
    for part, file in sorted(parts.items()):
        if part in _TRAINERS:
            return Level(restart=False, reason=f"{file} uses brim.{part}")
    reason = f"{code.source.name} does not call brim.join" if code else ""
    return Level(restart=True, reason=reason, keeps_batch=keeps_batch)


def leveled(values: Mapping[str, Any], level: Level) -> dict[str, Any]:
    """Return the values of options with the level among them."""
    return {**values, "restart": level.restart}
