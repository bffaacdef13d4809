"""Once everybody is quiet, a cluster comes to rest, and no job waits beside devices that it may have."""

from collections import Counter

from coordination.quiet import Deed, at_random, run

SEEDS = 30


def test_no_job_waits_beside_free_devices() -> None:
    found = Counter[str]()
    for seed in range(SEEDS):
        try:
            cluster = run(*at_random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for job in cluster.jobs.jobs.values():
            found["running" if job.running else "held" if not job.life.may_run else "waiting"] += 1
    assert all(found[state] > SEEDS // 5 for state in ("running", "held", "waiting")), found


def test_more_workers_may_be_needed_while_measured() -> None:
    """A job is measured with 1 worker when its owner says that it needs 2."""
    cluster = run((1, 3, 4), [Deed("submit", (4, 11, 1)), Deed("resize", (0, 1, 0))])
    (job,) = cluster.jobs.jobs.values()
    assert job.submission.spec.workers.minimum == job.target == 2
