"""What an agent decides about its own workers: when they are released, and when one is gone.

Pure but for its types.

The hub sees the arrivals of its workers. Where all members of a round are its own, it is the root:
its release is the commit. Where a round spans agents, it passes complete arrivals on to the master,
which is the root then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.coordination.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.membership import World
from brim.coordination.turns import TURN, Answer, Turns

_LOCAL_PHASES = ("blocks", "folded")  # these concern the workers of one host only


@dataclass(frozen=True, slots=True)
class PassOn:
    """All workers of this agent stand at a point where those of other agents must stand too."""

    round: int
    point: Point
    payloads: tuple[bytes, ...]


class Hub:
    """The barriers of one agent.

    Args:
        agent: its name.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._barrier = Barrier()
        self._is_root = True
        self.members: tuple[str, ...] = ()
        self.turns: Turns | None = None  # of a job whose workers apply whole batches in turns

    @property
    def round(self) -> int:
        return self._barrier.round

    def begin(self, world: World) -> None:
        """A new round; whoever waits in the old one will hear of it."""
        self.members = tuple(
            member.worker for member in world.members if member.agent == self._agent
        )
        self._is_root = len(self.members) == world.world_size
        self._barrier.begin(world.round, self.members)
        if self.turns is not None:
            self.turns.begin(world.round, self.members)

    def hold(self, round: int) -> None:
        self._barrier.hold(round)
        if self.turns is not None:
            self.turns.hold(round)

    def close(self) -> None:
        """The job ends with what its workers have: nobody is released any more."""
        self._barrier.close()
        if self.turns is not None:
            self.turns.close()

    def lose(self, worker: str) -> None:
        """A worker is dead: where it was a member, no step of this round counts any more."""
        if self.turns is not None:
            self.turns.lose(worker)

    def arrive(
        self, worker: str, round: int, point: Point, payload: bytes
    ) -> Release | PassOn | Sequence[Answer] | None:
        """Raises ProtocolError as `Barrier.arrive` and `Turns` do."""
        if self.turns is not None and len(self.members) > 1:
            return self._arrive_by_turns(self.turns, worker, round, point, payload)
        return self._arrive_together(worker, round, point, payload)

    def _arrive_by_turns(
        self, turns: Turns, worker: str, round: int, point: Point, payload: bytes
    ) -> Release | PassOn | Sequence[Answer] | None:
        if point.phase == TURN:
            return turns.ask(worker, round, point.step)
        if is_commit(point):
            return turns.commit(worker, round, point.step, payload)
        answers = turns.rest(worker, round)
        release = self._arrive_together(worker, round, point, payload)
        if release is None:
            return answers
        turns.level()
        return release

    def _arrive_together(
        self, worker: str, round: int, point: Point, payload: bytes
    ) -> Release | PassOn | None:
        release = self._barrier.arrive(worker, round, point, payload)
        if release is None or self._is_root or point.phase in _LOCAL_PHASES:
            return release
        return PassOn(round, point, release.payloads)


def is_commit(point: Point) -> bool:
    return point.phase == COMMIT
