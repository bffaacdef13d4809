"""Deadlines on a real API server: promised where they can be kept, else refused with a possible one."""

from __future__ import annotations

import pytest

from brim.kubernetes.client.times import read_time, write_time
from clusters import need
from kubernetes.test_operator import House, house, plane, run
from recorded_run import RecordedRun, spec

__all__ = ["house", "plane"]

STEPS = 3600  # of each run
STEP = 0.5  # seconds, times 1.75 on one worker


async def teach(house: House) -> None:
    """Have a first job of the model run, so that its speed and its steps are known."""
    house.submit("first", workers={"min": 1, "max": 1})
    await house.until_running(1, "first")
    await house.until_followed("first")
    folder = house.folder / "life-1" / "jobs" / f"{house.namespace}.first"
    run = RecordedRun(folder, spec(), start=house.clock.wall() - 60, step_seconds=STEP)
    run.begin(workers=1, steps=STEPS)
    run.train(20)
    house.copies.news[folder.name]()
    await house.until(lambda: house.job("first")["status"].get("step") == 20)
    house.run_ends("done", "first")
    await house.until(lambda: house.phase("first") == "Done" and not house.workers("first"))


def promised(house: House, name: str, answer: str) -> bool:
    """Whether this was said of the deadline of a job."""
    return bool(house.job(name).get("status", {}).get("promised") == answer)


async def submit_by(house: House, name: str, due: float, answer: str) -> None:
    house.submit(name, deadline=write_time(due), workers={"min": 1, "max": 3})
    await house.until(lambda: promised(house, name, answer))
    house.delete(name)
    await house.until(lambda: not house.workers(name))


def condition(house: House, name: str, type: str) -> dict[str, str]:
    found: list[dict[str, str]] = house.job(name)["status"]["conditions"]
    return next(condition for condition in found if condition["type"] == type)


def test_deadlines_are_promised_or_get_the_earliest(house: House) -> None:
    need("kubectl")

    async def work() -> None:
        async with house.operator():
            await teach(house)
            house.submit("calm", deadlineIn="2h", workers={"min": 1, "max": 3})
            house.submit("late", deadlineIn="90s", workers={"min": 1, "max": 3})
            await house.until(
                lambda: promised(house, "calm", "Yes") and promised(house, "late", "No")
            )
            assert condition(house, "calm", "Promised")["status"] == "True"
            promise = condition(house, "late", "Promised")
            assert (promise["status"], promise["reason"]) == ("False", "TooLateEvenAlone")
            earliest = house.job("late")["status"]["earliestDeadline"]
            assert promise["message"].endswith(f"the earliest that could be promised: {earliest}")
            described = house.plane.kubectl("-n", house.namespace, "describe", "elasticjob", "late")
            assert f"Earliest Deadline:       {earliest}" in described
            assert promise["message"] in described
            rows = house.plane.kubectl("-n", house.namespace, "get", "elasticjobs").splitlines()
            promises = {
                row.split()[0]: row.split()[5] for row in rows if "-11-" in row or "T" in row
            }
            assert promises.items() >= {("calm", "Yes"), ("late", "No")}
            words = ("wait", "elasticjob/calm", "--for=condition=Promised", "--timeout=60s")
            assert "condition met" in house.plane.kubectl("-n", house.namespace, *words)
            # What it says is so: that is promised, and a good deal less is not.
            house.delete("late")
            await house.until(lambda: not house.workers("late"))
            await submit_by(house, "sooner", read_time(earliest, field="") - 300, "No")
            await submit_by(house, "later", read_time(earliest, field="") + 120, "Yes")

    run(work)


def test_the_gain_of_workers_is_a_metric(house: House) -> None:
    async def work() -> None:
        async with house.operator():
            house.submit("unknown", workers={"min": 1, "max": 1}, file="other.py")
            await house.until_running(1, "unknown")
            assert gains(house) == {"unknown": None}
            await teach(house)
            house.submit("known", workers={"min": 1, "max": 1})
            await house.until_running(1, "known")
            found = gains(house)
            # A step takes 0.875 s on one worker; the second one is believed to share 0.95 of it.
            assert found["unknown"] is None
            assert found["known"] == pytest.approx((1 / 0.525 - 1) / 0.875, rel=0.25)
            figures = house.present.figures() if house.present else None
            assert figures is not None
            assert (figures.states["running"], figures.states["done"]) == (2, 1)
            assert (figures.held, figures.slots) == (2, 6)

    run(work)


def gains(house: House) -> dict[str, float | None]:
    figures = house.present.figures() if house.present else None
    assert figures is not None
    return {figure.job.rpartition(".")[2]: figure.gain for figure in figures.jobs}
