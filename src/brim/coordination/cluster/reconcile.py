"""Decides how to get from the workers that jobs hold to those that they should have. Pure.

Workers are counted by node, and so are free devices. Shrinking comes first and needs nothing;
growing and starting wait until the devices are really free: a device is another's only once the
worker that had it is gone, or the process that kept it. So observation wins over plans, and
repeating it on the same observations gives the same actions, or none. A job that gives workers on
one node and gets some on another is asked for both at once where those devices are free now. One
that is to leave all its nodes goes over while it trains where the others are free now, else
it ends and starts there: two jobs that change places would wait for each other.

The devices that a job is to give are free at the end of the grace period, so force begins before.
Four seconds before the end it ends the workers that the job was not to keep; two seconds before it,
all processes, where that has not shown, the master has not answered, or the job was to have none.
Of a short grace period these are two fifths and one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_TO_FORCE = 2.0  # seconds until force must have shown

ByNode = Mapping[str, int]
"""Workers by the id of their node; a node that is not named has none."""


class ObservedJob(NamedTuple):
    """One job as it is observed.

    Attributes:
        alive: it has processes.
        workers: worker processes that are there, leaving ones included, or that may be about to
            start.
        target: workers that it was last asked to have; none where it was asked to suspend itself.
        since: when it was asked for fewer than it has; None where it has given them.
        home: the node of the agent that keeps its master.
        agents: the nodes on which it has agents, or is about to.
        unanswered: the time of the unanswered question to its master; None where it has answered
            everything.
    """

    job: str
    alive: bool
    workers: ByNode
    target: ByNode
    since: float | None = None
    home: str = ""
    agents: frozenset[str] = frozenset()
    unanswered: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Start the processes of a job, with so many workers."""

    job: str
    workers: ByNode


@dataclass(frozen=True, slots=True)
class Resize:
    """Ask a running job to go to so many workers, with an agent on each of their nodes."""

    job: str
    workers: ByNode


@dataclass(frozen=True, slots=True)
class Leave:
    """End the agent of a job on a node where it has no workers any more."""

    job: str
    node: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Ask a running job to end at its next step boundary, with a checkpoint."""

    job: str


@dataclass(frozen=True, slots=True)
class Force:
    """The order to end workers by force: the grace period is nearly over.

    Workers end until so many are left, or all processes where none is to be.
    """

    job: str
    workers: ByNode


Action = Start | Resize | Leave | Suspend | Force


def larger_of(first: ByNode, second: ByNode) -> dict[str, int]:
    """The larger of two counts on each node."""
    if first == second:
        return dict(first)  # as of most jobs at most times
    return {node: max(first.get(node, 0), second.get(node, 0)) for node in {**first, **second}}


def fits_in(first: ByNode, second: ByNode) -> bool:
    """Return whether the first has no more than the second on any node."""
    return all(count <= second.get(node, 0) for node, count in first.items())


def as_placed(workers: ByNode, placed: ByNode, rest: ByNode | None = None) -> dict[str, int]:
    """Return so many workers in all, on the nodes on which others have placed them.

    Args:
        placed: those who are there; there may be fewer, or more.
        rest: where those count who are placed nowhere yet; None: where they were to be.

    >>> as_placed({"n1": 2}, {"n2": 1})
    {'n1': 1, 'n2': 1}
    >>> as_placed({"n1": 2}, {"n2": 1}, {"n2": 1, "n3": 1})
    {'n2': 1, 'n3': 1}
    >>> as_placed({"n1": 1}, {"n1": 1, "n2": 1})
    {'n1': 1}
    """
    found = {node: min(count, placed.get(node, 0)) for node, count in workers.items()}
    missing = sum(workers.values()) - sum(found.values())
    for candidates in (placed, rest or {}, workers):
        for node in sorted(candidates):
            extra = min(missing, max(0, candidates[node] - found.get(node, 0)))
            found[node] = found.get(node, 0) + extra
            missing -= extra
    return {node: found[node] for node in sorted(found) if found[node]}


def staying(current: ByNode, workers: ByNode, *, leaving_nodes: Collection[str]) -> dict[str, int]:
    """Return the current workers, minus the surplus on nodes being drained.

    >>> staying({"n1": 2, "n2": 1}, {"n1": 1}, leaving_nodes={"n1", "n2"})
    {'n1': 1}
    """
    found = {
        node: min(count, workers.get(node, 0)) if node in leaving_nodes else count
        for node, count in current.items()
    }
    return {node: count for node, count in found.items() if count}


def still_coming(
    coming: ByNode, seen: ByNode, *, gone_nodes: Collection[str], waited: float, grace: float
) -> dict[str, int]:
    """Return the workers that may still be forked: none once all were seen, or their time is over.

    Args:
        coming: that a job was asked to have and has not been seen to have.
        seen: workers that are there.
        gone_nodes: nodes on which nothing can be forked any more.
        waited: seconds since the job's workers were changed last.
        grace: seconds that a job has to give workers back.

    >>> still_coming({"n1": 2, "n2": 1}, {"n1": 2}, gone_nodes={"n2"}, waited=1.0, grace=30.0)
    {}
    >>> still_coming({"n1": 4}, {"n1": 2}, gone_nodes=(), waited=1.0, grace=30.0)
    {'n1': 4}
    """
    remaining = {node: count for node, count in coming.items() if node not in gone_nodes}
    # An agent that was told to have fewer before they were forked has heard it before force ends
    # all processes.
    late = bool(seen) and waited >= grace - _step_of_force(grace)
    return {} if late or fits_in(remaining, seen) else remaining


class _Free:
    """Free devices."""

    def __init__(self, holdings: Sequence[ObservedJob], nodes: ByNode, capacity: int) -> None:
        self._nodes, self._all = dict(nodes), capacity
        for holding in holdings:
            if holding.alive:
                self._give(larger_of(holding.workers, holding.target))

    def _give(self, workers: ByNode) -> None:
        for node, count in workers.items():
            self._nodes[node] = self._nodes.get(node, 0) - count
            self._all -= count

    def take(self, workers: ByNode) -> bool:
        """Take so many devices, if they are free."""
        fits = all(count <= self._nodes.get(node, 0) for node, count in workers.items())
        if not fits or sum(workers.values()) > self._all:
            return False
        self._give(workers)
        return True


def reconcile(
    holdings: Sequence[ObservedJob],
    desired: Mapping[str, ByNode],
    *,
    nodes: ByNode,
    capacity: int,
    now: float,
    grace: float,
) -> list[Action]:
    """The next actions towards `desired`, in the order in which they are to be performed.

    Args:
        holdings: every job that has processes, or should have; the order of starts and growths.
        desired: workers by job; a job that is not named gets none.
        nodes: devices by node; one on which nothing can be started now has none.
        capacity: devices for training in all.
        grace: seconds that a job has to give what it was asked for.

    >>> rows = [
    ...     ObservedJob("a", True, {"n": 4}, {"n": 4}, home="n", agents=frozenset("n")),
    ...     ObservedJob("b", False, {}, {}),
    ... ]
    >>> wanted, limits = {"a": {"n": 2}, "b": {"n": 2}}, {"nodes": {"n": 4}, "capacity": 4, "grace": 30.0}
    >>> reconcile(rows, wanted, now=0.0, **limits)
    [Resize(job='a', workers={'n': 2})]
    >>> rows[0] = rows[0]._replace(workers={"n": 2}, target={"n": 2})
    >>> reconcile(rows, wanted, now=1.0, **limits)
    [Start(job='b', workers={'n': 2})]
    """
    free = _Free(holdings, nodes, capacity)
    shrink: list[Action] = []
    grow: list[Action] = []
    for holding in holdings:
        target = desired.get(holding.job, {})
        if not holding.alive:
            if target and free.take(target):
                grow.append(Start(holding.job, target))
        elif force := _force(holding, now, grace):
            shrink.append(force)
        elif not holding.target:  # on its way to its end; it starts again from there
            continue
        elif not target or holding.home not in nodes:
            shrink.append(Suspend(holding.job))
        else:
            gives, takes = _changes(holding, target, free, nodes)
            shrink += gives
            grow += takes
    return shrink + grow


def force_begins(grace: float) -> float:
    """Return the seconds after which force begins, of so long a grace period.

    >>> force_begins(40.0)
    36.0
    """
    return grace - 2.0 * _step_of_force(grace)


def _step_of_force(grace: float) -> float:
    """Seconds that each of the two steps of force may take, of so long a grace period."""
    return min(_TO_FORCE, grace / 5.0)


def _force(holding: ObservedJob, now: float, grace: float) -> Force | None:
    """Decide which workers to take from a job by force now."""
    step = _step_of_force(grace)
    to_give = math.inf if holding.since is None else holding.since + grace - now
    to_answer = math.inf if holding.unanswered is None else holding.unanswered + grace - now
    if min(to_give, to_answer) <= step:
        return Force(holding.job, {})
    return Force(holding.job, holding.target) if holding.target and to_give <= 2.0 * step else None


def _changes(
    holding: ObservedJob, target: ByNode, free: _Free, nodes: ByNode
) -> tuple[list[Action], list[Action]]:
    """Decide which workers a job that keeps running gives up next, and which it gets."""
    reduced = {
        node: min(count, target[node]) for node, count in holding.target.items() if node in target
    }
    occupied = larger_of(holding.workers, holding.target)
    additional = {
        node: count - occupied.get(node, 0)
        for node, count in target.items()
        if count > occupied.get(node, 0)
    }
    if reduced and reduced != holding.target:
        # Where devices for those who come in place of the leavers are free, both at once.
        return [Resize(holding.job, target if free.take(additional) else reduced)], []
    if not reduced and not free.take(additional):
        return [Suspend(holding.job)], []
    if target != holding.target:
        return [], [Resize(holding.job, target)] if not reduced or free.take(additional) else []
    missing = any(nodes.get(node, 0) and node not in holding.agents for node in target)
    if missing:
        return [], [Resize(holding.job, target)]
    leavers = sorted(holding.agents - target.keys() - {holding.home})
    return [Leave(holding.job, node) for node in leavers if not occupied.get(node)], []
