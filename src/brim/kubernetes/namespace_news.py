"""Compares the jobs of a namespace with those at the look before. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from brim.domain.course import Change
from brim.wire.cluster import ClusterView, JobView, News, NodeView, Times

Story = tuple[Change, ...]
_NO_TIMES = Times(count=0, median_ms=0.0, p99_ms=0.0)


class NamespaceNews:
    """News of one namespace, look after look."""

    def __init__(self) -> None:
        self._looks = 0
        self._views: Mapping[str, JobView] = {}
        self._stories: Mapping[str, Story] = {}

    def since(
        self,
        place: str,
        views: Mapping[str, JobView],
        stories: Mapping[str, Story],
        *,
        timestamp: float,
    ) -> News:
        """Return what is new since the look that gave this place.

        Args:
            place: of the last look; another one stands for none.
            views: all jobs, by id.
            stories: the last lines of each job's story.
            timestamp: seconds since 1970.
        """
        complete = place == str(self._looks) and self._looks > 0
        changed = [
            view
            for job, view in views.items()
            if (self._views.get(job), self._stories.get(job)) != (view, stories.get(job))
        ]
        forgotten = [job for job in self._views if job not in views]
        changes = [
            line
            for job, story in stories.items()
            for line in story[_known(story, self._stories.get(job, ())) :]
        ]
        self._looks += 1
        self._views, self._stories = dict(views), dict(stories)
        return News(
            place=str(self._looks),
            complete=complete,
            jobs=changed,
            forgotten=forgotten if complete else [],
            changes=sorted(changes, key=lambda line: line.at),
            cluster=cluster_of(views),
            nodes=nodes_of(views),
            tenants=[],
            tenant=None,
            timestamp=timestamp,
        )


def _known(story: Story, before: Story) -> int:
    """Return how many lines were there before: an object has the last lines of a story alone."""
    for count in range(len(story), 0, -1):
        if before[-count:] == story[:count]:
            return count
    return 0


def cluster_of(views: Mapping[str, JobView]) -> ClusterView:
    """Return the devices that the jobs of a namespace hold; what others hold cannot be seen."""
    held = _held(views)
    return ClusterView(
        policy="",
        devices=0,
        headroom=0,
        held=sum(held.values()),
        nodes=held,
        unfinished=sum(not view.has_ended for view in views.values()),
        cycles=_NO_TIMES,
        looks=_NO_TIMES,
    )


def nodes_of(views: Mapping[str, JobView]) -> list[NodeView]:
    """Return the nodes on which the jobs of a namespace hold devices, and these devices alone."""
    return [
        NodeView(
            node=node,
            devices=count,
            held=count,
            switch=0,
            address=node,
            state="up",
            drained=False,
            problem="",
        )
        for node, count in sorted(_held(views).items())
    ]


def _held(views: Mapping[str, JobView]) -> dict[str, int]:
    held: dict[str, int] = {}
    for view in views.values():
        for node, count in view.nodes.items() if not view.has_ended else ():
            held[node] = held.get(node, 0) + count
    return held
