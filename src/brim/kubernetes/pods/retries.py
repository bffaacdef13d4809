"""Pauses before a pod is made again where the last ones failed. Pure.

A pod that was taken away is made again at once. One that ends by itself would do so again: each time
it is longer until the next is made. So it is with one that the server refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.status import Stall

# In place of a node: the pod of the job's master, and pods of workers that are pinned to none.
MASTERS, ANY_NODE = "", "(any)"
_FIRST, _LONGEST = 1.0, 60.0  # seconds; doubled each time
_WELL = 120.0  # seconds without a failure, after which those before are forgotten
TAKEN_AWAY = frozenset({"Evicted", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    stalls: dict[str, Stall] = field(default_factory=dict)  # by the pod that could not be made

    @property
    def end(self) -> float:
        return self.last + min(_LONGEST, _FIRST * 2.0 ** (min(self.count, 10) - 1))


class Retries:
    """The failures of the present start of a job. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}  # by node
        self._ended: set[str] = set()  # uids of pods that have failed
        self._last_stall: Stall | None = None  # of the last start, while this one is not made

    def begin(self) -> None:
        """Let no node wait in a start that begins.

        Why the last start came to nothing stays true until this one is made: people are not to be
        told otherwise in between.
        """
        stall = self.stall
        self.forget()
        self._last_stall = stall

    def complete(self) -> None:
        """Note that all that a start needs is made."""
        self._last_stall = None

    def note(self, failed: Mapping[str, str], now: float) -> set[str]:
        """Note which pods have failed since the last call.

        Args:
            failed: the nodes that their failures count for, by uid, of all that are there.

        Returns:
            The uids of those that were not there at the last call.
        """
        if not (failed or self._ended):  # as of most jobs at most times
            return set()
        new = failed.keys() - self._ended
        for uid in sorted(new):
            self.failed(failed[uid], now)
        self._ended = set(failed)
        return new

    def failed(
        self,
        node: str,
        now: float,
        stall: Stall | None = None,
        *,
        pod: str = "",
        is_own: bool = True,
    ) -> None:
        """Note a failure on a node.

        Args:
            stall: why the next attempts may fail as well. Where the start has one of the same reason,
                of another pod, that one is as good.
            pod: the name of the pod that could not be made; empty where it is another object.
            is_own: it may be the job's; else the server did not answer, and no pause gets longer.
        """
        alike = [
            stall_before
            for stall_before in self._stalls
            if stall is not None and stall_before.reason == stall.reason
        ]
        failures = self._failures.setdefault(node, _Failures())
        if is_own or not failures.count:
            failures.count = 1 if now - failures.last > _WELL else failures.count + 1
        failures.last = now
        failures.stalls.pop(pod, None)
        if stall is not None:
            failures.stalls[pod] = alike[0] if alike else stall

    def succeeded(self, node: str, pod: str = "") -> None:
        """Note that a pod, or another object, could be made on a node: others may be missing still."""
        if node in self._failures:
            self._failures[node].stalls.pop(pod, None)

    def want(self, pods: Collection[str]) -> None:
        """Forget why pods could not be made that are not wanted any more.

        Args:
            pods: the names of those that are still to be made.
        """
        for failures in self._failures.values():
            for pod in failures.stalls.keys() - {"", *pods}:
                del failures.stalls[pod]

    @property
    def stall(self) -> Stall | None:
        """The reason why the pods of the job are not made; None where they are."""
        if not self._failures:  # as of most jobs at most times
            return self._last_stall
        return min(self._stalls, default=self._last_stall)

    @property
    def _stalls(self) -> list[Stall]:
        return [stall for failures in self._failures.values() for stall in failures.stalls.values()]

    def waits(self, now: float) -> set[str]:
        """Return the nodes on which nothing is to be made now; `MASTERS` stands for the master."""
        return {node for node, failures in self._failures.items() if now < failures.end}

    def is_calm(self, now: float) -> bool:
        """Return whether nothing waits until a time."""
        return not self._failures or not self.waits(now)

    def forget(self) -> None:
        """Know nothing of the last start any more."""
        self._failures, self._ended, self._last_stall = {}, set(), None


def ended_by_itself(pod: KubePod) -> bool:
    """Return whether a pod has ended, and not for others' sake."""
    return pod.has_ended and not (pod.is_leaving or pod.status.reason in TAKEN_AWAY)
