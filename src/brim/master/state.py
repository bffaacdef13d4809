"""All that a master's decisions follow from besides its next entry, as a value that can be written
down. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.coordination.barrier import Barrier
from brim.coordination.membership import Outcome
from brim.coordination.places import Places
from brim.coordination.rendezvous import Rendezvous
from brim.coordination.roster import Roster
from brim.coordination.stragglers import Stragglers
from brim.coordination.waits import Hangs
from brim.domain.faults import Fault
from brim.master.effects import AgentSession
from brim.master.entries import Began
from brim.master.progress import Progress
from brim.master.rounds import RoundAccount


@dataclass(slots=True, kw_only=True)
class State:
    """Where the decisions of one job stand; `at` is seconds since 1970, `now` monotonic.

    Args:
        sizes: bytes of the record files, by name.
        commits: steps that were ever committed.
        agents: those in the job, by name.
        hosts, barrier: of the current round, see `brim.master.root`.
        pids, ranks: by which people know a worker.
        faults: that are still to come, in the order of their steps.
        late: what a worker has been at for too long.
        too_large: why the last worker was ended that had more memory than it may have.
        grace_ends: of a run that waits for its last boundary, monotonic.
    """

    life: int
    at: float
    now: float
    progress: Progress
    rendezvous: Rendezvous
    faults: list[Fault]
    sizes: dict[str, int]
    commits: int
    agents: dict[str, AgentSession] = field(default_factory=dict)
    stragglers: Stragglers = field(default_factory=Stragglers)
    rounds: RoundAccount = field(default_factory=RoundAccount)
    hosts: list[str] = field(default_factory=list)
    barrier: Barrier = field(default_factory=Barrier)
    pids: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    hangs: Hangs = field(default_factory=Hangs)
    late: dict[str, str] = field(default_factory=dict)
    ended_by_itself: int = 0
    too_large: str = ""
    patience_told: bool = False
    failure_told: bool = False
    outcome: Outcome | None = None
    grace_ends: float | None = None

    @classmethod
    def after(cls, began: Began) -> State:
        """Where they stand once the first entry of the journal was taken."""
        spec = began.spec
        return cls(
            life=began.life,
            at=began.at,
            now=began.now,
            progress=Progress(run=began.run, started=began.started, step=began.before.step),
            rendezvous=Rendezvous(
                minimum=spec.workers.minimum,
                target=spec.workers.maximum,
                servers=spec.servers,
                spares=spec.spares,
                expected_agents=spec.agents,
                parts=spec.micro_batches if spec.exact else 0,
                roster=Roster(places=Places(dict(began.places))),
            ),
            faults=sorted(spec.faults, key=lambda fault: fault.step),
            sizes=dict(began.before.sizes),
            commits=began.before.commits,
        )
