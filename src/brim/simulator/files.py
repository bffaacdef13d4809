"""Writes the results of a simulation, and reads decisions back.

The files are jobs.csv, decisions.jsonl and summary.json.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from brim.domain.schedule import Admitted
from brim.errors import SpecError
from brim.simulator.run import SimulatedRun
from brim.storage.files import nearby, write_whole

_COLUMNS = (
    "policy", "job_id", "tenant", "label", "submitted", "deadline", "started", "finished", "jct_seconds",
    "admitted", "refused", "met", "worker_seconds", "changes",
)  # fmt: skip


def write_jobs(path: Path, runs: Mapping[str, SimulatedRun]) -> None:
    """One row for each job under each policy."""
    with io.StringIO(newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for policy, run in runs.items():
            for outcome in run.outcomes:
                job, done = outcome.job, outcome.finished
                jct = "" if done is None else f"{done - job.submitted:.3f}"
                job_cells = [
                    policy,
                    job.id,
                    job.tenant,
                    job.label,
                    job.submitted,
                    _text(job.deadline),
                ]
                time_cells = [_text(outcome.started), _text(done), jct]
                writer.writerow(
                    [
                        *job_cells,
                        *time_cells,
                        int(outcome.admitted),
                        int(outcome.refused),
                        int(outcome.met),
                        f"{outcome.attained:.1f}",
                        outcome.changes,
                    ]
                )
        write_whole(path, file.getvalue().encode())


def write_decisions(path: Path, runs: Mapping[str, SimulatedRun]) -> None:
    """One JSON object a line, by time: verdicts and changes of workers, each with its reason."""
    with io.StringIO() as file:
        for policy, run in runs.items():
            rows: list[tuple[float, int, dict[str, Any]]] = []
            for time, verdict in run.verdicts:
                yes = isinstance(verdict, Admitted)
                event = {"event": "admitted" if yes else "refused", "reason": str(verdict.reason)}
                rows.append((time, 0, {"job": verdict.job, **event, "detail": verdict.detail}))
            for change in run.changes:
                body = {
                    "job": change.job,
                    "event": "workers",
                    "before": change.before,
                    "after": change.after,
                }
                rows.append(
                    (change.at, 1, {**body, "reason": change.reason, "detail": change.detail})
                )
            for time, _, row in sorted(rows, key=lambda entry: (entry[0], entry[1])):
                file.write(json.dumps({"policy": policy, "time": round(time, 3), **row}) + "\n")
        write_whole(path, file.getvalue().encode())


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """The object that `--json` prints."""
    write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())


def read_decisions(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of `folder`/decisions.jsonl.

    Raises:
        SpecError: there is none.
    """
    path = folder / "decisions.jsonl"
    if not path.exists():
        actual = f"{folder}, " + (
            "which has no decisions.jsonl" if folder.is_dir() else "no such folder"
        )
        need = "a folder that `brim simulate --out` wrote"
        raise SpecError("--sim", got=actual, need=need, hint=nearby(folder))
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
