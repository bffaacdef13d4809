"""ElasticJobs for tests, as an API server gives them."""

from __future__ import annotations

from typing import Any

from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.kubernetes.objects.elastic_jobs import new_job, read_job
from brim.kubernetes.objects.identities import GROUP, KIND, VERSION

MADE = "2026-11-24T17:00:00Z"


def elastic_job(name: str = "flights", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    """A small one, with these fields in its spec; None takes one away."""
    spec_fields = {"file": "flights.py", "workers": {"min": 1, "max": 4}} | spec
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1,
            "creationTimestamp": MADE,
        },
        "spec": {field: value for field, value in spec_fields.items() if value is not None},
    }  # fmt: skip


def everything() -> dict[str, Any]:
    """One with all possible fields, but for those that exclude another."""
    return elastic_job(
        parameters={"path": "s3://bucket/flights", "rate": "0.01"},
        env={"OMP_NUM_THREADS": "2"},
        epochs=3,
        globalBatchSize=1024,
        microBatches=16,
        seed=7,
        faults="kill rank 1 at step 40",
        exact=True,
        capture=True,
        restart=False,
        per="node",
        grace="15s",
        progress="step (?P<step>[0-9]+)",
        audit=False,
        clipNorm=1.5,
        onNan="skip",
        threads=2,
        loaders=1,
        checkpointEvery="30s",
        checkpoints="s3://bucket/run",
        runs="/mnt/runs",
        keep=3,
        keepBest="auc",
        heartbeatTimeout="5s",
        hangTimeout="none",
        memory="4GiB",
        logLimit="64MiB",
        startMethod="spawn",
        transport="auto",
        device="cpu",
        embeddings="dense",
        delay=0,
        servers=0,
        deadline="2026-11-24T19:00:00Z",
        tenant="ads",
        priority="preserved",
        priorityClassName="preserved-pc",
        suspend=False,
        gang=False,
        mode="planned",
        processesPerWorker=2,
        template={
            "metadata": {"labels": {"team": "ads"}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "containers": [{"name": "worker", "image": "images/flights:1"}],
            },
        },
        masterTemplate={"spec": {"containers": [{"name": "master", "resources": {}}]}},
        volumeClaim={"storageClassName": "fast", "size": "1Gi"},
    )


def submitted(thing: dict[str, Any] | None = None, **options: Any) -> ScheduledJob:
    """The job of an ElasticJob that is right."""
    thing = thing or elastic_job()
    submission = read_job(thing, **options)
    assert isinstance(submission, Submission), submission
    return new_job(thing, submission, id="team.flights", number=1)
