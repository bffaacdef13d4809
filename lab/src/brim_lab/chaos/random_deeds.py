"""Draws the faults of a cluster at random.

Pure: the same seed gives the same deeds, in every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brim.domain.job import WorkerRange
from brim_lab.chaos.deeds import ON_JOB, ON_PROCESSES, ON_SERVICE, Deed, DeedKind
from brim_lab.chaos.random_faults import Draws

_TENANTS = ("ads", "web")
_LAST = 12.0  # seconds within which everything strikes: a few short jobs run for longer
# What ends processes of a job by itself: five in a row without a step, and the job has failed, as
# it should.
_ENDING = (DeedKind.KILL_NODE, DeedKind.KILL_AGENT, DeedKind.KILL_EVERYTHING)
_MOST_ENDINGS = 4
_MOST_NODES = 3
_RATES = (5, 15, 25)  # requests a second; one replica takes ten
_TO_SERVICE = (
    DeedKind.SUSPEND,
    DeedKind.RESIZE,
    DeedKind.RESTART,
    DeedKind.KILL_SCHEDULER,
    DeedKind.KILL_AGENT,
    DeedKind.KILL_MASTER,
    DeedKind.STOP_MASTER,
    DeedKind.KILL_WORKER,
    DeedKind.KILL_REPLICA,
    DeedKind.KILL_FRONT,
)
_SECONDS = {
    DeedKind.SUSPEND: (0.5, 2.0, 4.0),
    DeedKind.DOWN: (0.2, 1.0),
    DeedKind.KILL_SCHEDULER: (0.001, 0.5, 3.0),
    DeedKind.STOP_SCHEDULER: (0.5, 2.0),
    DeedKind.STOP_MASTER: (0.3, 1.0, 3.0),
    DeedKind.KILL_EVERYTHING: (0.001, 1.0),
}


def random_nodes(seed: int, *, devices: int) -> int:
    """Return how many nodes the cluster of this seed has, each with at least one of its devices."""
    return 1 + Draws(seed, 3).below(min(_MOST_NODES, devices))


def random_deeds(
    seed: int, *, kinds: Sequence[DeedKind], epochs: int, workers: WorkerRange, nodes: int = 1
) -> tuple[Deed, ...]:
    """Draw a trial's deeds.

    Two to four jobs, up to three requests of their owners, and two to five faults.

    A third of these come within 0.3 s of the one before, while everything still recovers. At least
    one job is left alone by its owner's change of mind: one is cancelled at most.

    Args:
        kinds: to draw from, beside submissions.
        epochs: of a short job; others train twice as many.
        workers: the range that those of jobs are drawn from; its maximum is the cluster's devices.
        nodes: of the cluster; the same seed gives the same deeds on any number of them, but for
            which node is killed.

    >>> from brim_lab.chaos.deeds import describe_deed
    >>> deeds = random_deeds(1, kinds=[DeedKind.KILL_SCHEDULER], epochs=4, workers=WorkerRange.parse("1:4"))
    >>> [describe_deed(deed) for deed in deeds][:2]
    ['submit 1:3 of ads for 8 epochs by 45s at 0s', 'kill scheduler for 1ms at 1180ms']
    """
    draws = Draws(seed, 2)
    jobs = [_submission(draws, index, epochs, workers) for index in range(2 + draws.below(3))]
    on_training = [kind for kind in kinds if kind not in ON_SERVICE]
    deed_kinds = [kind for kind in on_training if kind not in ON_PROCESSES]
    struck = [kind for kind in on_training if kind in ON_PROCESSES]
    deeds = list(jobs)
    if deed_kinds:
        deeds += _drawn(
            draws,
            deed_kinds,
            draws.below(4),
            len(jobs),
            workers,
            once={DeedKind.CANCEL, DeedKind.DOWN},
        )
    if struck:
        deeds += _drawn(draws, struck, 2 + draws.below(4), len(jobs), workers, once=set())
    kind_draws = Draws(seed, 4)
    deeds = [
        replace(deed, node=1 + kind_draws.below(nodes)) if deed.kind is DeedKind.KILL_NODE else deed
        for deed in deeds
    ]
    return tuple(sorted(deeds, key=lambda deed: deed.at))


def beside_service(
    deeds: Sequence[Deed], seed: int, *, kinds: Sequence[DeedKind], workers: WorkerRange
) -> tuple[Deed, ...]:
    """Return the deeds of a trial whose first job is a service.

    Its load changes two or three times, and three to six further deeds are aimed at it.

    Args:
        deeds: as `random_deeds` has drawn them; their jobs are counted on.
        kinds: to draw from.
        workers: of the cluster; the service has one replica at least, and leaves a device if it can.

    >>> from brim_lab.chaos.deeds import describe_deed
    >>> deeds = beside_service([], 1, kinds=[DeedKind.KILL_FRONT], workers=WorkerRange.parse("1:4"))
    >>> [describe_deed(deed) for deed in deeds][:2]
    ['serve 1:3 of web at 0s', 'kill front of job 1 at 610ms']
    """
    draws = Draws(seed, 5)
    most = min(workers.maximum, 2 + draws.below(max(1, workers.maximum - 2)))
    service = Deed(
        kind=DeedKind.SERVE,
        at=0.0,
        workers=WorkerRange(minimum=1, maximum=most),
        tenant=draws.one_of(_TENANTS),
    )
    loads = [
        Deed(
            kind=DeedKind.ASK,
            at=0.5 + draws.below(int(_LAST * 10)) / 10,
            job=1,
            rate=draws.one_of(_RATES),
        )
        for _ in range(2 + draws.below(2))
    ]
    further = _drawn(
        draws,
        [kind for kind in _TO_SERVICE if kind in kinds],
        3 + draws.below(4),
        1,
        workers,
        once={DeedKind.SUSPEND},
        ends=sum(deed.kind in _ENDING for deed in deeds),
    )
    further = [
        replace(deed, workers=WorkerRange(minimum=1, maximum=min(deed.workers.maximum, most)))
        if deed.workers is not None
        else deed
        for deed in further
    ]
    moved = [replace(deed, job=deed.job + 1) if deed.job else deed for deed in deeds]
    return tuple(sorted([service, *moved, *loads, *further], key=lambda deed: deed.at))


def _submission(draws: Draws, index: int, epochs: int, limits: WorkerRange) -> Deed:
    is_larger = not draws.below(3) and draws.below(2) == 1
    low = min(limits.minimum + is_larger, limits.maximum)
    high = low + draws.below(limits.maximum - low + 1)
    due = (0.0, 30.0, 45.0, 90.0)[draws.below(4)]
    return Deed(
        kind=DeedKind.SUBMIT_BY if due else DeedKind.SUBMIT,
        at=0.0 if index == 0 else draws.below(50) / 10,
        workers=WorkerRange(minimum=low, maximum=high),
        tenant=_TENANTS[(index + draws.below(2)) % 2 if index > 1 else index],
        epochs=epochs * (1 + draws.below(2)),
        due=due,
    )


def _drawn(
    draws: Draws,
    kinds: Sequence[DeedKind],
    count: int,
    jobs: int,
    workers: WorkerRange,
    *,
    once: set[DeedKind],
    ends: int = 0,
) -> list[Deed]:
    """Draw deeds; `ends` says how many others end processes of jobs."""
    deeds: list[Deed] = []
    times = sorted(0.5 + draws.below(int(_LAST * 100)) / 100 for _ in range(count))
    for index, moment in enumerate(times):
        if index and not draws.below(3):
            moment = min(moment, deeds[-1].at + draws.below(30) / 100)
        used = [deed.kind for deed in deeds]
        possible = [kind for kind in kinds if kind not in once or kind not in used]
        if ends + sum(kind in _ENDING for kind in used) >= _MOST_ENDINGS:
            possible = [kind for kind in possible if kind not in _ENDING]
        if not possible:
            break
        deeds.append(_deed(draws.one_of(possible), round(moment, 2), draws, jobs, workers))
    return deeds


def _deed(kind: DeedKind, moment: float, draws: Draws, jobs: int, workers: WorkerRange) -> Deed:
    maximum = workers.maximum
    ads = draws.below(maximum + 1)
    return Deed(
        kind=kind,
        at=moment,
        job=1 + draws.below(jobs) if kind in ON_JOB else 0,
        seconds=draws.one_of(_SECONDS[kind]) if kind in _SECONDS else 0.0,
        workers=WorkerRange(minimum=1, maximum=1 + draws.below(maximum))
        if kind is DeedKind.RESIZE
        else None,
        ads=ads if kind is DeedKind.APPLY else 0,
        web=maximum - ads if kind is DeedKind.APPLY else 0,
    )
