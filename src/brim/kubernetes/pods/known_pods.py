"""Pods as an API server tells of them, and as this process has changed them since.

A server tells of a change a moment after it has answered. Who looked only at what it tells would make
a pod twice. So what was made counts from the answer on, and what was asked to end is leaving.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.nodes.places import NodePlaces
from brim.kubernetes.objects.identities import identity_of, stands_for

_TO_TELL = 60.0  # seconds after which a server has told of a change, or it has come to nothing
_ENDING = "asked"  # in place of the time by which a pod is to be gone


@dataclass(slots=True)
class _Pod:
    """One pod by its name.

    Args:
        reported: as the server tells of it; None: it does not.
        created: as it was when this process made it, where the server has not told of it yet.
        deadline: that is believed at most.
    """

    reported: KubePod | None = None
    created: KubePod | None = None
    deadline: float = 0.0


class KnownPods:
    """All pods, and those of jobs by job.

    Args:
        places: hears of each change.
    """

    def __init__(self, places: NodePlaces) -> None:
        self._places = places
        self._pods: dict[str, _Pod] = {}
        self._current: dict[str, KubePod] = {}
        self._keys_of: dict[str, set[str]] = {}  # keys by job
        self._listed: dict[str, tuple[KubePod, ...]] = {}  # pods by job, until one changes
        self._placeholders: set[str] = set()  # keys
        self._ending: dict[str, float] = {}  # until when that is believed, by uid
        self._unconfirmed: set[str] = set()  # keys of those of which the server has not told

    def observe(self, key: str, last: KubePod | None, pod: KubePod | None) -> None:
        """Know the server's word; None: there is, or was, no such pod."""
        entry = self._pods.setdefault(key, _Pod())
        entry.reported = pod
        if entry.created is not None and _uid_of(pod or last) == entry.created.metadata.uid:
            entry.created = None
            self._unconfirmed.discard(key)
        if pod is None and last is not None:
            self._ending.pop(last.metadata.uid, None)
        self._show(key, entry)

    def add(self, pod: KubePod, now: float) -> None:
        """Know a pod that this process has made; `now` is monotonic seconds."""
        key = pod.metadata.key
        entry = self._pods.setdefault(key, _Pod())
        if entry.reported is None or entry.reported.metadata.uid != pod.metadata.uid:
            entry.created, entry.deadline = pod, now + _TO_TELL
            self._unconfirmed.add(key)
        self._show(key, entry)

    def ending(self, pod: KubePod, now: float) -> None:
        """Know that this process has asked a pod to end."""
        self._ending[pod.metadata.uid] = now + _TO_TELL
        key = pod.metadata.key
        if key in self._pods:
            self._show(key, self._pods[key])

    def of_job(self, job: str) -> tuple[KubePod, ...]:
        """Return the pods of a job: the very same tuple, as long as none of them changes."""
        listed = self._listed.get(job)
        if listed is None:
            listed = tuple(self._current[key] for key in self._keys_of.get(job, ()))
            if listed:
                self._listed[job] = listed
        return listed

    def placeholders(self) -> list[KubePod]:
        """Return the pods that stand for workers of jobs that wait for places."""
        return [self._current[key] for key in sorted(self._placeholders)]

    def named(self, key: str) -> KubePod | None:
        """Return a pod by its key; None where there is none, as far as is known."""
        return self._current.get(key)

    def jobs(self) -> Iterable[str]:
        """Return the ids of all jobs that have pods."""
        return list(self._keys_of)

    @property
    def is_calm(self) -> bool:
        """True while the server has told of all that this process has changed."""
        return not (self._unconfirmed or self._ending)

    def expire(self, now: float) -> None:
        """Believe nothing any more of which the server should have told."""
        self._ending = {uid: end for uid, end in self._ending.items() if end > now}
        for key in list(self._unconfirmed):
            pod = self._pods[key]
            if pod.deadline <= now:
                pod.created = None
                self._unconfirmed.discard(key)
                self._show(key, pod)

    def _show(self, key: str, pod: _Pod) -> None:
        current = pod.created or pod.reported
        if current is not None and current.metadata.uid in self._ending and not current.is_leaving:
            meta = msgspec.structs.replace(current.metadata, deletion_timestamp=_ENDING)
            current = msgspec.structs.replace(current, metadata=meta)
        last = self._current.pop(key, None)
        self._placeholders.discard(key)
        job = _job_of(last)
        if job:
            self._listed.pop(job, None)
            self._keys_of[job].discard(key)
            if not self._keys_of[job]:
                del self._keys_of[job]
        if current is None:
            del self._pods[key]
        else:
            self._current[key] = current
            if job := _job_of(current):
                self._listed.pop(job, None)
                self._keys_of.setdefault(job, set()).add(key)
            elif stands_for(current):
                self._placeholders.add(key)
        self._places.take_pod(key, current)


def _uid_of(pod: KubePod | None) -> str:
    return pod.metadata.uid if pod is not None else ""


def _job_of(pod: KubePod | None) -> str:
    identity = identity_of(pod) if pod is not None else None
    return identity.job if identity is not None else ""
