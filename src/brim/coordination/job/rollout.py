"""The replacing of all replicas of a service, one after the other: a rolling restart. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Rollout:
    """The workers of a service whose replicas are still to be replaced.

    The next one is told once the successor of the last is ready, or its worker is gone.

    >>> rollout = Rollout()
    >>> rollout.ready("w1", "w1-1"), rollout.ready("w2", "w2-1")
    ('', '')
    >>> rollout.begin(["w2", "w1"]), rollout.ready("w1", "w1-1"), rollout.ready("w1", "w1-2")
    ('w1', '', 'w2')
    >>> rollout.gone("w2"), rollout.remaining
    ('', 0)
    """

    _waiting: list[str] = field(default_factory=list)
    _under_way: str = ""
    _replicas: dict[str, str] = field(default_factory=dict)  # that were ready last, by worker
    _replaced: str = ""  # the one of the worker that is under way

    @property
    def remaining(self) -> int:
        """Return how many workers have not finished."""
        return len(self._waiting) + bool(self._under_way)

    def begin(self, workers: Iterable[str]) -> str:
        """Begin with these workers, once more where it was under way; returns the one to be told."""
        self._waiting = sorted(workers, key=lambda worker: (len(worker), worker))
        return self._next()

    def ready(self, worker: str, replica: str) -> str:
        """Take note that a replica is ready; returns the worker to be told next, or nothing."""
        self._replicas[worker] = replica
        if worker == self._under_way and replica != self._replaced:
            return self._next()
        return ""

    def gone(self, worker: str) -> str:
        """Take note that a worker is gone; returns the worker to be told next, or nothing."""
        self._replicas.pop(worker, None)
        self._waiting = [name for name in self._waiting if name != worker]
        return self._next() if worker == self._under_way else ""

    def _next(self) -> str:
        self._under_way = self._waiting.pop(0) if self._waiting else ""
        self._replaced = self._replicas.get(self._under_way, "")
        return self._under_way
