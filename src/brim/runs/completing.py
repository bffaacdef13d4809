"""Completions for a shell: files, runs, jobs of a scheduler, and the workers of a run.

Looks at directories alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from brim.client import jobs_dir
from brim.runs.directories import LATEST, RUNS, find_run, holds_run


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The files that the shell itself finds."""
    return [CompletionItem(incomplete, type="file")]


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs of the scheduler that `--state` or the environment names, the newest first."""
    return _beginning(incomplete, _newest_first(jobs_dir(ctx.params.get("state"))))


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names under `runs`, jobs, and, where it looks like a path, files."""
    if "/" in incomplete:
        return [CompletionItem(incomplete, type="dir")]
    paths = [path for path in _newest_first(RUNS) if holds_run(RUNS / path)]
    return _beginning(incomplete, [*paths, *_newest_first(jobs_dir(ctx.params.get("state")))])


def workers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The workers of the run that was named, or of the latest."""
    run_dir = find_run(ctx.params.get("run"), state=ctx.params.get("state"))
    return _beginning(incomplete, sorted(path.stem for path in (run_dir / "logs").glob("*.log")))


def _newest_first(folder: Path) -> list[str]:
    """The directories in it; `latest` leads."""
    found = [path for path in folder.glob("*") if path.is_dir()]
    newest = sorted(
        found, key=lambda path: (path.name == LATEST, path.stat().st_mtime), reverse=True
    )
    return [path.name for path in newest]


def _beginning(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]
