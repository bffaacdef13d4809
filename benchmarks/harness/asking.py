"""Questions to a scheduler, how long their answers take, and what its processes use meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from benchmarks.harness.brim_cluster import BrimCluster
from brim.client import Client
from brim.storage.contact import read_scheduler_contact


def timed(function: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def scheduler_of(cluster: BrimCluster) -> psutil.Process:
    """The process of a cluster's scheduler."""
    contact = read_scheduler_contact(cluster.state)
    if contact is None:
        raise RuntimeError("the scheduler is gone")
    return psutil.Process(contact.pid)


def stepping(client: Client) -> int:
    """Return how many jobs have made a step and run."""
    return sum(view.state == "running" and view.step > 0 for view in client.jobs())


def used(process: psutil.Process) -> float:
    """Processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def share(process: psutil.Process, seconds: float) -> float:
    """The part of one processor that a process uses, over so many seconds."""
    used_before, started = used(process), time.monotonic()
    time.sleep(seconds)
    return (used(process) - used_before) / (time.monotonic() - started)


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which a part of the values lies.

    >>> percentile([3.0, 1.0, 2.0], 0.99)
    3.0
    """
    return sorted(values)[round(part * (len(values) - 1))]


def percentiles(values: Sequence[float]) -> list[str]:
    """Median and 99th percentile of seconds, in milliseconds.

    >>> percentiles([0.001, 0.002, 0.0035])
    ['2.0', '3.5']
    """
    return [
        f"{1000.0 * statistics.median(values):.1f}",
        f"{1000.0 * percentile(values, 0.99):.1f}",
    ]
