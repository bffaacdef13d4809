"""The making of a world: donors, and shares of the chosen members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brim.coordination.job.membership import Member, Worker, World
from brim.coordination.job.roster import at_work
from brim.coordination.job.stragglers import shares_for


def would_overtake(chosen: Sequence[Worker], workers: Iterable[Worker]) -> bool:
    """Return whether these would have to restore while a worker that had the state is still there.

    It may be making a checkpoint official, and a run that went back behind it would meet it again
    later.
    """
    has_state = [worker for worker in workers if worker.has_state]
    return bool(has_state) and not any(worker in chosen for worker in has_state)


def world_of(
    chosen: Sequence[Worker], *, round: int, parts: int, machines: Mapping[str, str]
) -> World:
    """The world of these workers.

    Args:
        chosen: in rank order; the first computes.
        parts: micro-batches of a step; 0 gives each worker one part. A server has none.
        machines: of agents that said on which they are.
    """
    paces = [worker.pace for worker in at_work(chosen)]
    shares = iter(shares_for(parts or len(paces), paces))
    holders = [worker for worker in chosen if worker.has_state]
    sources = holders or chosen[:1]
    needy = [worker for worker in chosen if worker not in sources and not worker.has_state]
    has_made_steps = any(worker.steps for worker in at_work(chosen))
    newcomers = [w.id for w in at_work(chosen) if not w.steps] if has_made_steps else []
    return World(
        round=round,
        members=tuple(
            Member(worker=w.id, agent=w.agent, address=w.address, machine=machines.get(w.agent, ""))
            for w in chosen
        ),
        donors={worker.id: sources[index % len(sources)].id for index, worker in enumerate(needy)},
        restore=not holders,
        shares=tuple(0 if worker.serves else next(shares) for worker in chosen),
        newcomers=tuple(newcomers),
        has_experience=has_made_steps,
    )
