"""The consequences of a change before it is made: the cluster is foreseen with it and without. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brim.domain.cluster import Cluster
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.simulator.engine import foresee
from brim.wire.cluster import Effect, Proposal

_MOST_JOBS = 500  # that are looked ahead; of more, only what each has at once is compared
_NOTICED = 0.01  # of the time to a job's end: the same
_SHORTEST_DELAY = 1.0  # seconds: a smaller change of a job's end is none


def with_proposal(snapshot: Snapshot, proposal: Proposal, *, nodes: Cluster) -> Snapshot:
    """Return the snapshot as it would be after a change.

    Args:
        snapshot: for `resume`, it has the job already.
        nodes: the cluster with the devices of drained nodes.
    """
    match proposal.action:
        case "suspend" | "cancel":
            jobs = tuple(state for state in snapshot.jobs if state.job.id != proposal.job)
            return replace(snapshot, jobs=jobs)
        case "resize":
            jobs = tuple(
                state._replace(
                    job=replace(
                        state.job,
                        minimum=proposal.minimum,
                        maximum=proposal.maximum,
                        requested=proposal.maximum,
                    )
                )
                if state.job.id == proposal.job
                else state
                for state in snapshot.jobs
            )
            return replace(snapshot, jobs=jobs)
        case "drain":
            return _with_cluster(snapshot, snapshot.cluster.with_lost({proposal.node}))
        case "undrain":
            back = {node.id: node for node in nodes.nodes}
            present = [
                back[node.id] if node.id == proposal.node else node
                for node in snapshot.cluster.nodes
            ]
            return _with_cluster(snapshot, Cluster(nodes=tuple(present)))
        case _:
            return snapshot


def _with_cluster(snapshot: Snapshot, cluster: Cluster) -> Snapshot:
    gained = cluster.devices - snapshot.cluster.devices
    return replace(snapshot, cluster=cluster, capacity=max(0, snapshot.capacity + gained))


def effects_of(present: Snapshot, changed: Snapshot, decide: Policy) -> list[Effect]:
    """Compare all jobs of two snapshots: the workers at once, and the expected end of each.

    Returns:
        The jobs for which something changes, those that lose most first.
    """
    decisions = decide(present), decide(changed)
    is_far = max(len(present.jobs), len(changed.jobs)) > _MOST_JOBS
    ends = (
        ({}, {})
        if is_far
        else (foresee(present, decisions[0], decide), foresee(changed, decisions[1], decide))
    )
    ids = [
        state.job.id
        for state in (present if len(present.jobs) > len(changed.jobs) else changed).jobs
    ]
    effects = [_effect(id, decisions, ends) for id in ids]
    found = [effect for effect in effects if _is_noticed(effect, present.now)]
    return sorted(found, key=lambda effect: (-_delay(effect), effect.job))


def _effect(
    id: str,
    decisions: tuple[Decision, Decision],
    ends: tuple[Mapping[str, float], Mapping[str, float]],
) -> Effect:
    return Effect(
        job=id,
        workers=decisions[0].workers.get(id, 0),
        workers_after=decisions[1].workers.get(id, 0),
        finish=ends[0].get(id),
        finish_after=ends[1].get(id),
    )


def _is_noticed(effect: Effect, now: float) -> bool:
    if effect.workers != effect.workers_after:
        return True
    if effect.finish is None or effect.finish_after is None:
        return effect.finish != effect.finish_after
    return abs(_delay(effect)) > max(_SHORTEST_DELAY, _NOTICED * (effect.finish - now))


def _delay(effect: Effect) -> float:
    if effect.finish is None or effect.finish_after is None:
        return 0.0
    return effect.finish_after - effect.finish
