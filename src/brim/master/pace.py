"""What a committed step says of its members' speed, and how people are told of one that is far too slow. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from brim.coordination.membership import World
from brim.coordination.stragglers import Bottleneck, Load
from brim.wire.messages import StepReport

__all__ = ["bottleneck_warning", "loads_of"]

_OWN_WORK = ("data", "compute")  # what a rank does by itself, and the more of the larger its share is


def loads_of(world: World, reports: Sequence[StepReport]) -> tuple[list[Load], float]:
    """What each member did of a step, and the seconds of the step that do not depend on shares."""
    own = [sum(report.seconds.get(name, 0.0) for name in _OWN_WORK) for report in reports]
    loads = [
        Load(member.worker, len(report.parts), seconds)
        for member, report, seconds in zip(world.members, reports, own, strict=False)
    ]
    # Who is last waits for nobody, so its other seconds are the fewest.
    others = (sum(report.seconds.values()) - work for report, work in zip(reports, own, strict=True))
    other = min(others, default=0.0)
    return loads, other


def bottleneck_warning(slow: Bottleneck, *, host: str, parts: int) -> str:
    """The words for a worker that holds everyone up, however little it is given."""
    return (
        f"{slow.worker} on {host} takes {slow.times:.1f} times as long for a micro-batch as its peers: everyone "
        f"waits for it even where it has one of {parts}, and without it steps would be {slow.speedup:.1f} times "
        "as fast; send it SIGTERM to go on without it, or start with a larger --micro-batches"
    )
