"""Masters whose pods no node takes: what is said of them, and when their workers make way. Pure.

Without its master a job trains nothing, and its workers hold slots for it. Where room is what the
master lacks, it waits: others end, and autoscalers see its pod. Where anything else keeps it from
every node, such as taints or a selector, waiting may be for nothing.

Jobs that fill a cluster leave no room for a master that has to move, as from a node that is drained:
nobody else may ever end there. So one that lacks room is soon given some of the job's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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


class UnplacedMasters:
    """The masters of jobs for which there is no node. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Unplaced] = {}
        self._placed: dict[str, int] = {}  # the last start of a job of which a master had a node

    def is_calm(self) -> bool:
        """Return whether no time that passes changes anything."""
        return all(each.makes_way or each.asks_for_room for each in self._jobs.values())

    def look(self, job: str, launch: int, master: KubePod | None, now: float) -> bool:
        """Take in the master's pod of the present start of a job; True where `stall` is another now."""
        before = self.stall(job)
        if master is None or master.has_ended or master.is_leaving:
            return False  # the next one may find a node or not
        if master.is_bound:
            self._placed[job] = launch
            self._jobs.pop(job, None)
        elif master.is_refused:
            uid, known = master.metadata.uid, self._jobs.get(job)
            if known is None:
                self._jobs[job] = _Unplaced(uid, now, master)
            elif known.uid != uid:
                pause = min(_LONGEST, 2 * known.pause) if known.makes_way else known.pause
                self._jobs[job] = _Unplaced(uid, now, master, pause)
            else:
                known.pod = master
        return self.stall(job) != before

    def asks_for_room(self, job: str, now: float) -> bool:
        """Return whether workers of a job are to make room for its master."""
        known = self._jobs.get(job)
        if known is None:
            return False
        known.asks_for_room = known.pod.lacks_room and now - known.since >= _ROOM
        return known.asks_for_room

    def pause(self, job: str, launch: int, now: float) -> float | None:
        """Return for how many seconds a job is to have no workers now, once for each pod; None: none.

        Workers that have had a master in this start keep what they have computed.
        """
        known = self._jobs.get(job)
        if known is None or known.makes_way or known.pod.lacks_room:
            return None
        if now - known.since < _PATIENCE or self._placed.get(job) == launch:
            return None
        known.makes_way = True
        return known.pause

    def stall(self, job: str) -> Stall | None:
        """Return what is to be said of a job's master; None where a node has taken it."""
        known = self._jobs.get(job)
        if known is None:
            return None
        said = f"no node takes its master: {known.pod.why_unschedulable}"
        hint = "spec.masterTemplate says where it may be"
        return Stall(MASTER_UNPLACED, said if known.pod.lacks_room else f"{said}; {hint}")

    def forget(self, job: str) -> None:
        """Know of no master without a node of a job: it is another one now, or gone."""
        self._jobs.pop(job, None)

    def keep(self, running: Collection[str], is_there: Callable[[str], bool]) -> None:
        """Know nothing of starts that are over, but for jobs that are there and make way for now."""
        self._placed = {job: launch for job, launch in self._placed.items() if job in running}
        self._jobs = {
            job: known
            for job, known in self._jobs.items()
            if job in running or (known.makes_way and is_there(job))
        }
