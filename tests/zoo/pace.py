"""Lets a run of milliseconds meet its faults: no worker commits past a fault before its effect.

A worker takes longer to start than a tiny model to train. So each worker waits in front of a
commit, a metric or the end until the faults that are due have been performed: the dead are noticed,
the newcomers warm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.coordination.job.barrier import COMMIT
from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import JobSpec
from brim.train import step
from brim.train.captured import trust
from brim.train.captured.captured_steps import CapturedSteps
from brim.train.captured.trust import Trust
from brim.train.membership import Membership

DEADLINE = 300.0
# Seconds from the record of a warm newcomer to the request for a boundary, which another process has
# to pass on: a step takes less. Where a busy machine takes more, each wait is twice as long as the last.
TO_BE_ASKED = 0.1
MOST_TO_BE_ASKED = 3.2
# Seconds for the noting of a pass. A worker at it may be killed, and another that waits is to hear of
# the next round, in which it may be the one that notes.
TO_NOTE = 10.0
_PHASES = (COMMIT, "gather", "end")


def keep_pace() -> None:
    """Make every worker of this process, and of its forks, wait for the faults of its job."""
    usual_arrive, usual_commit = Membership.arrive, Membership.commit
    patience = TO_BE_ASKED

    def be_asked() -> None:
        nonlocal patience
        time.sleep(patience)
        patience = min(2 * patience, MOST_TO_BE_ASKED)

    def wait(self: Membership, step: int) -> None:
        nonlocal patience
        spec, run_dir = self._context.spec, Path(self._context.run_dir)
        if not spec.faults:
            return
        events = run_dir / "events.jsonl"
        _until(lambda: _is_settled(spec, step, events))
        if _is_settled(spec, step, events, present_states=("active",)):
            patience = TO_BE_ASKED
        else:
            be_asked()

    def arrive(self: Membership, step: int, phase: str, payload: bytes = b"") -> Any:
        if phase in _PHASES:
            wait(self, step)
        return usual_arrive(self, step, phase, payload)

    def commit(self: Membership, step: int, report: bytes, **options: Any) -> bool:
        if self.world_size > 1:
            wait(self, step)
        else:  # who is alone hears meanwhile that it is to leave, or that its checkpoint may count
            spec, events = self._context.spec, Path(self._context.run_dir) / "events.jsonl"
            _until(
                lambda: (
                    _leaves_are_under_way(spec, step, events)
                    and _is_settled(spec, step, events)
                    and _may_die(spec, step, events)
                ),
                meanwhile=self.poll,
            )
            if _is_leaving(self._context.worker, events):
                be_asked()
        return usual_commit(self, step, report, **options)

    Membership.arrive, Membership.commit = arrive, commit  # type: ignore[method-assign]


def replay_always() -> None:
    """Have steps with `--capture` replayed early, also where eager passes take less time.

    Rounds of cases with faults have few steps: one of each is watched, and one compared.
    """
    step._WATCHED_STEPS = trust.COMPARED = 1
    usual_program = CapturedSteps.program

    def program(self: CapturedSteps, *args: Any, **options: Any) -> Any:
        def is_decided() -> bool:
            self._next_look = 0.0
            return usual_program(self, *args, **options) is not None or bool(self.refused)

        end = time.monotonic() + TO_NOTE
        while not is_decided() and time.monotonic() < end:
            time.sleep(0.002)
        return usual_program(self, *args, **options)

    CapturedSteps.program = program  # type: ignore[method-assign]
    Trust.is_slower = False  # type: ignore[assignment, method-assign]


def _until(condition: Any, *, meanwhile: Any = lambda: None) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        meanwhile()
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
    course = _Course.of(events)
    due = course.due(spec, step)
    killed = course.victims(due, FaultKind.KILL)
    present = sum(state in present_states for state in course.states.values())
    return (
        all(describe(fault) in course.performed for fault in due)
        and all(course.states.get(worker) == "lost" for worker in killed if worker)
        and present >= _wanted(spec, due) - len(course.turned_away)
    )


def _leaves_are_under_way(spec: JobSpec, step: int, events: Path) -> bool:
    """Whether those who were to be asked to leave by now have asked the master for it."""
    course = _Course.of(events)
    due = [fault for fault in course.due(spec, step) if fault.kind is FaultKind.TERM]
    leaving = ("leaving", "left", "lost")
    return all(describe(fault) in course.performed for fault in due) and all(
        course.states.get(worker) in leaving
        for worker in course.victims(due, FaultKind.TERM)
        if worker
    )


def _may_die(spec: JobSpec, step: int, events: Path) -> bool:
    """Whether the only worker leaves a checkpoint, if one was due and the coming commit kills it."""
    is_due = 0 < spec.checkpoint_every.steps <= step
    is_killed = any(f.kind is FaultKind.KILL and f.step == step + 1 for f in spec.faults)
    return not (is_due and is_killed) or _Course.of(events).has_checkpoint


def _is_leaving(worker: str, events: Path) -> bool:
    return _Course.of(events).states.get(worker) == "leaving"


@dataclass(slots=True)
class _Course:
    """The course of a run so far, from its events.

    Args:
        performed: the faults, by their text, with their victims.
        states: the last of each worker.
        turned_away: workers that did not agree with the others.
        restored: the step that the run was resumed from.
        has_checkpoint: whether one has become official.
    """

    performed: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    turned_away: set[str] = field(default_factory=set)
    restored: int = 0
    has_checkpoint: bool = False

    @classmethod
    def of(cls, events: Path) -> _Course:
        course = cls()
        for line in events.read_text().rpartition("\n")[0].splitlines():
            event = json.loads(line)
            if event["kind"] == "fault":
                course.performed[event["text"]] = event["worker"] or ""
            elif event["kind"] == "worker":
                course.states[event["worker"]] = event["state"]
                if event["reason"] == "it does not agree with the others":
                    course.turned_away.add(event["worker"])
            elif event["kind"] == "restored":
                course.restored = event["step"]
            elif event["kind"] == "checkpoint":
                course.has_checkpoint = True
        return course

    def due(self, spec: JobSpec, step: int) -> list[Fault]:
        """Return the faults of a step. They strike with a commit: where the run was resumed behind
        their step, with the first one.
        """
        return [fault for fault in spec.faults if fault.step <= step and self.restored < step]

    def victims(self, due: Sequence[Fault], kind: FaultKind) -> list[str]:
        """Return the workers that faults of a kind have struck; empty for one that had none."""
        return [self.performed.get(describe(fault), "") for fault in due if fault.kind is kind]


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
