"""The outcome of a run, from its records: its state, its summary, and its error."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.domain.step_records import lasting
from brim.errors import BrimError, EnvironmentFault, InternalError, SpecError, UserCodeError
from brim.telemetry.events import RoundFormed, WorkerChanged, WorldReFormed
from brim.telemetry.history import RunHistory, WorkerLife

_FOUR_PARTS = re.compile(r"(.*?): got (.*), need (.*?)(?:\n  hint: (.*))?", re.DOTALL)


def summary_of(history: RunHistory, run_dir: Path) -> dict[str, Any]:
    """The run's summary, or the available facts of a run that could not write one."""
    if history.ended:
        return dict(history.ended.summary)
    steps = lasting(history.steps, history.restores)
    rounds = [event for event in history.events if isinstance(event, RoundFormed)]
    last = history.epochs[max(history.epochs)] if history.epochs else None
    re_forming = sum(event.seconds for event in history.events if isinstance(event, WorldReFormed))
    total = sum(session.end - session.start for session in history.sessions)
    first = (
        history.steps[0].at - history.sessions[0].start
        if history.steps and history.sessions
        else None
    )
    return {
        "run": str(run_dir),
        "exit": "failed",
        "metrics": dict(last.metrics) if last else {},
        "steps": history.step,
        "samples_per_epoch": history.dataset.samples if history.dataset else None,
        "steps_redone": len(history.steps) - len(steps),
        "out_of_memory": sum(
            isinstance(event, WorkerChanged) and event.ran_out_of_memory for event in history.events
        ),
        "world_sizes": sorted({round.world_size for round in rounds}),
        "servers": sorted({round.servers for round in rounds}),
        "weights_sha256": None,
        "samples_per_second": None,
        "seconds": {"total": total, "to_first_step": first, "re_forming": re_forming},
    }


def state_of(history: RunHistory, *, alive: bool) -> str:
    """`running`, or how it ended.

    `done`, `suspended`, `failed`, or `died` where its master was killed.
    """
    if alive:
        return "running"
    if history.ended:
        return str(history.ended.summary.get("exit", "done"))
    return "failed" if history.failed else "died"


def facts_of(history: RunHistory) -> dict[str, Any]:
    """The state of a run that began: the fields of `brim status --json`."""
    assert history.started is not None
    last = history.steps[-1] if history.steps else None
    return {
        "step": history.step,
        "steps": history.planned or 0,
        "epoch": last.epoch + 1 if last else 0,
        "epochs": history.planned_epochs,
        "loss": last.loss if last else None,
        "samples_per_second": history.samples_per_second(),
        "tables": _tables(history),
        "world_size": history.round.world_size if history.round else 0,
        "servers": history.round.servers if history.round else 0,
        "workers": [
            {
                "worker": life.worker,
                "state": life.state,
                "rank": life.rank,
                "share": _share(life, history),
                "serves": life.serves,
                "pid": life.pid,
                "agent": life.agent,
            }
            for life in history.workers.values()
            if life.until is None
        ],
        **_asynchronous(history),
    }


def _tables(history: RunHistory) -> list[dict[str, Any]]:
    rates = history.table_rates()
    return [
        {
            **asdict(table),
            "rows_read_per_second": rates.get(table.name, (0.0, 0.0))[0],
            "rows_changed_per_second": rates.get(table.name, (0.0, 0.0))[1],
            "hottest": [{"id": id, "lookups": count} for id, count in history.hottest(table.name)],
        }
        for table in (history.started.tables if history.started else [])
    ]


def _asynchronous(history: RunHistory) -> dict[str, Any]:
    """The fields of asynchronous training alone."""
    if history.ahead is None:
        return {}
    return {"async": history.ahead, "staleness": dict(sorted(history.staleness.items()))}


def _share(life: WorkerLife, history: RunHistory) -> int | None:
    """Parts of a step that the worker computes; None where it is in no round."""
    round = history.round
    if round is None or life.worker not in round.workers or not round.shares:
        return None
    return round.shares[round.workers.index(life.worker)]


def error_of(history: RunHistory, run_dir: Path) -> BrimError | None:
    """Return why a run that has ended did not end well; None where it is done or suspended.

    >>> error_of(RunHistory(), Path("runs/a"))
    EnvironmentFault('the agent of runs/a is gone, and its master and workers ended with it')
    """
    failed = history.failed
    if failed is None:
        if history.ended is None:
            return EnvironmentFault(
                f"the agent of {run_dir} is gone, and its master and workers ended with it"
            )
        message = f"{run_dir} failed: brim logs {run_dir} may tell why"
        return EnvironmentFault(message) if history.ended.summary.get("exit") == "failed" else None
    match failed.who:
        case "user":
            return UserCodeError(failed.trace or failed.message)
        case "spec":
            return spec_error_in(failed.message) or BrimError(failed.message)
        case "environment":
            return EnvironmentFault(failed.message)
        case "internal":
            return InternalError(failed.message)


def spec_error_in(text: str) -> SpecError | None:
    """The SpecError whose message a text is; None for any other.

    >>> spec_error_in("--device: got 'cuda', need a GPU\\n  hint: --device cpu")
    SpecError('--device', "'cuda'", 'a GPU', '--device cpu')
    """
    parts = _FOUR_PARTS.fullmatch(text)
    if parts is None:
        return None
    field, actual, need, hint = parts.groups("")
    return SpecError(field, got=actual, need=need, hint=hint)


def write_report(history: RunHistory, run_dir: Path) -> Path:
    """Write `report.html` of a run that has begun; returns its path.

    Raises:
        EnvironmentFault: it cannot be drawn or written here.
    """
    from brim.storage.files import write_whole

    path = run_dir / "report.html"
    try:
        from brim.report.run import render_report

        write_whole(path, render_report(history).encode())
    except (ImportError, OSError) as error:
        raise EnvironmentFault(f"no report was written ({error})") from error
    return path
