"""Runs and jobs in words: the lines of `brim status` and the columns of `brim jobs`.

The module that reads records takes longer to import than a scheduler to answer. So it is imported
only where there are records to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from brim.domain.course import deadline_kept
from brim.domain.quantities import format_bytes
from brim.domain.services import describe_ready
from brim.runs.times import clock_time

if TYPE_CHECKING:
    from brim.domain.job import WorkerRange
    from brim.telemetry.history import RunHistory
    from brim.wire.cluster import ClusterView, JobView, ServiceView


_NO_STACK = "  did not answer: it is stopped, or has not come to Python code yet"


def columns_of(cluster: ClusterView) -> dict[str, Callable[[JobView], str]]:
    """The columns of `brim jobs`, by title."""
    return {
        "job": lambda view: view.job,
        "state": _state_of,
        "tenant": lambda view: view.tenant,
        "workers": _workers_of,
        **({"on": _nodes_of} if len(cluster.nodes) > 1 else {}),
        "steps": _steps_of,
        "deadline": _deadline_of,
        "finish": _finish_of,
    }


def describe_run(values: Mapping[str, Any], history: RunHistory) -> list[str]:
    """The lines of `brim status` for a run.

    Args:
        values: its facts, as `--json` prints them.
    """
    from brim.telemetry.history import describe_event, describe_staleness

    loss = f"loss {values['loss']:.4f}" if values["loss"] is not None else "no step yet"
    training = (
        f" · epoch {values['epoch']}/{values['epochs']} · {loss}" if history.verb == "train" else ""
    )
    progress = (
        f"step {values['step']:,}/{values['steps']:,}{training} · {values['samples_per_second']:,.0f} "
        "samples/s"
    )
    if history.verb == "restart":
        progress = history.command.words if history.command else "no progress reported"
    lines = [f"{values['run']}: {values['state']}", progress]
    if history.staleness:
        lines.append(
            f"asynchronous, at most {history.ahead} ahead: {describe_staleness(history.staleness)}"
        )
    if values["state"] == "running":
        uneven = history.round is not None and history.round.is_uneven
        names = [
            f"{worker['worker']} {worker['state']}"
            + (f" (share {worker['share']})" if uneven and worker["share"] else "")
            for worker in values["workers"]
            if not worker["serves"]
        ]
        lines.append(f"world size {values['world_size']}: " + ", ".join(names))
        servers = [
            f"{worker['worker']} {worker['state']}"
            for worker in values["workers"]
            if worker["serves"]
        ]
        if servers:
            lines.append(f"servers {values['servers']}: " + ", ".join(servers))
    for table in values["tables"]:
        rates = (
            f"{table['rows_read_per_second']:,.0f} rows/s read, "
            f"{table['rows_changed_per_second']:,.0f} changed"
        )
        hot = ", ".join(f"{row['id']} ({row['lookups']})" for row in table["hottest"][:3])
        lines.append(
            f"table {table['name']}: {table['rows']:,} × {table['dim']}, "
            f"{format_bytes(table['bytes'])} · {rates}" + (f" · hottest ids {hot}" if hot else "")
        )
    lines_of_story = [(event.at, describe_event(event, history)) for event in history.events]
    lines += [
        f"  {clock_time(moment)} {text}"
        for moment, text in [entry for entry in lines_of_story if entry[1]][-5:]
    ]
    return lines


def describe_job(view: JobView, cluster: ClusterView, history: RunHistory) -> list[str]:
    """The lines of `brim status` for a job.

    Args:
        history: of its records, as far as they can be read here.
    """
    promise = f", {_deadline_of(view)}" if view.deadline is not None else ""
    place = f" on {_nodes_of(view)}" if len(cluster.nodes) > 1 and view.nodes else ""
    noun = "worker" if _workers_of(view) == "1" else "workers"
    workers = "" if view.has_ended else f", {_workers_of(view)} {noun}{place}"
    step = "" if view.service is not None else f", step {_steps_of(view)}"
    lines = [
        f"{view.job}: {_state_of(view)}{workers}{step}{promise}",
        f"records in {view.run}",
    ]
    if view.service is not None and not view.has_ended:
        lines += describe_service(view.service)
    if history.verb == "restart":
        lines.append("level: restart, from its own checkpoints")
    if view.reason and view.service is None:  # a service comes first, and promises nothing
        lines.append(f"{view.reason}: {view.detail}")
    if view.finish is not None:
        lines.append(f"finish: {_finish_of(view)} if nothing changes")
    if view.problem:
        lines.append(view.problem)
    if view.waits:
        lines.append(f"waits: {view.waits}")
    if history.steps and not view.has_ended:
        from brim.runs.plain import describe_progress

        lines.append(describe_progress(history.steps[-1], history))
        names = [
            f"{life.worker} {life.state}" for life in history.workers.values() if life.until is None
        ]
        lines += [f"workers: {', '.join(names)}"] if names else []
    return lines


def describe_resize(view: JobView, workers: WorkerRange) -> str:
    """Say what a job has once it was asked to have other workers, and what it waits for.

    Args:
        view: the job, once its scheduler has decided about that.
        workers: that it was asked to have.
    """
    asked = f"asked for {workers.words}, has {view.workers or 'none'} now"
    if view.wish == "hold":
        return f"{asked}; it is suspended, and brim resume {view.job} lets it run again"
    if not view.planned:
        return f"{asked}; {view.waits or 'its scheduler has not decided yet'}"
    if view.planned != view.workers:
        return f"{asked} and goes to {view.planned:,}"
    if view.planned < workers.maximum:
        return f"{asked}; more come where the policy has devices and a use for them"
    return asked


def describe_service(service: ServiceView) -> list[str]:
    """The lines of `brim status` for a service."""
    unit = {"requests": "/s", "cpu": " processors"}.get(service.load, "")
    ready = describe_ready(service.ready, service.wanted)
    lines = [f"serves at {service.url}: {ready}"]
    if service.current is not None:
        foreseen = service.current if service.foreseen is None else service.foreseen
        lines.append(
            f"load {service.current:.3g}{unit}, {foreseen:.3g}{unit} foreseen; one replica takes "
            f"{service.per_replica:.3g}{unit}, and {service.notice:.1f} s to come"
        )
    lines += [f"{each.replica}: {each.state}, at {each.address}" for each in service.replicas]
    return [*lines, service.problem] if service.problem else lines


def describe_stack(worker: str, stack: str) -> str:
    """The lines of `brim stacks` for a worker."""
    return f"{worker}:\n{stack or _NO_STACK}"


def _state_of(view: JobView) -> str:
    wish = {"hold": "held", "cancel": "to be cancelled"}.get(view.wish, "")
    return f"{view.state} ({wish})" if wish and not view.has_ended else view.state


def _workers_of(view: JobView) -> str:
    now = str(view.workers) if view.workers == view.planned else f"{view.workers} to {view.planned}"
    return "" if view.has_ended else now


def _nodes_of(view: JobView) -> str:
    """The nodes of a job, each with its number of workers where there are several."""
    has_several = len(view.nodes) > 1
    return ", ".join(
        f"{node}: {count}" if has_several else node for node, count in view.nodes.items()
    )


def _steps_of(view: JobView) -> str:
    return f"{view.step:,}/{view.steps:,}" if view.steps else f"{view.step:,}"


def _deadline_of(view: JobView) -> str:
    if view.deadline is None:
        return ""
    unjudged = "not judged" if view.has_ended else "not judged yet"
    word = "promised" if view.promised else "not promised" if view.judged else unjudged
    is_kept = deadline_kept(view.deadline, view.ended) if view.state == "done" else None
    deadline_note = {True: ", kept", False: ", not kept", None: ""}[is_kept]
    return f"{clock_time(view.deadline)} {word}{deadline_note}"


def _finish_of(view: JobView) -> str:
    end = view.ended if view.has_ended else view.finish
    return clock_time(end) if end is not None else ""
