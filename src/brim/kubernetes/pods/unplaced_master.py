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
        self._unplaced: _Unplaced | None = None
        self._placed = 0  # the last start of which a master had a node

    def is_calm(self) -> bool:
        """Return whether no time that passes changes anything."""
        return self._unplaced is None or self._unplaced.makes_way or self._unplaced.asks_for_room

    def look(self, launch: int, master: KubePod | None, now: float) -> None:
        """Take in the master's pod of the present start."""
        if master is None or master.has_ended or master.is_leaving:
            return  # the next one may find a node or not
        if master.is_bound:
            self._placed, self._unplaced = launch, None
        elif master.is_refused:
            uid, unplaced = master.metadata.uid, self._unplaced
            if unplaced is None:
                self._unplaced = _Unplaced(uid, now, master)
            elif unplaced.uid != uid:
                pause = min(_LONGEST, 2 * unplaced.pause) if unplaced.makes_way else unplaced.pause
                self._unplaced = _Unplaced(uid, now, master, pause)
            else:
                unplaced.pod = master

    def asks_for_room(self, now: float) -> bool:
        """Return whether workers of the job are to make room for its master."""
        if self._unplaced is None:
            return False
        unplaced = self._unplaced
        unplaced.asks_for_room = unplaced.pod.lacks_room and now - unplaced.since >= _ROOM
        return unplaced.asks_for_room

    def pause(self, launch: int, now: float) -> float | None:
        """Return for how many seconds the job is to have no workers now, once for each pod; None: none.

        Workers that have had a master in this start keep their results.
        """
        unplaced = self._unplaced
        if unplaced is None or unplaced.makes_way or unplaced.pod.lacks_room:
            return None
        if now - unplaced.since < _PATIENCE or self._placed == launch:
            return None
        unplaced.makes_way = True
        return unplaced.pause

    @property
    def stall(self) -> Stall | None:
        """The message about the job's master; None where a node has taken it."""
        if self._unplaced is None:
            return None
        unplaced = self._unplaced
        message = f"no node takes its master: {unplaced.pod.why_unschedulable}"
        hint = "spec.masterTemplate says where it may be"
        return Stall(MASTER_UNPLACED, message if unplaced.pod.lacks_room else f"{message}; {hint}")

    def forget(self) -> None:
        """Know of no master without a node: the job is another one now, or gone."""
        self._unplaced = None

    def stop(self, *, is_there: bool) -> None:
        """Know nothing of a start that is over, but of a job that is there and makes way for now."""
        self._placed = 0
        if not (is_there and self._unplaced is not None and self._unplaced.makes_way):
            self._unplaced = None
