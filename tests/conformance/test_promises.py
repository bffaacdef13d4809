"""Promises are kept although speeds, starts, handovers and ends differ from the estimates: see
`training`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.training import Arrival, Stream, arrivals


@pytest.mark.parametrize("seed", [1, 11, 14, 16])
def test_every_promise_is_kept(tmp_path: Path, seed: int) -> None:
    """In each of these streams one or more were broken before their causes were found."""
    stream = Stream(tmp_path, arrivals(seed))
    stream.run()
    assert stream.broken == []
    assert sum(record.promised for record in stream.jobs.values()) > len(stream.jobs) / 2
    assert all(record.life.phase.value == "done" for record in stream.jobs.values())
    assert stream.processes.most <= 8
    assert stream.replay().differences == ()


@pytest.mark.parametrize("policy", ["brim", "edf", "elasticflow"])
def test_a_new_model_is_judged_on_full_clusters(tmp_path: Path, policy: str) -> None:
    """Jobs without a promise fill the cluster: a job with a deadline to be judged does not wait
    for their ends.
    """
    fillers = [
        Arrival(name=f"f{k}", model="large", at=0.1 * k, deadline=None, steps=400, maximum=1)
        for k in range(10)
    ]
    new = Arrival(
        name="new", model="small", at=5.0, deadline=65.0, steps=60, fingerprint="never-seen"
    )
    stream = Stream(tmp_path, [*fillers, new], policy=policy)
    stream.run()
    job = stream.jobs["new"]
    delays = {change.event: change.at - job.submitted for change in stream.book.story(job)}
    assert delays["measured"] < 10.0
    assert job.ended is not None
    assert job.ended < stream.origin + 65.0
    assert policy == "edf" or delays["promised"] < 15.0
    assert stream.replay().differences == ()
