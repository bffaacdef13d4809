"""`brim simulate`: real policies on real traces on a virtual clock."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from brim.cli.shared.open_group import OpenGroup
from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.cluster import Cluster
from brim.domain.course import Origin
from brim.domain.promising import PromiseAt
from brim.domain.quantities import counted, parse_duration
from brim.domain.resizing import OVERHEADS
from brim.domain.tenancy import Tenant
from brim.domain.usage import RecentUse, check_half_life
from brim.domain.workload import Job
from brim.errors import BrimError, SpecError, UserCodeError, did_you_mean
from brim.host.terminal import console
from brim.policies.quota import check_quota
from brim.runs.options import option
from brim.simulator.compare import (
    Result,
    ceilings,
    check_fit,
    check_policies,
    find_profiles,
    is_replica,
    known_policies,
    run_policy,
    summary,
)
from brim.simulator.courses import course_of
from brim.simulator.engine import Settings
from brim.simulator.files import write_decisions, write_jobs, write_summary
from brim.simulator.generate import ARRIVALS, Recipe, generate
from brim.simulator.happened import (
    AS_IT_HAPPENED,
    Scaling,
    as_it_happened,
    assumptions,
    cluster_of,
    jobs_of,
)
from brim.simulator.importers.formats import FORMATS, read_history
from brim.simulator.profiles import Profiles, read_profiles
from brim.simulator.run import Metrics, SimulatedRun, measure
from brim.simulator.sample import SAMPLE
from brim.simulator.traces import read_trace


class FiniteRange(click.FloatRange):
    """A range of numbers, to which neither `nan` nor `inf` belongs."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@click.group(cls=OpenGroup, prefix="simulate.", invoke_without_command=True)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Read the jobs from this trace, in ITP, Philly or generated format. [default: a sample]",
)
@click.option(
    "--from",
    "log",
    type=(click.Choice(list(FORMATS)), click.Path(path_type=Path)),
    metavar="FORMAT FILE",
    help="Read the jobs from a log of what happened, and compare with that. Formats: "
    f"{', '.join(FORMATS)}.",
)
@click.option(
    "--zone",
    help="With --from: read times that name no zone in this one, as Europe/Berlin. [default: UTC]",
)
@click.option(
    "--scaling",
    type=click.Choice([word.value for word in Scaling]),
    help="With --from: let jobs run on up to as many devices as they had, or on exactly as many. "
    "[default: linear]",
)
@click.option(
    "--cluster",
    help="Simulate a cluster of NODESxDEVICES, or SWITCHESxNODESxDEVICES. [default: 16x8; with "
    "--from: the cluster of the log]",
)
@click.option(
    "--policy",
    "policies",
    default="brim,elasticflow,edf",
    show_default=True,
    help="Run these policies, names or FILE.py:NAME, separated by commas.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Read throughput CSVs from this folder. [default: near the trace]",
)
@click.option(
    "--slot",
    type=click.FloatRange(min=0, max=86400),
    help="Decide at most once in this many seconds when jobs arrive, and when jobs end. "
    "[default: 0; 240 for :as-coded]",
)
@click.option(
    "--overheads",
    default="published",
    show_default=True,
    type=click.Choice(sorted(OVERHEADS)),
    help="Charge jobs these overheads when they start or change workers.",
)
@click.option(
    "--profile-error",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 0.9),
    help="Make each job's true speed differ from its profile by up to this part.",
)
@click.option(
    "--failures",
    default=0.0,
    show_default=True,
    type=FiniteRange(min=0),
    help="Let each worker fail every so many hours on average; 0: never.",
)
@click.option(
    "--stragglers",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Slow a job's node down with this probability at each change of its workers.",
)
@click.option(
    "--promise",
    default=PromiseAt.ARRIVAL.value,
    show_default=True,
    type=click.Choice([word.value for word in PromiseAt]),
    help="Promise deadlines on arrival, or once a job's speed is measured (policy brim).",
)
@click.option("--placement", is_flag=True, help="Place workers on devices and charge migrations.")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    help="Add a tenant: ID:guaranteed=8,exclusive=2,limit=16,weight=1,cohort=x. May be repeated.",
)
@option(
    "--usage-half-life",
    metavar="TIME",
    help="Lend devices first to tenants that have borrowed little lately: what was borrowed this "
    "long ago counts half. [default: only the present counts]",
)
@click.option("--seed", default=0, show_default=True, help="Seed everything that is random.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write jobs, decisions and figures to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def simulate(
    context: click.Context,
    trace: Path | None,
    log: tuple[str, Path] | None,
    zone: str | None,
    scaling: str | None,
    cluster: str | None,
    policies: str,
    profiles: Path | None,
    slot: float | None,
    overheads: str,
    profile_error: float,
    failures: float,
    stragglers: float,
    promise: str,
    placement: bool,
    tenants: tuple[str, ...],
    usage_half_life: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a trace under policies, and compare them with each other and with what is possible.

    \b
    brim simulate                                     (a sample that comes with brim)
    brim simulate --policy mine.py:shortest_first,brim
    brim simulate --trace 195job.csv --profiles profiles/a100 --cluster 16x8 --out out
    brim simulate --from sacct october.txt --out out
    """
    if context.invoked_subcommand is not None:
        return
    err = console(sys.stderr)
    names = [name.strip() for name in policies.split(",")]
    check_policies(names, slot)
    check_sources(trace, log, profiles, zone=zone, scaling=scaling)
    parsed_cluster = None if cluster is None else Cluster.parse(cluster)
    if log is not None:
        work = read_log(log, parsed_cluster, zone=zone, scaling=Scaling(scaling or "linear"))
        for sentence in work.assumed:
            err.print(f"assumed: {sentence}", style="dim", highlight=False, soft_wrap=True)
    else:
        work = read_work(trace, parsed_cluster, profiles, err)
    owners = read_tenants(tenants, work.cluster.devices)
    recent = _recent_use(usage_half_life, owners)
    has_options = any(
        (profile_error, failures, stragglers, placement, owners, overheads != "published")
    )
    replicas = [name for name in names if is_replica(name)]
    if has_options and replicas:
        err.print(
            f"{', '.join(replicas)}: replicas of published schedulers ignore overheads, faults and "
            "tenants"
        )
    check_fit(work.jobs, work.cluster.devices, option="--trace" if log is None else "--from")
    settings = Settings(
        overheads=OVERHEADS[overheads],
        seed=seed,
        profile_error=profile_error,
        failures=failures * 3600.0,
        stragglers=stragglers,
        promise=PromiseAt(promise),
        placed=placement,
        tenants=owners,
        record=out is not None,
        recent=recent,
    )
    results = run_all(names, work.jobs, work.cluster, settings=settings, slot=slot, err=err)
    ceiling = ceilings(work.jobs, work.cluster)
    found = summary(results, ceiling, happened=work.happened, assumed=work.assumed)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(results, ceiling, work)
    if out is not None:
        write_all(out, results, found, err, work=work, tenants=owners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The jobs to be simulated, and their cluster.

    Args:
        name: of its file.
        happened: the past, with which the policies are compared.
        assumed: sentences on all that was taken for granted.
    """

    name: str
    jobs: tuple[Job, ...]
    cluster: Cluster
    happened: SimulatedRun | None = None
    assumed: Sequence[str] = ()


def check_sources(
    trace: Path | None,
    log: tuple[str, Path] | None,
    profiles: Path | None,
    *,
    zone: str | None,
    scaling: str | None,
) -> None:
    """Refuse options that do not go together.

    Raises:
        SpecError: two sources of jobs, or an option of the other one.
    """
    if log is not None and trace is not None:
        raise SpecError("--from", got="--trace as well", need="one of the two")
    if log is not None and profiles is not None:
        hint = "leave out --profiles"
        raise SpecError(
            "--profiles", got=str(profiles), need="jobs with models: --trace", hint=hint
        )
    for name, value in (("--zone", zone), ("--scaling", scaling)):
        if log is None and value is not None:
            raise SpecError(name, got=value, need="--from FORMAT FILE, which it belongs to")


def read_log(
    log: tuple[str, Path], cluster: Cluster | None, *, zone: str | None, scaling: Scaling
) -> Work:
    """Read the jobs of a log, with their past.

    Args:
        log: its format and its file.
        cluster: None: as large as the log says.

    Raises:
        SpecError: the file is not in that format.
    """
    form, path = log
    history = read_history(form, path, zone=zone)
    jobs = jobs_of(history, scaling=scaling)
    hardware = cluster_of(history) if cluster is None else cluster
    return Work(
        name=path.name,
        jobs=jobs,
        cluster=hardware,
        happened=as_it_happened(history, jobs, devices=hardware.devices),
        assumed=assumptions(history, hardware, scaling=scaling, is_known=cluster is not None),
    )


def read_work(
    trace: Path | None, cluster: Cluster | None, profiles: Path | None, err: Console
) -> Work:
    """Read the jobs of a trace, or of the sample."""
    if trace is None:
        trace = SAMPLE / "trace.csv"
        err.print(f"no --trace: the sample that comes with brim, made up ({SAMPLE})", style="dim")
    jobs = load(trace, profiles, err)
    return Work(name=trace.name, jobs=jobs, cluster=cluster or Cluster.parse("16x8"))


_TENANT = "--tenant ID:guaranteed=8,exclusive=2,limit=16,weight=1,cohort=x"


def read_tenants(texts: tuple[str, ...], devices: int) -> tuple[Tenant, ...]:
    """Read `ctr:guaranteed=8,exclusive=2` and its like.

    Raises:
        SpecError: a word that is none of a tenant's, or more guaranteed than there is.
    """
    found = []
    for text in texts:
        name, _, rest = text.partition(":")
        words = dict(part.partition("=")[::2] for part in rest.split(",") if part)
        try:
            numbers: dict[str, Any] = {
                key: int(words.pop(key))
                for key in ("guaranteed", "exclusive", "limit")
                if key in words
            }
            weight = float(words.pop("weight", "1"))
        except ValueError as error:
            raise SpecError(
                "--tenant", got=f"{text!r} ({error})", need="whole numbers", hint=_TENANT
            ) from None
        cohort = words.pop("cohort", "default")
        if words:
            names = ("guaranteed", "exclusive", "limit", "weight", "cohort")
            odd = sorted(words)[0]
            raise SpecError(
                "--tenant", got=odd, need=" ".join(names), hint=did_you_mean(odd, names)
            )
        found.append(Tenant(id=name, cohort=cohort, weight=weight, **numbers))
    check_quota(found, devices)
    return tuple(found)


def _recent_use(text: str | None, owners: Sequence[Tenant]) -> RecentUse | None:
    """Read a half-life, with which nothing has been borrowed yet."""
    if text is None:
        return None
    option = "--usage-half-life"
    half_life = parse_duration(text, field=option)
    check_half_life(half_life, owners, field=option)
    return RecentUse(half_life=half_life)


def load(trace: Path, profiles: Path | None, err: Console) -> tuple[Job, ...]:
    """The jobs of `trace`, with the profiles given or found near it."""
    curves: Profiles | None
    if profiles is not None:
        curves = read_profiles(profiles)
    else:
        found_profiles = find_profiles(trace)
        curves = found_profiles[1] if found_profiles else None
        hint = (
            f"profiles: {found_profiles[0]}"
            if found_profiles
            else "no profiles: every job scales linearly up to its request"
        )
        err.print(hint, style="dim")
    return read_trace(trace, curves)


def run_all(
    names: list[str],
    jobs: tuple[Job, ...],
    cluster: Cluster,
    *,
    settings: Settings,
    slot: float | None,
    err: Console,
) -> list[Result]:
    """Every policy in turn, with a progress bar on stderr where that is a terminal."""
    bar = Progress(
        TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=err, transient=True, disable=not err.is_terminal,
    )  # fmt: skip
    results = []
    with bar:
        for name in names:
            task = bar.add_task(name, total=len(jobs))

            def tell(done: int, task: Any = task) -> None:
                bar.update(task, completed=done)

            progress: Callable[[int], None] | None = tell if err.is_terminal else None
            results.append(
                run_policy(name, jobs, cluster, settings=settings, slot=slot, progress=progress)
            )
            bar.update(task, completed=len(jobs))
    return results


def show(results: list[Result], ceiling: dict[str, float | None], work: Work) -> None:
    """The table on the terminal."""
    origin = "simulated" if work.happened is None else "simulated below the first row"
    title = f"{work.name} on {counted(work.cluster.devices, 'device')} ({origin})"
    table = Table(title=title, title_justify="left")
    limit = ceiling["per_job"]
    rows = [] if work.happened is None else [_cells(AS_IT_HAPPENED, measure(work.happened), limit)]
    for result in results:
        cells = _cells(result.policy, result.metrics, limit)
        rows.append(cells | {"CPU s": f"{result.cpu_seconds:.2f}"})
    for name in _COLUMNS[limit is None]:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for cells in rows:
        table.add_row(*(cells.get(name, "-") for name in _COLUMNS[limit is None]))
    screen = console(sys.stdout, width=None if sys.stdout.isatty() else 110)
    screen.print(table)
    bounds = [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in ceiling.items()
        if value is not None
    ]
    if bounds:
        screen.print("No policy can meet more than: " + ", ".join(bounds), highlight=False)


# of the table: where jobs have deadlines, and where none has one
_COLUMNS = (
    ("policy", "deadlines met", "of ceiling", "promised", "broken", "mean JCT h", "makespan h", "use", "CPU s"),
    ("policy", "mean wait h", "mean JCT h", "makespan h", "use", "CPU s"),
)  # fmt: skip


def _cells(policy: str, metrics: Metrics, limit: float | None) -> dict[str, str]:
    """The cells of a row by their columns; those without a value are left out."""
    cells = {
        "policy": policy,
        "promised": str(metrics.admitted),
        "broken": str(metrics.admitted_missed),
        "makespan h": f"{metrics.makespan_seconds / 3600:.1f}",
    }
    ratio = metrics.deadline_satisfactory_ratio
    numbers = {
        "deadlines met": (ratio, 4),
        "of ceiling": (ratio / limit if ratio is not None and limit else None, 4),
        "mean wait h": (_hours(metrics.average_wait_seconds), 3),
        "mean JCT h": (_hours(metrics.average_jct_seconds), 3),
        "use": (metrics.utilisation or None, 2),
    }
    return cells | {
        name: f"{value:.{digits}f}"
        for name, (value, digits) in numbers.items()
        if value is not None
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600


def write_all(
    out_folder: Path,
    results: list[Result],
    found: dict[str, Any],
    err: Console,
    *,
    work: Work,
    tenants: tuple[Tenant, ...],
) -> None:
    """Write all files that belong in the folder of `--out`."""
    # Figures need the `simulate` extra.
    from brim.report.comparison import write_page, write_pngs

    out_folder.mkdir(parents=True, exist_ok=True)
    runs = {result.policy: result.run for result in results}
    courses = {
        policy: course_of(run, subject=work.name, policy=policy, tenants=tenants)
        for policy, run in runs.items()
    }
    if work.happened is not None:
        runs[AS_IT_HAPPENED] = work.happened
        courses[AS_IT_HAPPENED] = course_of(
            work.happened, subject=work.name, policy=AS_IT_HAPPENED, tenants=tenants,
            origin=Origin.RECORDED,
        )  # fmt: skip
    write_jobs(out_folder / "jobs.csv", runs)
    write_decisions(out_folder / "decisions.jsonl", runs)
    write_summary(out_folder / "summary.json", found)
    write_pngs(out_folder, courses, found)
    write_page(out_folder / "index.html", courses, found)
    err.print(
        f"wrote {out_folder}/index.html, jobs.csv, decisions.jsonl, summary.json and figures",
        style="dim",
    )


@simulate.command("generate")
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    required=True,
    help="Read throughput CSVs from this folder.",
)
@click.option(
    "--jobs",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="Make this many jobs.",
)
@click.option(
    "--interarrival",
    default=1500.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Let this many seconds pass between two arrivals on average.",
)
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    type=click.Choice(ARRIVALS),
    help="Let jobs arrive at random, by the hour of the day, or in groups.",
)
@click.option(
    "--deadline",
    default="0.5:1.5",
    show_default=True,
    help="Draw deadlines from these bounds, in multiples of the job's duration.",
)
@click.option(
    "--best-effort",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Leave a job without a deadline with this probability.",
)
@click.option("--seed", default=0, show_default=True, help="Draw everything from this seed.")
@click.option(
    "--out",
    type=click.File("w"),
    default="-",
    help="Write the trace to this file. [default: stdout]",
)
def generate_command(
    profiles: Path,
    jobs: int,
    interarrival: float,
    arrivals: str,
    deadline: str,
    best_effort: float,
    seed: int,
    out: Any,
) -> None:
    """Make a trace as the generator of the ElasticFlow paper does, from one seed."""
    low, colon, high = deadline.partition(":")
    try:
        bounds = float(low), float(high if colon else low)
    except ValueError:
        bounds = math.nan, math.nan
    if not all(map(math.isfinite, bounds)):
        raise SpecError("--deadline", got=deadline, need="LOW:HIGH", hint="--deadline 0.5:1.5")
    recipe = Recipe(
        jobs=jobs, interarrival=interarrival, arrivals=arrivals, tightest=bounds[0], loosest=bounds[1],
        best_effort=best_effort, seed=seed,
    )  # fmt: skip
    for line in generate(recipe, read_profiles(profiles)):
        click.echo(line, file=out)


@simulate.command("policies")
def policies_command() -> None:
    """List the policies."""
    for name in known_policies(warn):
        click.echo(name)


def main() -> None:
    """Run `python -m brim.cli.simulate`: this command alone.

    Errors are shown as the whole command line shows them.
    """
    from brim.cli.explain import explain

    group = simulate
    group.add_command(explain)
    try:
        code = group(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from error
    except click.exceptions.Abort:
        raise SystemExit(130) from None
    except SpecError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    except UserCodeError as error:
        click.echo(error.trace, err=True)
        raise SystemExit(1) from None
    except BrimError as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None
    raise SystemExit(code if isinstance(code, int) else EXIT_DONE)


if __name__ == "__main__":
    main()
