"""The report of many trials: a table by kind of fault, and a dated page with seeds and a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brim.telemetry.history import milliseconds
from brim_lab.chaos.results import Job, Result

HEAD = ("fault", "performed", "median pause", "longest pause")


def _pauses(results: Sequence[Result]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for strike in (strike for result in results for strike in result.strikes):
        found.setdefault(strike.kind, []).append(-1.0 if strike.pause is None else strike.pause)
    return dict(sorted(found.items()))


def by_kind(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows under `HEAD`, one for each kind of fault.

    They say how often it was performed, and how long nothing was committed after it.
    """
    rows: list[tuple[str, ...]] = []
    for kind, all_pauses in _pauses(results).items():
        pauses = [pause for pause in all_pauses if pause >= 0]
        times = (
            (milliseconds(statistics.median(pauses)), milliseconds(max(pauses)))
            if pauses
            else ("–", "–")
        )
        rows.append((str(kind), str(len(all_pauses)), *times))
    return rows


def as_plain(job: Job, results: Sequence[Result]) -> dict[str, Any]:
    """The object that `brim chaos --json` prints."""
    return {
        "file": job.file,
        "runs": len(results),
        "broken": sum(bool(result.broken) for result in results),
        "trials": [
            {
                "seed": result.trial.seed,
                **result.trial.setting,
                "faults": result.trial.schedule,
                "performed": [
                    {"fault": strike.text, "pause": strike.pause} for strike in result.strikes
                ],
                "lives": result.lives,
                "seconds": round(result.seconds, 2),
                "broken": list(result.broken),
                **({"still_eager": result.still_eager} if result.still_eager else {}),
                **({"requests": result.requests, "tries": result.tries} if result.tries else {}),
                "repeat": result.trial.command(job),
            }
            for result in results
        ],
    }


def markdown(job: Job, results: Sequence[Result]) -> str:
    """The sections of a report: the claim, the table, the broken promises, and every seed."""
    broken = [result for result in results if result.broken]
    seconds = [result.seconds for result in results]
    faults = sum(len(result.strikes) for result in results)
    requests, tries = (
        sum(getattr(result, name) for result in results) for name in ("requests", "tries")
    )
    about_requests = f" Services answered {requests:,} requests in {tries:,} tries." * bool(tries)
    lines = [
        f"{len(results)} runs with {faults} faults performed; in {len(broken)} of them a promise "
        "was broken. "
        f"A run took {statistics.median(seconds):.1f} s ({min(seconds):.1f}–{max(seconds):.1f}); "
        f"{sum(result.lives > 1 for result in results)} of them had more than one life."
        f"{about_requests}",
        "",
        "*Pause*: the longest time without a commit that begins between a fault and the next one. "
        "It has the "
        "faults' own length in it (a stopped worker, a cut), and the start of a new life where a "
        "run was resumed.",
        "",
        _row(HEAD),
        _row("---" for _ in HEAD),
        *map(_row, by_kind(results)),
    ]
    for result in broken:
        lines += [
            "",
            f"### Broken: seed {result.trial.seed}",
            "",
            f"`{result.trial.command(job)}`",
            "",
        ]
        lines += [f"- {problem}" for problem in result.broken]
    names = results[0].trial.setting if results else {}
    lines += [
        "",
        "## Every run",
        "",
        _row(("seed", *names, "faults", "s")),
        _row("---" for _ in range(len(names) + 3)),
    ]
    for trial_result in results:
        cells = (
            trial_result.trial.seed,
            *trial_result.trial.setting.values(),
            trial_result.trial.schedule,
            f"{trial_result.seconds:.1f}",
        )
        lines.append(_row(map(str, cells)))
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def figure(results: Sequence[Result]) -> Any:
    """Every pause, by kind of fault, on a logarithmic axis."""
    from matplotlib.figure import Figure

    pauses = {
        kind: [p for p in all_pauses if p > 0] for kind, all_pauses in _pauses(results).items()
    }
    drawing = Figure(figsize=(8, 0.4 * len(pauses) + 1.2))
    axis = drawing.subplots()
    for place, times in enumerate(pauses.values()):
        axis.plot(times, [place] * len(times), "|", markersize=12, alpha=0.6)
        if times:
            axis.plot([statistics.median(times)], [place], "o", color="black", markersize=4)
    axis.set_yticks(range(len(pauses)), [str(kind) for kind in pauses])
    axis.set_ylim(len(pauses) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.set_xlabel("longest time without a commit after the fault, seconds (dot: median)")
    return drawing


def write_report(
    folder: Path, stem: str, job: Job, results: Sequence[Result], *, heading: str
) -> Path:
    """Write `STEM.md`, `STEM.json` and `STEM.png` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_text(json.dumps(as_plain(job, results), indent=1) + "\n")
    figure(results).savefig(folder / f"{stem}.png", dpi=120, bbox_inches="tight")
    path = folder / f"{stem}.md"
    path.write_text(
        f"{heading}\n\n{markdown(job, results)}\n\n![Pauses by kind of fault]({stem}.png)\n"
    )
    return path
