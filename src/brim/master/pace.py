"""What a committed step says of its members' speed, and how people are told of bad workers and
hosts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from brim.coordination.membership import GiveUpOn, World
from brim.coordination.stragglers import Bottleneck, Load
from brim.domain.job import JobSpec
from brim.wire.messages import StepReport

_OWN_WORK = (
    "data",
    "compute",
)  # what a rank does by itself, and the more of the larger its share is


def loads_of(world: World, reports: Sequence[StepReport]) -> tuple[list[Load], float]:
    """What each worker did of a step, and the seconds of the step that do not depend on shares.

    A server has no pace: it waits for blocks, and how long its own work takes is seen in
    everybody's step.
    """
    own = [sum(report.seconds.get(name, 0.0) for name in _OWN_WORK) for report in reports]
    loads = [
        Load(member.worker, len(report.parts), seconds)
        for member, share, report, seconds in zip(
            world.members, world.shares, reports, own, strict=False
        )
        if share
    ]
    # Who is last waits for nobody, so its other seconds are the fewest.
    others = (
        sum(report.seconds.values()) - work for report, work in zip(reports, own, strict=True)
    )
    other = min(others, default=0.0)
    return loads, other


def bottleneck_warning(slow: Bottleneck, *, host: str, parts: int) -> str:
    """The words for a worker that holds everyone up, however little it is given."""
    return (
        f"{slow.worker} on {host} takes {slow.times:.1f} times as long for a micro-batch as its "
        "peers: everyone "
        f"waits for it even where it has one of {parts}, and without it steps would be "
        f"{slow.speedup:.1f} times "
        "as fast; send it SIGTERM to go on without it, or start with a larger --micro-batches"
    )


def given_up_warning(given_up: GiveUpOn, *, host: str, run: str, spec: JobSpec) -> str:
    """The words for a host on which workers die young."""
    goes_on = f"{given_up.target} worker{'' if given_up.target == 1 else 's'}"
    return (
        f"{host} gets no more workers: {given_up.deaths} in a row died young there, the last: "
        f"{given_up.reason}; "
        f"the job goes on with {goes_on}; brim resize {run} {spec.workers.maximum} gives it "
        "another try"
    )
