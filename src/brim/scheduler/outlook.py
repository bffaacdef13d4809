"""What a change would cost before it is made: the cluster looked ahead with it and without. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brim.domain.cluster import Cluster
from brim.domain.schedule import Decision, Policy, Snapshot
from brim.simulator.engine import foresee
from brim.wire.cluster import Effect, Wish

_MOST_JOBS = 500  # that are looked ahead; of more, only what each has at once is compared
_NOTICED = 0.01  # of the time to a job's end: a smaller change of it is none
_LEAST = 1.0  # seconds: the same


def with_wish(snapshot: Snapshot, wish: Wish, *, nodes: Cluster) -> Snapshot:
    """Return the snapshot as it would be after a change.

    Args:
        snapshot: for `resume`, it has the job already.
        nodes: the cluster with the devices of drained nodes.
    """
    match wish.action:
        case "suspend" | "cancel":
            jobs = tuple(state for state in snapshot.jobs if state.job.id != wish.job)
            return replace(snapshot, jobs=jobs)
        case "resize":
            jobs = tuple(
                state._replace(
                    job=replace(
                        state.job,
                        minimum=wish.minimum,
                        maximum=wish.maximum,
                        requested=wish.maximum,
                    )
                )
                if state.job.id == wish.job
                else state
                for state in snapshot.jobs
            )
            return replace(snapshot, jobs=jobs)
        case "drain":
            return _with_cluster(snapshot, snapshot.cluster.with_lost({wish.node}))
        case "undrain":
            back = {node.id: node for node in nodes.nodes}
            present = [
                back[node.id] if node.id == wish.node else node for node in snapshot.cluster.nodes
            ]
            return _with_cluster(snapshot, Cluster(nodes=tuple(present)))
        case _:
            return snapshot


def _with_cluster(snapshot: Snapshot, cluster: Cluster) -> Snapshot:
    gained = cluster.devices - snapshot.cluster.devices
    return replace(snapshot, cluster=cluster, capacity=max(0, snapshot.capacity + gained))


def effects_of(before: Snapshot, after: Snapshot, decide: Policy) -> list[Effect]:
    """Compare all jobs of two snapshots: the workers at once, and the expected end of each.

    Returns:
        The jobs for which something changes, those that lose most first.
    """
    now, then = decide(before), decide(after)
    is_far = max(len(before.jobs), len(after.jobs)) > _MOST_JOBS
    ends = ({}, {}) if is_far else (foresee(before, now, decide), foresee(after, then, decide))
    ids = [state.job.id for state in (before if len(before.jobs) > len(after.jobs) else after).jobs]
    effects = [_effect(id, (now, then), ends) for id in ids]
    found = [effect for effect in effects if _is_noticed(effect, before.now)]
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
    return abs(_delay(effect)) > max(_LEAST, _NOTICED * (effect.finish - now))


def _delay(effect: Effect) -> float:
    if effect.finish is None or effect.finish_after is None:
        return 0.0
    return effect.finish_after - effect.finish
