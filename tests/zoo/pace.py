"""Lets a run of milliseconds meet its faults: no worker commits past a fault before its effect.

A worker takes longer to start than a tiny model to train. So each worker waits in front of a
commit, a metric or the end until the faults that are due have been performed: the dead are noticed,
the newcomers warm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brim.coordination.job.barrier import COMMIT
from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import JobSpec
from brim.train.membership import Membership

DEADLINE = 300.0
# Seconds from the record of a warm newcomer to the request for a boundary, which another process has
# to pass on: a step takes less.
TO_BE_ASKED = 0.1
_PHASES = (COMMIT, "gather", "end")


def keep_pace() -> None:
    """Make every worker of this process, and of its forks, wait for the faults of its job."""
    usual_arrive, usual_commit = Membership.arrive, Membership.commit

    def wait(self: Membership, step: int) -> None:
        spec, run_dir = self._context.spec, Path(self._context.run_dir)
        if not spec.faults:
            return
        events = run_dir / "events.jsonl"
        _until(lambda: _is_settled(spec, step, events))
        if not _is_settled(spec, step, events, present_states=("active",)):
            time.sleep(TO_BE_ASKED)

    def arrive(self: Membership, step: int, phase: str, payload: bytes = b"") -> Any:
        if phase in _PHASES:
            wait(self, step)
        return usual_arrive(self, step, phase, payload)

    def commit(self: Membership, step: int, report: bytes, **options: Any) -> bool:
        if self.world_size > 1:  # who is alone does not wait there
            wait(self, step)
        return usual_commit(self, step, report, **options)

    Membership.arrive, Membership.commit = arrive, commit  # type: ignore[method-assign]


def _until(condition: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("a fault of this run did not happen")
        time.sleep(0.002)


def _is_settled(
    spec: JobSpec, step: int, events: Path, *, present_states: Sequence[str] = ("ready", "active")
) -> bool:
    """Whether the faults that are due were performed, their victims are known to be gone, and
    newcomers are warm, or in one of these states. The master replaces no newcomer that it has
    turned away.
    """
    performed: dict[str, str] = {}
    states: dict[str, str] = {}
    turned_away = set[str]()
    restored = 0
    for line in events.read_text().rpartition("\n")[0].splitlines():
        event = json.loads(line)
        if event["kind"] == "fault":
            performed[event["text"]] = event["worker"] or ""
        elif event["kind"] == "worker":
            states[event["worker"]] = event["state"]
            if event["reason"] == "it does not agree with the others":
                turned_away.add(event["worker"])
        elif event["kind"] == "restored":
            restored = event["step"]
    # A fault strikes with a commit: with the first one, where the run was resumed behind its step.
    due = [fault for fault in spec.faults if fault.step <= step and restored < step]
    killed = [performed.get(describe(fault), "") for fault in due if fault.kind is FaultKind.KILL]
    present = sum(state in present_states for state in states.values())
    return (
        all(describe(fault) in performed for fault in due)
        and all(states.get(worker) == "lost" for worker in killed if worker)
        and present >= _wanted(spec, due) - len(turned_away)
    )


def _wanted(spec: JobSpec, due: list[Fault]) -> int:
    if not due:
        return 0
    changes = {FaultKind.ADD: 1, FaultKind.REMOVE: -1}
    leaves = sum(fault.kind is FaultKind.TERM for fault in due)
    return (
        spec.workers.minimum
        + sum(changes.get(fault.kind, 0) * fault.count for fault in due)
        - leaves
    )
