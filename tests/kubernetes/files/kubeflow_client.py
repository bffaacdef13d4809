"""Asks Kubeflow's own client about a job, and writes its answer, as JSON.

It is a process of its own: the client imports the package `kubernetes`, and so is a folder of tests.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(config: str, namespace: str, kind: str, job: str, *last_words: str) -> None:
    """Write the client's view of a job, once it has ended where `wait` is the last word."""
    training = importlib.import_module("kubeflow.training")
    client = training.TrainingClient(config_file=config, namespace=namespace, job_kind=kind)
    if last_words == ("wait",):
        client.wait_for_job_conditions(job, wait_timeout=60, polling_interval=1)
    output = {
        "created": client.is_job_created(job),
        "running": client.is_job_running(job),
        "succeeded": client.is_job_succeeded(job),
        "failed": client.is_job_failed(job),
        "last": client.get_job_conditions(job)[-1].message,
        "pods": sorted(client.get_job_pod_names(job)),
        "master": client.get_job_pod_names(job, is_master=True),
        "workers": sorted(client.get_job_pod_names(job, replica_type="worker")),
    }
    sys.stdout.write(json.dumps(output) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
