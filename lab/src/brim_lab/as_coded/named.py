"""The replays by name, and their results in the simulator's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim.errors import SpecError
from brim.simulator.compare import Replica
from brim.simulator.run import Outcome, SimulatedRun
from brim_lab.as_coded.edf import edf
from brim_lab.as_coded.elasticflow import elasticflow
from brim_lab.as_coded.gandiva import gandiva
from brim_lab.as_coded.themis import themis
from brim_lab.as_coded.tiresias import tiresias
from brim_lab.as_coded.windows import Replayed

SLOTS = (60.0, 240.0)
"""Seconds: the slots of the published runs, 60 of Fig 8, 240 of Fig 6, 9, 10 and 11."""

_REPLAYS: dict[str, Callable[..., list[Replayed]]] = {
    "elasticflow": elasticflow,
    "edf-elastic": partial(elasticflow, admission=False),
    "edf": edf,
    "edf-admission": partial(edf, admission=True),
    "gandiva": gandiva,
    "tiresias": tiresias,
    "themis": themis,
}


def replay(
    name: str, jobs: Sequence[Job], cluster: Cluster, *, slot: float = SLOTS[-1]
) -> SimulatedRun:
    """Replay `jobs` under the artifact's policy `name`.

    Raises:
        SpecError: a slot below a second, which the artifact cannot run with.
    """
    if slot < 1:
        raise SpecError(
            "--slot", got=f"{slot:g}", need="60 or 240 for :as-coded", hint="--slot 240"
        )
    replayed = _REPLAYS[name](
        sorted(jobs, key=lambda job: (job.submitted, job.id)), cluster, slot=slot
    )
    outcomes = tuple(
        Outcome(
            job=job.job,
            started=job.started,
            finished=job.finished,
            admitted=job.admitted,
            refused=job.refused,
            judged=job.met,
        )
        for job in replayed
    )
    return SimulatedRun(outcomes=outcomes, devices=cluster.devices)


def _replica(name: str) -> Replica:
    return Replica(
        run=lambda jobs, cluster, slot: replay(name, jobs, cluster, slot=slot), slots=SLOTS
    )


AS_CODED = {name: _replica(name) for name in _REPLAYS}
"""The family `:as-coded` of the policies of `brim simulate`."""
