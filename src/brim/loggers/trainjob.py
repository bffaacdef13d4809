"""The progress of a run in a pod of a TrainJob, for the status of that object.

The pod's environment names a server, which has the last status alone: so this is no logger, which
gets each step once. It is started and ended like one. A server that is away is tried again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brim.domain.printable import printable
from brim.domain.step_records import StepRecord
from brim.errors import EnvironmentFault
from brim.host.clock import utc_time, wall
from brim.telemetry.events import CommandProgressed, EpochEnded, Event, ValuesLogged
from brim.telemetry.history import RunHistory, RunReader
from brim.wire.status_server import post_status

NAME = "trainjob"  # among those of loggers
VARIABLES = tuple(f"KUBEFLOW_TRAINER_SERVER_{word}" for word in ("URL", "CA_CERT", "TOKEN"))

_INTERVAL = 5.0  # seconds between two reports, as Kubeflow's own libraries have it
_MOST_METRICS = 256  # of a status; its makers' bound, as are the next two
_LONGEST_NAME = 64  # characters
_LARGEST_COUNT = 2**31 - 1


def is_wanted() -> bool:
    """Return whether this process is in a pod of a TrainJob whose trainer shows progress."""
    return all(os.environ.get(name) for name in VARIABLES)


def report(run_dir: Path, is_over: Callable[[float], bool]) -> None:
    """Report the progress of a run, until it is over and once more then.

    Args:
        is_over: waits at most so many seconds.
    """
    reader = RunReader(run_dir, keep_steps=False)
    values: dict[str, float] = {}
    problem, sent, has_ended = "", b"", False
    while not has_ended:
        has_ended = is_over(_INTERVAL)
        values |= _values_in(reader.poll())
        history = reader.history
        status = status_of(history, values) if history.started else {}
        if not status or (content := msgspec.json.encode(status)) == sent:
            continue
        words = _post(status)
        if words and has_ended:  # nothing comes after the last status
            words = _post(status)
        sent = content if not words else b""
        if words and words != problem:
            print(printable(words), file=sys.stderr)  # noqa: T201 - a file beside the run's logs
        problem = words


def status_of(history: RunHistory, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the status of a run, without the time.

    Args:
        values: metrics, and values that a script logged, the last of each name.
    """
    step, steps = history.step, history.planned
    metrics: dict[str, float] = {"current_step": step}
    if steps:
        metrics["total_steps"] = steps
    if history.round is not None:
        metrics["workers"] = len(history.round.workers)
    if history.last is not None and history.last.loss is not None:
        metrics["loss"] = history.last.loss
    metrics = {**values, **metrics}
    status: dict[str, Any] = {
        "metrics": [
            {"name": name, "value": f"{value:.10g}"}
            for name, value in list(metrics.items())[-_MOST_METRICS:]
            if 0 < len(name) <= _LONGEST_NAME
        ]
    }
    is_done = history.ended is not None and history.ended.summary.get("exit") == "done"
    left = 0.0 if is_done else history.seconds_left()
    if is_done or steps:
        # Rounded down: 100 is for the end alone.
        share = 100 if is_done else min(99, 100 * step // steps) if steps else 0
        status["progressPercentage"] = share
    if left is not None:
        status["estimatedRemainingSeconds"] = min(_LARGEST_COUNT, round(left))
    return status


def _values_in(records: Iterable[Event | StepRecord]) -> dict[str, float]:
    values: dict[str, float] = {}
    for record in records:
        match record:
            case (
                EpochEnded(metrics=found)
                | ValuesLogged(values=found)
                | CommandProgressed(values=found)
            ):
                values |= {name: value for name, value in found.items() if value is not None}
            case _:
                pass
    return values


def _post(status: Mapping[str, Any]) -> str:
    """Post a status with the time; return why that failed, or nothing."""
    now = f"{utc_time(wall()):%Y-%m-%dT%H:%M:%SZ}"
    url, authority, token = (os.environ.get(name, "") for name in VARIABLES)
    body = msgspec.json.encode({"trainerStatus": {**status, "lastUpdatedTime": now}})
    try:
        post_status(url, body, token=Path(token), authority=Path(authority))
    except EnvironmentFault as fault:
        return str(fault)
    return ""
