"""Masters whose pods no node takes: what is said of them, and when their workers make way. Pure.

Without its master a job trains nothing, and its workers hold slots for it. Where room is what the
master lacks, it waits: others end, and autoscalers see its pod. Where anything else keeps it from
every node, such as taints or a selector, waiting may be for nothing.

Jobs that fill a cluster leave no room for a master that has to move, as from a node that is drained:
nobody else may ever end there. So one that lacks room is soon given some of the job's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.status import MASTER_UNPLACED, Stall

_ROOM = 5.0  # seconds after which a master that lacks room is given some
_PATIENCE = 60.0  # seconds for which workers hold their slots for such a master
_FIRST, _LONGEST = 60.0, 600.0  # seconds until it is tried again; doubled each time


@dataclass(slots=True)
class _Unplaced:
    """A master of which kube-scheduler has said that no node takes it.

    Args:
        uid: of its pod.
        since: when that was heard of this pod first.
        pause: seconds until it is tried again, once its workers make way.
        makes_way: they do, until then.
        asks_for_room: it has lacked room for long enough.
    """

    uid: str
    since: float
    pod: KubePod
    pause: float = _FIRST
    makes_way: bool = False
    asks_for_room: bool = False


class UnplacedMaster:
    """The master of a job, where there is no node for it. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._known: _Unplaced | None = None
        self._placed = 0  # the last start of which a master had a node

    def is_calm(self) -> bool:
        """Return whether no time that passes changes anything."""
        return self._known is None or self._known.makes_way or self._known.asks_for_room

    def look(self, launch: int, master: KubePod | None, now: float) -> None:
        """Take in the master's pod of the present start."""
        if master is None or master.has_ended or master.is_leaving:
            return  # the next one may find a node or not
        if master.is_bound:
            self._placed, self._known = launch, None
        elif master.is_refused:
            uid, known = master.metadata.uid, self._known
            if known is None:
                self._known = _Unplaced(uid, now, master)
            elif known.uid != uid:
                pause = min(_LONGEST, 2 * known.pause) if known.makes_way else known.pause
                self._known = _Unplaced(uid, now, master, pause)
            else:
                known.pod = master

    def asks_for_room(self, now: float) -> bool:
        """Return whether workers of the job are to make room for its master."""
        if self._known is None:
            return False
        known = self._known
        known.asks_for_room = known.pod.lacks_room and now - known.since >= _ROOM
        return known.asks_for_room

    def pause(self, launch: int, now: float) -> float | None:
        """Return for how many seconds the job is to have no workers now, once for each pod; None: none.

        Workers that have had a master in this start keep what they have computed.
        """
        known = self._known
        if known is None or known.makes_way or known.pod.lacks_room:
            return None
        if now - known.since < _PATIENCE or self._placed == launch:
            return None
        known.makes_way = True
        return known.pause

    @property
    def stall(self) -> Stall | None:
        """The message about the job's master; None where a node has taken it."""
        if self._known is None:
            return None
        known = self._known
        said = f"no node takes its master: {known.pod.why_unschedulable}"
        hint = "spec.masterTemplate says where it may be"
        return Stall(MASTER_UNPLACED, said if known.pod.lacks_room else f"{said}; {hint}")

    def forget(self) -> None:
        """Know of no master without a node: the job is another one now, or gone."""
        self._known = None

    def stop(self, *, is_there: bool) -> None:
        """Know nothing of a start that is over, but of a job that is there and makes way for now."""
        self._placed = 0
        if not (is_there and self._known is not None and self._known.makes_way):
            self._known = None
