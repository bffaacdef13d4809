"""`brim chaos`: run a file under random faults, again and again, and check every promise after each run."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.options import option, parse_parameters, some_job_options, whole
from brim.cli.training_file import check_training_file
from brim.cli.usage import EXIT_DONE, EXIT_FAILED
from brim.domain.faults import Fault, FaultKind, describe
from brim.domain.job import WorkerRange
from brim.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from brim.chaos.trial import Calm, Job, Result, Trial

__all__ = ["chaos"]

# Of the options of `brim train`, those that trials share; the timeout is short, for so are the runs.
_SHARED = {
    "epochs": 12,
    "global_batch_size": 128,
    "checkpoint_every": "20",
    "heartbeat_timeout": "1s",
}


@click.command()
@click.argument("file", metavar="FILE")
@option("--runs", type=whole(least=1), default=20, show_default=True, help="How many, with one seed each.")
@some_job_options(parameters=None, workers="1:4", **_SHARED, seed=1, faults="", as_json=None)
@option(
    "--hosts", type=click.Choice(["1", "2"]), default="1", show_default=True, help="2: network namespaces."
)
@option(
    "--kinds",
    metavar="KIND,…",
    default="",
    help="Faults to draw from. [default: all that this machine allows]",
)
@option("--deadline", type=whole(least=1), default=60, show_default=True, help="Seconds that a run may take.")
@option("--report", type=click.Path(file_okay=False), metavar="DIR", help="Write a dated report there.")
def chaos(file: str, **values: Any) -> int:
    """Run FILE, a short job, under random faults, and check every promise after each run.

    \b
    brim chaos job.py --runs 200 --seed 1
    brim chaos job.py --seed 17 --runs 1             (that run again)
    brim chaos job.py --hosts 2 --kinds cut,delay,kill
    brim chaos job.py --faults "kill everything at step 40"

    Each run draws its workers from --workers and its faults from its seed, --seed and those after it. It must end
    with the weights of an undisturbed run, with an exact ledger, and with nothing left behind.

    Exit code 0 if every promise held, else 1.
    """
    from brim.chaos.report import as_plain
    from brim.chaos.trial import calm_run
    from brim.cli import runs
    from brim.clock import SystemClock

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing of a trial may stay behind
    check_training_file(Path(file))
    job = _job(file, values)
    kinds = _kinds(values["kinds"], hosts=int(values["hosts"]), faults=values["faults"])
    folder = runs.new_run_dir("chaos", SystemClock().wall()).resolve()
    try:
        calm = calm_run(job, folder / "calm", deadline=values["deadline"])
        click.echo(f"undisturbed: {calm.steps} steps, weights {calm.digest[:12]}", err=True)
        trials = list(_trials(values, kinds, calm))
        results = _run_all(job, trials, calm, folder, deadline=values["deadline"])
    finally:
        shutil.rmtree(folder / "calm", ignore_errors=True)
        with contextlib.suppress(OSError):  # it keeps the first run that broke a promise
            folder.rmdir()
    click.echo(json.dumps(as_plain(job, results)) if values["as_json"] else _table(results))
    if values["report"]:
        click.echo(_report(Path(values["report"]), job, results), err=True)
    return EXIT_FAILED if any(result.broken for result in results) else EXIT_DONE


def _job(file: str, values: dict[str, Any]) -> Job:
    from brim.chaos.trial import Job
    from brim.domain.quantities import format_duration

    words = [f"--set={name}={value}" for name, value in parse_parameters(values["parameters"]).items()]
    for name in _SHARED:
        value = format_duration(values[name]) if name == "heartbeat_timeout" else str(values[name])
        words += [f"--{name.replace('_', '-')}", value]
    return Job(file=file, options=tuple(words))


def _kinds(text: str, *, hosts: int, faults: tuple[Fault, ...]) -> list[FaultKind]:
    """The kinds to draw from, in a fixed order.

    Raises:
        SpecError: a kind that there is not, or one named that this machine cannot perform.
    """
    from brim.chaos.trial import kinds_possible_here

    known = {kind.replace(" ", "-"): kind for kind in FaultKind}
    named = [known.get(word.strip()) or _unknown(word, known) for word in text.split(",") if word.strip()]
    reasons = kinds_possible_here(hosts)
    for field, asked in (("--kinds", named), ("--faults", [fault.kind for fault in faults])):
        for kind in asked:
            if reasons[kind]:
                raise SpecError(
                    field, got=repr(str(kind)), need=f"a fault that can be performed: it {reasons[kind]}"
                )
    left_out = {
        reason: [k for k in FaultKind if reasons[k] == reason] for reason in set(reasons.values()) - {""}
    }
    if not named and not faults:
        for reason, without in left_out.items():
            click.echo(f"left out: {', '.join(without)} ({reason})", err=True)
    return [kind for kind in FaultKind if not reasons[kind] and (kind in named or not named)]


def _unknown(word: str, known: Iterable[str]) -> FaultKind:
    raise SpecError("--kinds", got=repr(word), need="kinds of faults", hint=did_you_mean(word, known))


def _trials(values: dict[str, Any], kinds: list[FaultKind], calm: Calm) -> Iterator[Trial]:
    from brim.chaos.trial import Trial
    from brim.domain.random_faults import random_faults, random_workers

    hosts: int = int(values["hosts"])
    within: WorkerRange = values["workers"]
    for seed in range(values["seed"], values["seed"] + (1 if values["faults"] else values["runs"])):
        workers = within if values["faults"] else random_workers(seed, within)
        faults = values["faults"] or random_faults(
            seed, kinds=kinds, steps=calm.steps, workers=workers.maximum, hosts=hosts
        )
        yield Trial(seed=seed, workers=workers, hosts=hosts, faults=faults)


def _run_all(job: Job, trials: list[Trial], calm: Calm, folder: Path, *, deadline: float) -> list[Result]:
    from brim.chaos.trial import run_trial

    results: list[Result] = []
    kept = False
    with _progress(len(trials)) as advance:
        for trial in trials:
            directory = folder / f"seed-{trial.seed}"
            result = run_trial(job, trial, calm, directory, deadline=deadline)
            results.append(result)
            advance(_line(job, result, "" if kept else str(directory)))
            if result.broken and kept:
                shutil.rmtree(directory)
            kept = kept or bool(result.broken)
    return results


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Where stderr is a terminal, a bar below what is told; else a line for each run."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(text, err=True)
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        *Progress.get_default_columns()[:-1],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
    ) as bar:
        task = bar.add_task("runs", total=total)

        def advance(text: str) -> None:
            bar.console.print(text, markup=False, soft_wrap=True)
            bar.advance(task)

        yield advance


def _line(job: Job, result: Result, kept: str) -> str:
    trial = result.trial
    schedule = "; ".join(map(describe, trial.faults)) or "no faults"
    told = f"seed {trial.seed}: {trial.workers} workers, {schedule}"
    lives = f", {result.lives} lives" if result.lives > 1 else ""
    if not result.broken:
        return f"{told}: held ({result.seconds:.1f} s{lives})"
    lines = [f"{told}: BROKEN ({result.seconds:.1f} s{lives})", *(f"  {each}" for each in result.broken)]
    lines += [f"  repeat: {trial.command(job)}"]
    return "\n".join([*lines, f"  kept: {kept}"] if kept else lines)


def _table(results: list[Result]) -> str:
    from brim.chaos.report import HEAD, by_kind

    rows = [HEAD, *by_kind(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    broken = sum(bool(result.broken) for result in results)
    held = (
        f"all promises held in {len(results)} runs"
        if not broken
        else f"promises broken in {broken} of {len(results)} runs"
    )
    return "\n".join([*lines, held])


def _report(folder: Path, job: Job, results: list[Result]) -> Path:
    from brim.chaos.report import write_report
    from brim.clock import SystemClock

    day = datetime.fromtimestamp(SystemClock().wall()).strftime("%Y-%m-%d")
    return write_report(
        folder, f"chaos-{day}", job, results, heading=f"# {len(results)} runs under chaos, {day}"
    )
