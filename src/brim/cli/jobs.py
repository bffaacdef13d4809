"""`brim jobs` and `cancel`, and what `status`, `explain`, `resize`, `suspend` and `resume` do with
a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.clients import client_of
from brim.cli.usage import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE
from brim.domain.course import deadline_kept
from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import STATE, option

if TYPE_CHECKING:
    from brim.client import Client
    from brim.domain.job import WorkerRange
    from brim.telemetry.history import RunHistory
    from brim.wire.cluster import ClusterView, JobView


_NO_JOBS = "no jobs are unfinished: brim submit FILE.py, or brim jobs --all"


@click.command()
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--all", "everything", is_flag=True, help="Include jobs that have ended.")
@click.option(
    "--watch", is_flag=True, help="Keep showing them until Ctrl-C, also while no scheduler runs."
)
@STATE
def jobs(as_json: bool, everything: bool, watch: bool, state: Path | None) -> int:
    """List the scheduler's jobs in the order of their submission.

    \b
    brim jobs
    brim jobs --watch
    brim jobs --all --json
    """
    if watch and as_json:
        raise SpecError(
            "--watch", got="--json beside it", need="one of them", hint="brim jobs --json"
        )
    client = client_of(state)
    if watch:
        from brim.cli.screen import keep_showing

        keep_showing(lambda: _screen(client, everything))
        return EXIT_DONE
    views, cluster = _look(client, everything or as_json), client.cluster()
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins({"jobs": views, "cluster": cluster})))
        return EXIT_DONE
    if cluster.problem:
        click.echo(cluster.problem, err=True)
    if views:
        click.echo(_table(views, cluster))
    else:
        click.echo(_NO_JOBS, err=True)
    return EXIT_DONE


def _look(client: Client, everything: bool) -> list[JobView]:
    return client.jobs(unfinished=not everything)


def _screen(client: Client, everything: bool) -> str:
    """The cluster in a line, and its jobs."""
    views, cluster = _look(client, everything), client.cluster()
    running = sum(view.state == "running" for view in views)
    free = cluster.devices - cluster.headroom
    parts = [
        f"{cluster.held} of {counted(free, 'device')}",
        f"{running} running, {cluster.unfinished - running} waiting",
        f"policy {cluster.policy}",
        *([cluster.problem] if cluster.problem else []),
    ]
    return " · ".join(parts) + "\n" + (_table(views, cluster) if views else _NO_JOBS)


def _table(views: Sequence[JobView], cluster: ClusterView) -> str:
    from brim.cli.tables import table

    columns: dict[str, Callable[[JobView], str]] = {
        "job": lambda view: view.job,
        "state": _state,
        "tenant": lambda view: view.tenant,
        "workers": _workers,
        **({"on": _nodes} if len(cluster.nodes) > 1 else {}),
        "steps": _steps,
        "deadline": _deadline,
        "finish": _finish,
    }
    return table(tuple(columns), [tuple(cell(view) for cell in columns.values()) for view in views])


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completing.jobs)
@STATE
def cancel(job: str, state: Path | None) -> int:
    """End JOB for good; its run directory and its last checkpoint stay.

    \b
    brim cancel flights-1
    """
    client_of(state).cancel(job)
    click.echo(f"{job}: cancelled", err=True)
    return EXIT_DONE


def status_of(client: Client, job: str, *, wait: bool, as_json: bool) -> int:
    """Show a job, at once or once it has ended."""
    if wait:
        return end_of(wait_for(client, job), as_json=as_json)
    view, cluster = client.job(job), client.cluster()
    history = _records_of(view)
    if cluster.problem and not view.has_ended:
        click.echo(cluster.problem, err=True)
    if as_json:
        from brim.runs.outcome import facts_of

        progress = {"progress": facts_of(history)} if history.started else {}
        click.echo(json.dumps({**_fields(view), **progress}))
    else:
        click.echo("\n".join([_render(view, cluster), *_progress(view, history)]))
    return EXIT_DONE


def _records_of(view: JobView) -> RunHistory:
    """What its records say, where they are on this host."""
    from brim.telemetry.history import RunReader

    reader = RunReader(Path(view.run), keep_steps=False)
    reader.poll()
    return reader.history


def _progress(view: JobView, history: RunHistory) -> list[str]:
    """How a job trains, as `brim train` shows it."""
    from brim.runs.plain import describe_progress

    if view.has_ended or not history.steps:
        return []
    workers = ", ".join(
        f"{life.worker} {life.state}" for life in history.workers.values() if life.until is None
    )
    return [
        describe_progress(history.steps[-1], history),
        *([f"workers: {workers}"] if workers else []),
    ]


def wait_for(client: Client, job: str) -> JobView:
    """The job once it has ended. Ctrl-C ends the wait, not the job, and says so."""
    try:
        return client.wait(job)
    except KeyboardInterrupt:
        click.echo(f"{job} goes on: brim status {job} --wait; brim cancel {job} ends it", err=True)
        raise


def end_of(view: JobView, *, as_json: bool) -> int:
    """Say how a job ended, as `brim train` does; the exit code."""
    from brim.cli.summary import render_summary

    if as_json:
        click.echo(json.dumps(_fields(view)))
    elif view.summary:
        click.echo(render_summary(view.summary))
    if view.state == "done":
        return EXIT_DONE
    said = ": ".join(part for part in (view.reason, view.detail) if part)
    why = said if view.state == "refused" else view.problem
    click.echo(f"{view.job}: {view.state}{f': {why}' if why else ''}", err=True)
    if view.state == "refused":
        return EXIT_REFUSED
    return (
        EXIT_USAGE
        if view.state == "failed" and view.step == 0 and "hint:" in view.problem
        else EXIT_FAILED
    )


def _fields(view: JobView) -> dict[str, Any]:
    """The job, with the fields of `brim train --json` beside its own."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(view)
    return {**fields.pop("summary"), **fields}


def resize_job(client: Client, job: str, workers: WorkerRange) -> int:
    client.resize(job, workers)
    click.echo(f"{job}: may have {workers} workers", err=True)
    return EXIT_DONE


def suspend_job(client: Client, job: str) -> int:
    client.suspend(job)
    click.echo(f"{job}: suspending at the next step; brim resume {job} lets it run again", err=True)
    return EXIT_DONE


def resume_job(client: Client, job: str) -> int:
    client.resume(job)
    click.echo(f"{job}: may run again", err=True)
    return EXIT_DONE


def explain_job(client: Client, job: str, *, as_json: bool) -> int:
    """Its story, line by line."""
    import msgspec

    from brim.domain.course import sentence_of
    from brim.runs.times import clock_time

    story = client.explain(job)
    if as_json:
        click.echo(json.dumps({"job": job, "story": msgspec.to_builtins(story)}))
        return EXIT_DONE
    for change in story:
        click.echo(f"{clock_time(change.at)} {sentence_of(change)}")
    return EXIT_DONE


def _render(view: JobView, cluster: ClusterView) -> str:
    promise = f", {_deadline(view)}" if view.deadline is not None else ""
    on = f" on {_nodes(view)}" if len(cluster.nodes) > 1 and view.nodes else ""
    noun = "worker" if _workers(view) == "1" else "workers"
    workers = "" if view.has_ended else f", {_workers(view)} {noun}{on}"
    lines = [
        f"{view.job}: {_state(view)}{workers}, step {_steps(view)}{promise}",
        f"records in {view.run}",
    ]
    if view.reason:
        lines.append(f"{view.reason}: {view.detail}")
    if view.finish is not None:
        lines.append(f"finish: {_finish(view)} if nothing changes")
    if view.problem:
        lines.append(view.problem)
    return "\n".join(lines)


def _state(view: JobView) -> str:
    wish = {"hold": "held", "cancel": "to be cancelled"}.get(view.wish, "")
    return f"{view.state} ({wish})" if wish and not view.has_ended else view.state


def _workers(view: JobView) -> str:
    now = str(view.workers) if view.workers == view.planned else f"{view.workers} to {view.planned}"
    return "" if view.has_ended else now


def _nodes(view: JobView) -> str:
    """Its nodes, each with its number of workers where there are several."""
    several = len(view.nodes) > 1
    return ", ".join(f"{node}: {count}" if several else node for node, count in view.nodes.items())


def _steps(view: JobView) -> str:
    return f"{view.step:,}/{view.steps:,}" if view.steps else f"{view.step:,}"


def _deadline(view: JobView) -> str:
    from brim.runs.times import clock_time

    if view.deadline is None:
        return ""
    unjudged = "not judged" if view.has_ended else "not judged yet"
    word = "promised" if view.promised else "not promised" if view.judged else unjudged
    kept = deadline_kept(view.deadline, view.ended) if view.state == "done" else None
    told = {True: ", kept", False: ", not kept", None: ""}[kept]
    return f"{clock_time(view.deadline)} {word}{told}"


def _finish(view: JobView) -> str:
    from brim.runs.times import clock_time

    when = view.ended if view.has_ended else view.finish
    return clock_time(when) if when is not None else ""
