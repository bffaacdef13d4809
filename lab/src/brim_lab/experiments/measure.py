"""Measures an experiment's job beforehand: its speed at several sizes, and the cost of changes."""

from __future__ import annotations

import time
from pathlib import Path

from brim.backends.watching import RunWatch
from brim.domain.job import WorkerRange
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault
from brim_lab.experiments.cluster import DemoCluster, Tell
from brim_lab.experiments.course import Request, overheads_of
from brim_lab.experiments.prediction import Learnt

_POLL_INTERVAL = 0.1
_LIMIT = 300.0  # seconds for one size


def measure(cluster: DemoCluster, tell: Tell) -> Learnt:
    """Train one job through the sizes of the experiment, as its scheduler would resize it.

    Raises:
        EnvironmentFault: it does not get there.
    """
    sizes = cluster.scale.sizes
    view = cluster.submit("measure", _exactly(sizes[0]), epochs=1)
    watch, origin = RunWatch(Path(view.run)), view.submitted
    requests = [Request(0.0, sizes[0])]
    for size, following in zip(sizes, (*sizes[1:], sizes[0]), strict=True):
        _until_measured(cluster, watch, size)
        requests.append(Request(cluster.wall() - origin, following))
        cluster.client.resize(view.job, _exactly(following))
    (course,) = cluster.ended([view], timeout=_LIMIT, origin=origin)
    watch.poll()
    rates = watch.measured.rates
    overheads = overheads_of(course, requests, rates)
    rates_text = ", ".join(f"{1 / rate:.2f} s on {size}" for size, rate in rates.items())
    costs = f"a start costs {overheads.start:.2f} s, a change of workers {overheads.fixed:.2f} s"
    tell(f"a step takes {rates_text}; {costs}, an end {overheads.end:.2f} s")
    return Learnt(rates=rates, overheads=overheads)


def _exactly(workers: int) -> WorkerRange:
    return WorkerRange(minimum=workers, maximum=workers)


def _until_measured(cluster: DemoCluster, watch: RunWatch, size: int) -> None:
    """Wait until so many steps of a world of this size have been seen."""
    end = cluster.wall() + _LIMIT
    watch.poll()
    steps_before = watch.measured.totals.get(size, (0.0, 0.0))[0]
    while True:
        watch.poll()
        is_of_size = watch.state.round is not None and watch.state.round.world_size == size
        if (
            is_of_size
            and watch.measured.totals.get(size, (0.0, 0.0))[0]
            >= steps_before + cluster.scale.steps_each - 0.5
        ):
            return
        if cluster.wall() > end or watch.failed or watch.summary:
            detail = watch.failed.message if watch.failed else f"step {watch.step} of {watch.steps}"
            raise EnvironmentFault(
                f"the job was not measured on {counted(size, 'worker')}: {detail}"
            )
        time.sleep(_POLL_INTERVAL)
