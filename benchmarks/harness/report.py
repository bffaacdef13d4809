"""Figures and how they are told: medians with their spread, tables, and a dated report that names
its hardware and versions.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = "BENCHMARK_REPORTS"  # a folder for reports, instead of those of the benchmarks


def ms(values: Sequence[float]) -> str:
    """Median (minimum to maximum) of seconds, in milliseconds.

    >>> ms([0.010, 0.012, 0.030])
    '12.0 (10.0–30.0)'
    """
    return spread([1000 * value for value in values])


def seconds(values: Sequence[float]) -> str:
    """Median (minimum to maximum) of seconds.

    >>> seconds([3.0, 1.0])
    '2.00 (1.00–3.00)'
    """
    return spread(values, digits=2)


def spread(values: Sequence[float], *, digits: int = 1) -> str:
    if not values:
        return "–"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def interval(values: Sequence[float], *, draws: int = 2000) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, by bootstrap: the values are drawn again and
    again.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[round(0.025 * (draws - 1))], medians[round(0.975 * (draws - 1))]


def ratio(peer: Sequence[float], own_seconds: Sequence[float]) -> str:
    """How many times less we need than the peer, by medians.

    >>> ratio([4.0], [2.0, 2.5])
    '1.8'
    """
    if not peer or not own_seconds:
        return "–"
    times = statistics.median(peer) / statistics.median(own_seconds)
    return f"{times:.0f}" if times >= 10 else f"{times:.1f}" if times >= 1.5 else f"{times:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table whose columns are aligned, so that it reads well on a terminal too."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def as_json(content: Any, *, depth: int = 0) -> str:
    """JSON that people can read and compare: a name on each line, and a series of numbers wrapped
    like a text.

    >>> print(as_json({"runs": [{"speed": [[0.5, 1], [1.5, 2]]}], 0: [], "none": []}))
    {
     "runs": [
      {
       "speed": [[0.5, 1], [1.5, 2]]
      }
     ],
     "0": [],
     "none": []
    }
    """
    indent, inner_indent = " " * depth, " " * (depth + 1)
    if not isinstance(content, dict | list) or not content or _is_series(content):
        line = json.dumps(content)
        return (
            "\n".join(textwrap.wrap(line, 110, subsequent_indent=inner_indent))
            if _is_series(content)
            else line
        )
    if isinstance(content, dict):
        parts = [
            f"{json.dumps(str(name))}: {as_json(value, depth=depth + 1)}"
            for name, value in content.items()
        ]
    else:
        parts = [as_json(item, depth=depth + 1) for item in content]
    opens, closes = "{}" if isinstance(content, dict) else "[]"
    return f"{opens}\n{inner_indent}" + f",\n{inner_indent}".join(parts) + f"\n{indent}{closes}"


def _is_series(content: Any) -> bool:
    """Whether these are numbers, however nested."""
    if isinstance(content, list):
        return all(map(_is_series, content))
    return content is None or isinstance(content, int | float)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _commit() -> str:
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return found.stdout.strip() or "unknown"


def facts() -> dict[str, Any]:
    """The conditions of the figures: only figures of equal conditions can be compared."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("brim", "torch", "numpy")},
        "commit": _commit(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


class Report:
    """A report under way: `say` prints progress, `add` collects sections, `write` makes the files.

    Args:
        folder: of the benchmark.
        title: of the report.
        seed: of all chance.
    """

    def __init__(self, folder: Path, title: str, *, seed: int) -> None:
        self._folder, self._title = Path(os.environ.get(FOLDER, folder)), title
        self._facts = {**facts(), "seed": seed}
        self._began = datetime.datetime.now(datetime.UTC)
        self._sections: list[str] = []
        self._failures: list[str] = []

    def say(self, text: str) -> None:
        passed = (datetime.datetime.now(datetime.UTC) - self._began).total_seconds()
        print(f"[{passed:5.0f} s] {text}", file=sys.stderr, flush=True)

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it, once more where it fails: an hour's figures are not lost to one run.

        The report tells.
        """
        try:
            return function(*arguments)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.say(f"failed, and is done again: {error}")
            self._failures.append(f"{function.__name__}: {error}".replace(sys.executable, "python"))
            return function(*arguments)

    def add(self, section: str) -> None:
        """A piece of Markdown: printed now, written later."""
        print(section + "\n", flush=True)
        self._sections.append(section)

    def write(self, data: dict[str, Any], figure: Any = None, *, name: str = "") -> Path:
        """Write `report.md`, `.json` and, where there is a matplotlib figure, `.png`.

        Older files are replaced: they are in the history of the repository.

        Args:
            name: of the part that this is about, where a folder has several reports.
        """
        stem = f"report-{name}" if name else "report"
        passed = (datetime.datetime.now(datetime.UTC) - self._began).total_seconds()
        facts = self._facts
        made_on = (
            f"{self._began:%Y-%m-%d %H:%M} UTC, {passed / 60:.1f} minutes. {facts['processor']}, "
            f"{facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}; "
            f"Python {facts['python']}, "
            + ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
            + f" (commit {facts['commit']}); seed {facts['seed']}; "
            f"load average at the start {facts['load_at_start']}."
        )
        sections = [f"# {self._title}", made_on, *self._sections]
        if self._failures:
            sections.append(
                "## Runs that failed and were done again\n\n- " + "\n- ".join(self._failures)
            )
        if figure is not None:
            figure.savefig(self._folder / f"{stem}.png", dpi=120, bbox_inches="tight")
            sections.append(f"![{self._title}]({stem}.png)")
        sections.append("How it was measured, and what it does not show: [README](README.md).")
        (self._folder / f"{stem}.md").write_text("\n\n".join(sections) + "\n")
        content = {"title": self._title, "made_on": facts, "seconds": passed, **data}
        (self._folder / f"{stem}.json").write_text(as_json(content) + "\n")
        self.say(
            f"wrote {self._folder / stem}.md, .json" + (", .png" if figure is not None else "")
        )
        return self._folder / f"{stem}.md"
