"""Where a round spans agents, the master is the root of its barriers: its release is the commit.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from brim.coordination.barrier import COMMIT, Barrier, Point, Release
from brim.coordination.membership import World
from brim.master.effects import Effects
from brim.wire import messages as wire


@dataclass(slots=True, kw_only=True)
class Root:
    """The barriers of the current round, whose members may all be on one host: then its hub is the
    root.
    """

    out: Effects
    hosts: list[str] = field(default_factory=list)
    barrier: Barrier = field(default_factory=Barrier)

    def begin(self, world: World) -> None:
        """Also where this is not the root: a late arrival must not complete, and commit, the round
        before.
        """
        self.hosts = list(world.hosts)
        self.barrier.begin(world.round, self.hosts)

    def hold(self, round: int) -> None:
        """Have everyone stop at the next step boundary."""
        if len(self.hosts) > 1:
            self.barrier.hold(round)
        else:
            self.out.tell(self.hosts[0], wire.HoldRound(round=round))

    def arrive(self, agent: str, arrival: wire.ArriveTogether) -> wire.CommitRecord | None:
        """All workers of an agent stand at a point; where all agents do, they are released.

        Returns:
            Where that commits a step, its record.

        Raises:
            ProtocolError: they cannot stand there.
        """
        point = Point(arrival.step, arrival.phase)
        payload = msgspec.msgpack.encode(arrival.payloads)
        release = self.barrier.arrive(agent, arrival.round, point, payload)
        if release is None:
            return None
        payloads = [
            each
            for part in release.payloads
            for each in msgspec.msgpack.decode(part, type=list[bytes])
        ]
        if point.phase != COMMIT:
            self._release(release, payloads)
            return None
        self._release(release, [])
        return wire.CommitRecord(
            round=release.round,
            step=point.step + 1,
            at=self.out.at,
            payloads=payloads,
            held=release.hold,
        )

    def _release(self, release: Release, payloads: list[bytes]) -> None:
        for agent in self.hosts:
            self.out.tell(
                agent,
                wire.ReleaseTogether(
                    round=release.round,
                    step=release.point.step,
                    phase=release.point.phase,
                    hold=release.hold,
                    payloads=payloads,
                ),
            )
