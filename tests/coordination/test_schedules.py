"""On every schedule a job ends, with the weights of a calm run and every sample used once."""

import os
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from brim.coordination.job.membership import Install, LetGo, WorkerDisagrees
from brim.wire.messages import Commits
from coordination.cluster import Cluster, Fault, Setting, at_random

SCHEDULES = int(os.environ.get("BRIM_SCHEDULES", "1000"))
TERM, STOP = "term", "stop"
STATES = [
    *(
        "starting",
        "ready",
        "fetching",
        "donating",
        "installed",
        "computing",
        "at blocks",
        "folding",
    ),
    *(
        "at commit",
        "applying",
        "held",
        "evaluating",
        "writing",
        "completing",
        "done",
        "dismissed",
        "leaving",
    ),
]


def run_each(batch: int, *, batches: int, extra_kinds: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Run the schedules of one of so many batches, and yield each job behind its end."""
    for seed in range(batch * SCHEDULES // batches, (batch + 1) * SCHEDULES // batches):
        cluster = at_random(seed, extra_kinds=extra_kinds)
        try:
            cluster.run()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        yield cluster


@pytest.mark.parametrize("batch", range(10))
def test_any_schedule(batch: int) -> None:
    met_on_boards = sum(cluster.met_on_boards for cluster in run_each(batch, batches=10))
    assert 50 * met_on_boards > SCHEDULES, "hardly a step was made without the agent"


@pytest.mark.parametrize("batch", range(5))
def test_any_schedule_in_which_data_is_waited_for(batch: int) -> None:
    still_rounds = 0
    for cluster in run_each(batch, batches=5, extra_kinds=("idle",) * 8):
        still_rounds += sum(
            isinstance(event, Install) and event.still for _, event in cluster.story
        )
    assert 40 * still_rounds > SCHEDULES, "hardly a step was given up since it had no data"


@pytest.mark.parametrize("batch", range(5))
def test_any_schedule_with_draining_hosts(batch: int) -> None:
    let_go = 0
    for cluster in run_each(batch, batches=5, extra_kinds=("depart", "depart")):
        let_go += sum(isinstance(event, LetGo) for _, event in cluster.story)
    assert 100 * let_go > SCHEDULES, "hardly a host was let go"


@pytest.mark.parametrize("batch", range(5))
def test_any_schedule_in_which_streams_break(batch: int) -> None:
    broken_rounds = 0
    for cluster in run_each(batch, batches=5, extra_kinds=("cut",) * 8):
        causes = (event.cause for _, event in cluster.story if isinstance(event, Install))
        broken_rounds += sum("lost its connection" in cause for cause in causes)
    assert 100 * broken_rounds > SCHEDULES, "hardly a stream broke"


@pytest.mark.parametrize("batch", range(5))
def test_any_schedule_in_which_newcomers_disagree(batch: int) -> None:
    turned_away = 0
    for cluster in run_each(batch, batches=5, extra_kinds=("estrange",) * 8):
        turned_away += sum(isinstance(event, WorkerDisagrees) for _, event in cluster.story)
    assert 40 * turned_away > SCHEDULES, "hardly a newcomer was turned away"


class HeardLate(Cluster):
    """A cluster whose master hears of commits last of all that can happen, but for a few."""

    def _enabled(self) -> list[Callable[[], None]]:
        able = super()._enabled()
        late = [a for a in self.agents.values() if a.outbox and isinstance(a.outbox[0], Commits)]
        if not late or self._choose(50) == 0:
            return able

        def is_late(event: Callable[[], None]) -> bool:
            return isinstance(event, partial) and event.func == self._hear and event.args[0] in late

        return [event for event in able if not is_late(event)] or able


def heard_late(seed: int) -> HeardLate:
    """Two hosts, of which the first has all workers until one or two are killed, or move."""
    rng = random.Random(f"heard late {seed}")
    setting = Setting(
        agents=2, minimum=1, target=2, board=bool(seed % 3), every=rng.choice((1, 2, 1000))
    )
    kinds = ("kill", "kill", "place", "place", *("idle",) * (seed % 2))
    faults = tuple(Fault(rng.randrange(20, 160), kind, rng.randrange(4)) for kind in kinds)
    return HeardLate(setting, rng.randrange, faults)


def test_any_schedule_in_which_commits_are_heard_late() -> None:
    for seed in range(SCHEDULES // 5):
        heard_late(seed).run()


def kill_at(state: str, *, world: int, spares: int, rank: int, agents: int) -> bool:
    """Kill this rank when it is first in this state; whether it ever was."""
    script: list[Fault] = []
    if state in ("fetching", "donating", "held"):
        script.append(Fault(40, "resize", world % 4))  # one more, or down to one
    if state in ("dismissed", "leaving"):
        script.append(Fault(40, TERM, rank))
    if state == "writing":
        script.append(Fault(40, STOP))
    rng = random.Random(f"{state} {world} {spares} {rank}")
    setting = Setting(agents=agents, minimum=1, target=world, spares=spares)
    cluster = Cluster(setting, rng.randrange, tuple(script))
    killed = False
    while cluster.happen():
        if killed:
            continue
        for worker in cluster.workers.values():
            has_asked = worker.participant._has_asked_to_leave
            is_reached = has_asked if state == "leaving" else worker.doing == state
            place = worker.rank if worker.world is not None else int(worker.name[1:]) - 1
            if (
                worker.alive
                and is_reached
                and (place == rank or state in ("donating", "fetching", "writing"))
            ):
                worker.die("signal 9")
                killed = True
                break
    cluster.check()
    return killed


@pytest.mark.exhaustive
@pytest.mark.parametrize("state", STATES)
def test_a_kill_at_every_membership_state(state: str) -> None:
    killed = 0
    for world in range(1, 5):
        for rank in range(world):
            for spares in (0, 1):
                for agents in (1, 2):
                    killed += kill_at(state, world=world, spares=spares, rank=rank, agents=agents)
    assert killed >= 4, f"the state {state!r} was hardly ever reached"


def test_a_calm_run_of_every_size() -> None:
    for target in range(1, 5):
        for agents in (1, 2):
            cluster = Cluster(Setting(agents=agents, target=target), random.Random(0).randrange)
            assert cluster.run().end is not None
            assert not cluster.restores
