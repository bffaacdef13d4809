"""From one round to the next: how long nobody trained, what was redone, what was restored. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.coordination.membership import World
from brim.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReFormed:
    """All members of a round have the state.

    Args:
        seconds: since the reason for this round was noticed.
        in_flight: steps that were under way, and given up: 0 or 1.
    """

    seconds: float
    in_flight: int


@dataclass(slots=True, kw_only=True)
class RoundAccount:
    """The account of the current round; `at` is seconds since 1970, `now` monotonic."""

    world: World | None = None
    named_at: float = 0.0
    _noticed: float = 0.0
    _steps: dict[str, int] = field(default_factory=dict)  # of the members that have the state
    _step_in_flight: bool = False

    def notice(self, *, now: float) -> None:
        """There is a reason for another round."""
        self._noticed = now

    def hold(self, *, now: float) -> None:
        """All members stand at a boundary: no step is under way."""
        self._step_in_flight = False
        self.notice(now=now)

    def name(self, world: World, *, at: float) -> None:
        """The next round is named."""
        self.world, self.named_at, self._steps = world, at, {}

    def is_first_restored(self, round: int) -> bool:
        """Whether nobody has said yet what this round was restored to: who restored may die before
        its own words.
        """
        return (
            self.world is not None
            and round == self.world.round
            and self.world.restore
            and not self._steps
        )

    def install(self, worker: str, round: int, step: int, *, now: float) -> ReFormed | None:
        """A member has the state as of `step`; what that took, once all have it.

        Raises:
            InternalError: members stand at different steps.
        """
        if self.world is None or round != self.world.round:
            return None
        self._steps[worker] = step
        if len(self._steps) < self.world.world_size:
            return None
        if len(set(self._steps.values())) > 1:
            raise InternalError(f"members of round {round} stand at different steps: {self._steps}")
        re_formed = ReFormed(seconds=now - self._noticed, in_flight=int(self._step_in_flight))
        self._step_in_flight = True
        return re_formed
