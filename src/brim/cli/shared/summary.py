"""The end of a run in a few lines for people; the same facts as the JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.domain.quantities import counted
from brim.telemetry.history import milliseconds


def render_summary(summary: Mapping[str, Any], *, report: str = "", resume: str = "") -> str:
    """The summary as aligned lines, without unknown values.

    Args:
        summary: the run's summary, docs/reference/summary.md.
        report: where the report is, if it was written.
        resume: the command that goes on with the run, where that makes sense.
    """
    seconds = summary.get("seconds") or {}
    rows = {
        str(summary.get("exit", "ended")): str(summary.get("run", "")),
        "checkpoint": str(summary.get("checkpoint", "")),
        "rows of": str(summary.get("input") or summary.get("split") or ""),
        "metrics": ", ".join(
            f"{k} {_number(v)}" for k, v in (summary.get("metrics") or {}).items()
        ),
        "steps": _steps(summary),
        "workers": ", ".join(map(str, summary.get("world_sizes") or [])),
        "servers": _servers(summary.get("servers") or []),
        "memory": _memory(summary.get("out_of_memory") or 0),
        "speed": _speed(summary, seconds),
        "weights": f"sha256 {summary['weights_sha256']}" if summary.get("weights_sha256") else "",
        "output": str(summary.get("output", "")),
        "report": report,
        "resume": resume,
    }
    width = max(len(name) for name, text in rows.items() if text)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items() if text)


def _servers(numbers: list[int]) -> str:
    """Return the numbers of servers in words; empty for a run that never had any."""
    return ", ".join(map(str, numbers)) if any(numbers) else ""


def _steps(summary: Mapping[str, Any]) -> str:
    text = f"{summary.get('steps', 0):,}"
    if summary.get("samples_per_epoch"):
        per = "" if summary.get("checkpoint") else " an epoch"
        text += f" ({counted(summary['samples_per_epoch'], 'sample')}{per})"
    return f"{text}, {summary.get('steps_redone', 0)} redone"


def _memory(lost: int) -> str:
    return f"ran out for {counted(lost, 'worker')}" if lost else ""


def _speed(summary: Mapping[str, Any], seconds: Mapping[str, Any]) -> str:
    parts = []
    if summary.get("samples_per_second"):
        parts.append(f"{summary['samples_per_second']:,.0f} samples/s")
    for name, words in (
        ("total", "in all"),
        ("to_first_step", "to the first step"),
        ("re_forming", "re-forming"),
    ):
        if seconds.get(name) is not None:
            parts.append(f"{milliseconds(seconds[name])} {words}")
    return ", ".join(parts)


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
