"""The one cluster loop: the simulator runs it on a virtual clock, the scheduler on the host's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from brim.domain.schedule import Decision, Snapshot
from brim.interfaces import Backend

Decide = Callable[[Snapshot], Decision | Awaitable[Decision]]
"""A policy, or one that is asked elsewhere and awaited."""

Journal = Callable[[Snapshot, Decision], None]
"""Writes down what was seen and what was decided, before anything is done about it."""


async def run_cluster(backend: Backend, decide: Decide, journal: Journal | None = None) -> None:
    """Run the scheduling loop: observe, decide, journal, apply.

    Then wait until something happens or the decision is due again.

    Args:
        backend: the cluster; the loop ends when it has nothing left to wait for.
        decide: snapshot in, decision out; usually `brim.policies.cycle.cycle` with a policy.
        journal: None writes nothing down.
    """
    wake: float | None = None
    while await backend.wait(wake):
        snapshot = await backend.observe()
        decided = decide(snapshot)
        decision = await decided if isinstance(decided, Awaitable) else decided
        if journal is not None:
            journal(snapshot, decision)
        await backend.apply(decision)
        wake = decision.wake
