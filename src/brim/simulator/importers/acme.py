"""Reads the job traces of Shanghai AI Laboratory's Acme clusters, Seren and Kalos.

Source: https://github.com/InternLM/AcmeTrace
"""

from __future__ import annotations

from pathlib import Path

from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.gpu_tables import read_gpu_table
from brim.simulator.past_jobs import Log


def read_acme(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a cluster to `log`; tenants are the types of jobs, such as Evaluation.

    Its column `duration` is not read: Kalos counts it from the submission.

    Raises:
        SpecError: the file is not such a trace.
    """
    read_gpu_table(path, log, clock, tenant="type", hint="data/job_trace/trace_kalos.csv")
