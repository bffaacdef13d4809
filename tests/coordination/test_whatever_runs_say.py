"""Records of a run, which its owner's code may have written, stop no scheduler."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.coordination.cluster.reconcile import Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import Answered, Decided, Looked
from brim.coordination.cluster.sightings import NodeSeen, Reached, Seen
from brim.domain.measuring import Measured
from brim.scheduler.loop import decide
from coordination.scheduled import Transcript

NOW = 1_790_000_000.0
AT = st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e300, -1e300, NOW, NOW + 5, NOW - 1e6, NOW + 1e9])
NUMBER = st.sampled_from([0, 1, 2, 100, 2**31, 2**53, 2**63 - 1, -1, -(2**62)])
SECONDS = st.sampled_from([5e-324, 1e-300, 1e-9, 0.5, 10.0, 1e9, 1e300])
SAID = st.fixed_dictionaries(
    {
        "step": NUMBER,
        "steps": st.none() | NUMBER,
        "saved": AT,
        "first_step": st.none() | AT,
        "last_step": st.none() | AT,
        "reached": st.none() | st.builds(Reached, st.integers(1, 3), AT, NUMBER),
        "outcome": st.sampled_from(["", "", "done", "failed", "suspended"]),
        "summary": st.sampled_from([{}, {"exit": "done", "steps": 2**63 - 1}]),
    }
)
TOOK = st.lists(st.tuples(st.sampled_from([1, 2, 4]), SECONDS, st.integers(1, 6)), max_size=3)


@settings(max_examples=50, deadline=None)
@given(lives=st.lists(st.tuples(st.booleans(), SAID, TOOK), min_size=1, max_size=6))
@example(lives=[(True, {}, [(1, 5e-324, 6), (2, 1e300, 6)])])
@example(lives=[(True, {}, [(2, 0.1, 6), (4, 0.2, 6)])])
def test_it_decides_on(lives: list[tuple[bool, dict[str, Any], list[Any]]]) -> None:
    jobs = Transcript("1x4")
    (node,) = (node.id for node in jobs.jobs.spec.cluster.nodes)
    jobs.submit("1:4", at=NOW, deadline=NOW + 7200.0)
    jobs.submit("1:2", at=NOW)
    jobs.hear(Looked({node: NodeSeen(up=True)}, {}), NOW)
    now, memory = NOW, None
    for alive, measurements, took in lives:
        measured = Measured()
        for workers, seconds, times in took:
            for _ in range(times):
                measured.add(workers, seconds)
        snapshot = jobs.jobs.snapshot(now, memory=memory)
        decision = decide(snapshot, "brim", left_by="brim")
        memory = decision.memory
        jobs.hear(Decided(decision), now)
        now += 10.0
        seen = {
            job.id: Seen(
                alive=alive,
                workers=dict(job.held) if alive else {},
                agents=frozenset({job.allocation.home, *job.held}) if alive else frozenset(),
                measured=measured,
                **measurements,
            )
            for job in jobs.jobs.to_look_at()
        }
        jobs.hear(Looked({node: NodeSeen(up=True)}, seen), now)
        for command in jobs.commands:
            if isinstance(command, Start | Resize | Suspend):
                jobs.hear(Answered(command), now)
        for job in jobs.known.values():
            jobs.jobs.speed(job)
