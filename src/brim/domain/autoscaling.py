"""The number of replicas of one service, by what is measured of it. Pure: times are arguments.

Who measures the load and starts the replicas is elsewhere: a scheduler, or an operator of Kubernetes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from brim.domain.demand import Past, foresee
from brim.domain.quantities import counted
from brim.domain.services import ReplicaRule, ReplicaScale, rescaled, stay_of

BETWEEN_LOADS = 1.0  # seconds between two measurements of a load
_LONGEST_NOTICE = 300.0  # seconds of one that counts: else others did not give way at all
_SMOOTHED = 3  # measurements of a load whose mean is the load now
_NOTICES = 5  # measurements of how long a replica takes to come; the longest of them counts


class Autoscaler:
    """The loads of a service, and the replicas that follow from them.

    Args:
        past: the loads that were measured before.
        replicas: that it is to have at first.
        notices: seconds that replicas took to come, as they were measured before.

    Attributes:
        past: all loads.
        load: the load now; None: not measured yet.
        foreseen: the most load expected until another replica could be ready; None: as above.
        target: replicas that the service is to have.

    >>> web = Autoscaler(Past(), replicas=1)
    >>> web.measured(25.0, wall=0.0)
    >>> web.decide(ReplicaRule(maximum=4, per_replica=10.0), now=0.0, wall=0.0)
    3
    """

    def __init__(self, past: Past, *, replicas: int, notices: Iterable[float] = ()) -> None:
        self.past = past
        self.load: float | None = None
        self.foreseen: float | None = None
        self._scale = ReplicaScale(replicas)
        self._latest: deque[float] = deque(maxlen=_SMOOTHED)
        self._notices = deque(notices, maxlen=_NOTICES)
        self._growth: tuple[float, int] | None = None  # since when so many replicas are waited for

    @property
    def target(self) -> int:
        return self._scale.target

    @property
    def notices(self) -> tuple[float, ...]:
        """The seconds that replicas took to come lately."""
        return tuple(self._notices)

    def notice(self, rule: ReplicaRule) -> float:
        """Return the seconds that another replica takes to come, as far as is known."""
        return max(self._notices, default=rule.notice)

    def horizon(self, rule: ReplicaRule) -> float:
        """Return the seconds for which a load is foreseen: until a later wish could be fulfilled."""
        return self.notice(rule) + BETWEEN_LOADS

    def measured(self, load: float, *, wall: float) -> None:
        """Take in a load.

        Args:
            wall: seconds since 1970.
        """
        self._latest.append(load)
        self.load = sum(self._latest) / len(self._latest)
        self.past.add(wall, load)

    def decide(self, rule: ReplicaRule, *, now: float, wall: float) -> int:
        """Return how many replicas the service is to have, by the loads that were measured.

        Args:
            now: monotonic seconds.
            wall: seconds since 1970.
        """
        load = self.load or 0.0
        expected = foresee(self.past, wall, self.horizon(rule))
        self.foreseen = max(load, expected if expected is not None else load)
        stay = stay_of(self.notice(rule))
        self._scale = rescaled(self._scale, rule, foreseen=self.foreseen, stay=stay, now=now)
        return self._scale.target

    def resized(self, before: int, after: int, now: float) -> None:
        """Note that the service was asked to have other replicas: more are waited for."""
        self._growth = (now, after) if after > before else None

    def ready(self, replicas: int, now: float) -> None:
        """Learn how long replicas take to come, with the time for which others give way."""
        if self._growth is not None and replicas >= self._growth[1]:
            if now - self._growth[0] <= _LONGEST_NOTICE:
                self._notices.append(now - self._growth[0])
            self._growth = None

    def words(self, rule: ReplicaRule, *, unit: str = "") -> str:
        """Return why the service has the replicas of `target`.

        Args:
            unit: of the load, as it stands behind a number.
        """
        return (
            f"load {self.load or 0.0:.3g}{unit} now, {self.foreseen or 0.0:.3g}{unit} foreseen in "
            f"{self.horizon(rule):.0f} s: {counted(self.target, 'replica')}"
        )
