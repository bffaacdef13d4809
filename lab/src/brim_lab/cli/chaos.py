"""`brim chaos`: runs a file many times under random faults, and checks every promise after each."""

from __future__ import annotations

import contextlib
import enum
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar

import click

from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED
from brim.domain.options import whole
from brim.errors import SpecError, did_you_mean
from brim.host.terminal import console
from brim.runs import completing
from brim.runs.options import JSON, job_option, job_options, option, parse_parameters
from brim.runs.training_file import check_training_file
from brim.runs.values import Value

if TYPE_CHECKING:
    from brim_lab.chaos.deeds import Deed
    from brim_lab.chaos.results import Calm, Job, Result, Trials

    Ready = tuple[
        Trials, Callable[[Path], Result]
    ]  # a trial, and what performs it in a new directory


K = TypeVar("K", bound=enum.StrEnum)

# Of the options of `brim train`, those that trials share; the timeout is short, for so are the
# runs.
_SHARED = {
    "epochs": 12,
    "global_batch_size": 128,
    "checkpoint_every": "20",
    "heartbeat_timeout": "1s",
}


@click.command()
@click.argument("file", metavar="FILE", shell_complete=completing.files)
@option(
    "--runs",
    type=Value(whole(minimum=1)),
    default=20,
    show_default=True,
    help="Do this many runs. Each has a seed of its own.",
)
@job_option(
    "seed", default=1, help="Give the first run this seed, and each further run the next number."
)
@job_options(parameters=None, workers="1:4", servers=0, capture=False, **_SHARED)
@JSON
@option(
    "--faults",
    metavar="TEXT",
    default="",
    help="Use these faults instead of random ones: kill master at step 40.",
)
@option(
    "--hosts",
    type=click.Choice(["1", "2", "3", "4"]),
    default="1",
    show_default=True,
    help="Run the job on this many hosts, each made of namespaces.",
)
@option(
    "--kinds",
    metavar="KIND,…",
    default="",
    help="Draw faults of these kinds only. [default: all that this machine allows]",
)
@option(
    "--cluster",
    is_flag=True,
    help="Break a scheduler and a few jobs, on as many devices as the most of --workers.",
)
@option(
    "--service",
    is_flag=True,
    help="Run an online service beside the jobs of --cluster, and break that as well.",
)
@option(
    "--nodes",
    type=Value(whole(minimum=1)),
    help="Give the cluster this many nodes. [default: as many as --faults names, else 1 to 3, "
    "drawn from the seed]",
)
@option(
    "--deadline",
    type=Value(whole(minimum=1)),
    default=60,
    show_default=True,
    help="Give each run this many seconds to end.",
)
@option(
    "--report",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write a dated report to this directory.",
)
def chaos(file: str, **values: Any) -> int:
    """Run FILE, a short job, under random faults, and check every promise after each run.

    \b
    brim chaos job.py --runs 200 --seed 1
    brim chaos job.py --seed 17 --runs 1             (that run again)
    brim chaos job.py --hosts 2 --kinds cut,delay,kill
    brim chaos job.py --faults "kill everything at step 40"
    brim chaos job.py --cluster                      (a scheduler with a few such jobs)
    brim chaos job.py --cluster --service            (and an online service beside them)

    The first run has the seed --seed, and each further run the next number. The seed decides the
    number of workers, within --workers, and the faults. Each run must end with the weights of an
    undisturbed run, with an exact ledger, and with nothing left behind. With --capture, steps of
    the disturbed runs are replayed, and those of the undisturbed one are not; no run that replays
    any is a failure.

    Exit code 0 if every promise held, else 1.
    """
    from brim.host.clock import SystemClock
    from brim.runs import directories as runs
    from brim_lab.chaos.report import as_plain
    from brim_lab.chaos.results import why_nothing_replayed

    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: nothing of a trial may stay behind
    check_training_file(Path(file))
    job = _job(file, values)
    disturbed = replace(job, options=(*job.options, "--capture")) if values["capture"] else job
    prepare = _cluster_trials if values["cluster"] else _run_trials
    trials = prepare(job, disturbed, values)
    folder = runs.new_run_dir("chaos", SystemClock().wall()).resolve()
    try:
        results = _run_all(disturbed, trials(folder / "calm"), folder)
    finally:
        shutil.rmtree(folder / "calm", ignore_errors=True)
        with contextlib.suppress(OSError):  # it keeps the first run that broke a promise
            folder.rmdir()
    click.echo(json.dumps(as_plain(disturbed, results)) if values["as_json"] else _table(results))
    if values["report"]:
        click.echo(_report(Path(values["report"]), disturbed, results), err=True)
    reason = why_nothing_replayed(results)
    if reason:
        click.echo(f"--capture: nothing was replayed in {len(results)} runs: {reason}", err=True)
    return EXIT_FAILED if reason or any(result.broken for result in results) else EXIT_DONE


def _job(file: str, values: dict[str, Any]) -> Job:
    from brim.domain.quantities import format_duration
    from brim_lab.chaos.results import Job

    words = [
        f"--set={name}={value}" for name, value in parse_parameters(values["parameters"]).items()
    ]
    for name in (
        option_name for option_name in _SHARED if option_name != "epochs" or not values["cluster"]
    ):
        value = format_duration(values[name]) if name == "heartbeat_timeout" else str(values[name])
        words += [f"--{name.replace('_', '-')}", value]
    return Job(file=file, options=tuple(words))


def _kinds(
    text: str, kind_type: type[K], *, hosts: int = 1, requested: Sequence[K] = ()
) -> list[K]:
    """The kinds to draw from, in a fixed order.

    Raises:
        SpecError: a kind that there is not, or one named or asked for that this machine cannot
            perform.
    """
    from brim_lab.chaos.trial import kinds_possible_here

    by_name = {kind.replace(" ", "-"): kind for kind in kind_type}
    named = [
        by_name.get(word.strip()) or _unknown(word, by_name)
        for word in text.split(",")
        if word.strip()
    ]
    reasons: dict[Any, str] = dict.fromkeys(kind_type, "")
    reasons |= {
        kind: reason
        for kind, reason in kinds_possible_here(hosts).items()
        if isinstance(kind, kind_type)
    }
    for field, kinds in (("--kinds", named), ("--faults", requested)):
        for kind in kinds:
            if reasons[kind]:
                need = f"a fault that can be performed: it {reasons[kind]}"
                raise SpecError(field, got=repr(str(kind)), need=need)
    left_out = {
        reason: [k for k in kind_type if reasons[k] == reason]
        for reason in set(reasons.values()) - {""}
    }
    if not named and not requested:
        for reason, names in left_out.items():
            click.echo(f"left out: {', '.join(names)} ({reason})", err=True)
    return [kind for kind in kind_type if not reasons[kind] and (kind in named or not named)]


def _unknown(word: str, names: Iterable[str]) -> Never:
    raise SpecError(
        "--kinds", got=repr(word), need="kinds of faults", hint=did_you_mean(word, names)
    )


def _seeds(values: dict[str, Any]) -> range:
    first: int = values["seed"]
    return range(first, first + (1 if values["faults"] else values["runs"]))


def _run_trials(
    job: Job, disturbed: Job, values: dict[str, Any]
) -> Callable[[Path], Iterator[Ready]]:
    """Trials of a run by itself; where the calm one is to be, they follow from it."""
    from brim.domain.faults import FaultKind, describe, parse_faults
    from brim_lab.chaos.random_faults import LEAST_TO_MOVE, random_faults, random_workers
    from brim_lab.chaos.trial import Trial, calm_run, run_trial

    if values["nodes"]:
        raise SpecError(
            "--nodes", got=str(values["nodes"]), need="--cluster beside it: a run has hosts"
        )
    if values["service"]:
        raise SpecError("--service", got="it", need="--cluster beside it: a run has no service")
    hosts, limits, deadline = int(values["hosts"]), values["workers"], values["deadline"]
    servers = values["servers"]
    explicit_faults = parse_faults(values["faults"])
    kinds = _kinds(
        values["kinds"], FaultKind, hosts=hosts, requested=[fault.kind for fault in explicit_faults]
    )
    for fault in explicit_faults:
        takes_master = fault.kind is FaultKind.KILL_HOST and fault.host == 1
        minimum = LEAST_TO_MOVE if takes_master else fault.host
        if hosts < minimum:
            need = f"a fault that can be performed: it needs --hosts {minimum}"
            raise SpecError("--faults", got=repr(describe(fault)), need=need)

    def trials(folder: Path) -> Iterator[Ready]:
        calm = calm_run(job, folder, deadline=deadline)
        _tell_calm(calm)
        for seed in _seeds(values):
            workers = limits if explicit_faults else random_workers(seed, limits)
            faults = explicit_faults or random_faults(
                seed,
                kinds=kinds,
                steps=calm.steps,
                workers=workers.maximum,
                servers=servers,
                hosts=hosts,
            )
            trial = Trial(seed=seed, workers=workers, servers=servers, hosts=hosts, faults=faults)
            yield trial, partial(run_trial, disturbed, trial, calm, deadline=deadline)

    return trials


def _cluster_trials(
    job: Job, disturbed: Job, values: dict[str, Any]
) -> Callable[[Path], Iterator[Ready]]:
    """Trials of a scheduler with a few jobs, short ones and some of twice as many epochs."""
    from brim.scheduler.fronts import haproxy_path
    from brim_lab.chaos.cluster import ClusterTrial, run_cluster_trial
    from brim_lab.chaos.deeds import SUBMITS, DeedKind, parse_deeds
    from brim_lab.chaos.random_deeds import beside_service, random_deeds, random_nodes
    from brim_lab.chaos.trial import calm_run

    if values["servers"]:
        need = "a run without --cluster, whose jobs have none"
        raise SpecError(
            "--ps", got=str(values["servers"]), need=need, hint="leave out --ps or --cluster"
        )
    if values["hosts"] != "1":
        raise SpecError(
            "--hosts", got=values["hosts"], need="one host", hint="leave out --hosts or --cluster"
        )
    limits, epochs, deadline = values["workers"], values["epochs"], values["deadline"]
    explicit_deeds = parse_deeds(values["faults"])
    if values["service"] or any(deed.kind is DeedKind.SERVE for deed in explicit_deeds):
        haproxy_path()
    number = _nodes(values["nodes"], explicit_deeds, limits.maximum)
    kinds = [kind for kind in _kinds(values["kinds"], DeedKind) if kind not in SUBMITS]
    lengths = sorted(
        {deed.epochs for deed in explicit_deeds if deed.epochs} or {epochs, 2 * epochs}
    )

    def trials(folder: Path) -> Iterator[Ready]:
        calm = {}
        for length in lengths:
            of_length = replace(job, options=(*job.options, "--epochs", str(length)))
            calm[length] = calm_run(of_length, folder / str(length), deadline=deadline)
            _tell_calm(calm[length])
        for seed in _seeds(values):
            nodes = number or random_nodes(seed, devices=limits.maximum)
            deeds = explicit_deeds or random_deeds(
                seed, kinds=kinds, epochs=epochs, workers=limits, nodes=nodes
            )
            if values["service"] and not explicit_deeds:
                deeds = beside_service(deeds, seed, kinds=kinds, workers=limits)
            trial = ClusterTrial(seed=seed, workers=limits, nodes=nodes, deeds=deeds)
            yield trial, partial(run_cluster_trial, disturbed, trial, calm, deadline=deadline)

    return trials


def _nodes(requested: int | None, explicit_deeds: Sequence[Deed], devices: int) -> int:
    """The nodes of a cluster; 0 where they are drawn.

    Raises:
        SpecError: they cannot have a device each, or do not have one that is named.
    """
    named = max((deed.node for deed in explicit_deeds), default=0)
    number = requested or max(named, min(1, len(explicit_deeds)))
    if not named <= number <= devices:
        need = f"{max(1, named)} to {devices}: every node that --faults names, a device for each"
        raise SpecError("--nodes", got=str(number), need=need)
    return number


def _tell_calm(calm: Calm) -> None:
    click.echo(f"undisturbed: {calm.steps} steps, weights {calm.digest[:12]}", err=True)


def _run_all(job: Job, ready: Iterator[Ready], folder: Path) -> list[Result]:
    results: list[Result] = []
    is_kept = False
    trials = list(ready)
    with _progress(len(trials)) as advance:
        for trial, perform in trials:
            directory = folder / f"seed-{trial.seed}"
            result = perform(directory)
            results.append(result)
            advance(_line(job, result, "" if is_kept else str(directory)))
            if result.broken and is_kept:
                shutil.rmtree(directory)
            is_kept = is_kept or bool(result.broken)
    return results


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Open a bar below the messages where stderr is a terminal; else tell each run in a line."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(text, err=True)
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        *Progress.get_default_columns()[:-1],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr, highlight=False),
    ) as bar:
        task = bar.add_task("runs", total=total)

        def advance(text: str) -> None:
            bar.console.print(text, markup=False, soft_wrap=True)
            bar.advance(task)

        yield advance


def _line(job: Job, result: Result, note: str) -> str:
    trial = result.trial
    setting = ", ".join(
        f"{value} {name}" for name, value in trial.setting.items() if (name, value) != ("hosts", 1)
    )
    description = f"seed {trial.seed}: {setting}, {trial.schedule or 'no faults'}"
    lives = f", {result.lives} lives" if result.lives > 1 else ""
    eager = ", nothing replayed" if result.still_eager else ""
    requests = f", {result.requests} answers in {result.tries} tries" if result.tries else ""
    if not result.broken:
        return f"{description}: held ({result.seconds:.1f} s{lives}{requests}{eager})"
    lines = [
        f"{description}: BROKEN ({result.seconds:.1f} s{lives}{requests})",
        *(f"  {problem}" for problem in result.broken),
    ]
    lines += [f"  repeat: {trial.command(job)}"]
    return "\n".join([*lines, f"  kept: {note}"] if note else lines)


def _table(results: list[Result]) -> str:
    from brim_lab.chaos.report import HEAD, by_kind

    rows = [HEAD, *by_kind(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    broken = sum(bool(result.broken) for result in results)
    held_text = (
        f"all promises held in {len(results)} runs"
        if not broken
        else f"promises broken in {broken} of {len(results)} runs"
    )
    return "\n".join([*lines, held_text])


def _report(folder: Path, job: Job, results: list[Result]) -> Path:
    from brim.host.clock import SystemClock
    from brim_lab.chaos.report import write_report

    day = datetime.fromtimestamp(SystemClock().wall()).strftime("%Y-%m-%d")
    return write_report(
        folder, f"chaos-{day}", job, results, heading=f"# {len(results)} runs under chaos, {day}"
    )
