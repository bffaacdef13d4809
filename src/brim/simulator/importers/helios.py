"""Reads the job logs of SenseTime's Helios clusters, one for each cluster.

Source: https://github.com/S-Lab-System-Group/HeliosData
"""

from __future__ import annotations

from pathlib import Path

from brim.simulator.importers.clock import LogClock
from brim.simulator.importers.gpu_tables import read_gpu_table
from brim.simulator.past_jobs import Log


def read_helios(path: Path, log: Log, clock: LogClock) -> None:
    """Add the jobs of a cluster to `log`; tenants are its virtual clusters.

    Raises:
        SpecError: the file is not such a log.
    """
    read_gpu_table(path, log, clock, tenant="vc", hint="data/Venus/cluster_log.csv of data.zip")
