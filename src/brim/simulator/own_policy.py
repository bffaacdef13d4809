"""A policy of the user's own, whose decisions are checked.

Every decision that no cluster could carry out is its author's, and the message says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from brim.domain.schedule import Admitted, Decision, Policy, Rejected, Snapshot
from brim.errors import SpecError, UserCodeError, did_you_mean
from brim.user_code.from_file import load_callable, trace_of

_GUIDE = "docs/guides/write-a-policy.md shows one"


def own_policy(name: str, *, field: str) -> Policy:
    """The function that `FILE.py:NAME` names, checked at each decision.

    Raises:
        SpecError: there is no such file or function.
        UserCodeError: the file raises.
    """
    found = load_callable(
        name, field=field, role="a policy: a function from a snapshot to a decision"
    )
    return checked_policy(found, name, field=field)


def checked_policy(found: Callable[..., Any], name: str, *, field: str) -> Policy:
    """Return the policy, checked at each decision.

    Args:
        name: what messages call it.
    """

    def decide(snapshot: Snapshot) -> Decision:
        decision = _checked_policy(found, snapshot)
        problem, hint = _wrong(decision, snapshot)
        if problem:
            need = "a decision that the cluster can carry out"
            raise SpecError(f"{field} {name}", got=problem, need=need, hint=hint)
        assert isinstance(decision, Decision)
        return decision

    return decide


def _checked_policy(found: Callable[..., Any], snapshot: Snapshot) -> object:
    try:
        return found(snapshot)
    except Exception as error:
        raise UserCodeError(trace_of(error)) from error


def _wrong(decision: object, snapshot: Snapshot) -> tuple[str, str]:
    """Return the fault of a decision and how to mend it; both empty where there is none."""
    if not isinstance(decision, Decision):
        return (
            f"a {type(decision).__name__} as its answer",
            "return brim.domain.schedule.Decision(workers=…)",
        )
    jobs = [state.job.id for state in snapshot.jobs]
    strange = sorted(set(decision.workers) - set(jobs))
    if strange:
        return f"workers for {strange[0]!r}, which is not a job of the snapshot", did_you_mean(
            strange[0], jobs
        )
    odd = [
        job for job, count in decision.workers.items() if not isinstance(count, int) or count < 0
    ]
    if odd:
        return f"{decision.workers[odd[0]]!r} workers for job {odd[0]}", "whole numbers from 0"
    used = sum(decision.workers.values())
    if used > snapshot.capacity:
        return (
            f"{used} workers at {snapshot.now:.0f} s",
            f"snapshot.capacity is {snapshot.capacity} there",
        )
    return _wrong_verdicts(decision, snapshot)


def _wrong_verdicts(decision: Decision, snapshot: Snapshot) -> tuple[str, str]:
    judged = [
        verdict.job for verdict in decision.verdicts if isinstance(verdict, (Admitted, Rejected))
    ]
    missing = sorted(set(snapshot.arrived) - set(judged))
    if missing:
        return (
            f"no verdict on {missing[0]}, which has just arrived",
            f"verdicts=admit_all(snapshot); {_GUIDE}",
        )
    wake = decision.wake
    if wake is not None and not snapshot.now < wake < math.inf:
        return f"wake={wake:g} at {snapshot.now:.0f} s", "a later time, or None"
    return "", ""
