"""Kubeflow's own client (kubeflow-training) reads brim's statuses of jobs."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kubernetes.test_kubeflow_on_a_server import JOB, MPI, MpiPlace, Place, mpi, place, plane, run

__all__ = ["mpi", "place", "plane"]  # fixtures

SCRIPT = Path(__file__).parent / "files" / "kubeflow_client.py"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kubeflow") is None,
    reason="no kubeflow-training: pip install -e '.[dev]'",
)


async def client(place: Place, kind: str, job: str, *arguments: str) -> dict[str, Any]:
    """Return the client's view of a job."""
    words = (str(place.plane.kubeconfig), place.namespace, kind, job, *arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), *words, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def test_it_sees_a_job_run_and_succeed(place: Place) -> None:
    names = [f"{JOB}-worker-0", f"{JOB}-worker-1"]

    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={})  # without which the client reads no job
            await place.until(lambda: place.runs_with(0, 1))
            answer = await client(place, "PyTorchJob", JOB)
            assert answer["created"]
            assert answer["running"]
            assert not answer["succeeded"]
            assert (answer["pods"], answer["workers"]) == (names, names)
            assert answer["master"] == names[:1]
            waiting = asyncio.create_task(client(place, "PyTorchJob", JOB, "wait"))
            place.kubelets.say(names[0], phase="Succeeded")
            answer = await waiting
            assert answer["succeeded"]
            assert not answer["running"]

    run(work)


def test_it_sees_why_a_job_has_failed(place: Place) -> None:
    async def work() -> None:
        async with place.operator():
            place.apply(runPolicy={"backoffLimit": 0})
            await place.until(lambda: place.runs_with(0, 1))
            place.fail(f"{JOB}-worker-0", 1, "no such file: imagenet")
            await place.until(lambda: place.held().get("Failed") == "True")
            answer = await client(place, "PyTorchJob", JOB)
            assert answer["failed"]
            assert "no such file: imagenet" in answer["last"]

    run(work)


def test_it_sees_a_launcher_and_its_workers(mpi: MpiPlace) -> None:
    place = mpi.place

    async def work() -> None:
        async with place.operator():
            place.apply("mpijob.yaml")
            await place.until(lambda: len(mpi.hosts()) == 3)
            await place.until(lambda: place.held().get("Running") == "True")
            answer = await client(place, "MPIJob", MPI)
            assert answer["running"]
            assert answer["master"] == [f"{MPI}-launcher"]
            assert answer["workers"] == [f"{MPI}-worker-{number}" for number in range(3)]

    run(work)
