"""The consequences and costs of an action, in sentences with numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brim.dashboard.rows import Clock, promise_of, range_of, span_of, steps_of
from brim.domain.quantities import counted
from brim.wire.cluster import Effect, Forecast, JobView, NodeView

_HOUR = 3600
_MOST_EFFECTS = 6  # jobs that are named


def on_suspend(view: JobView, clock: Clock) -> list[str]:
    """Describe the suspension of a job."""
    return [
        _gives_back(view, "It writes a checkpoint at its next step, so no step is lost"),
        "It stays suspended until you resume it, and goes on from that checkpoint.",
        *_about_deadline(view, clock, "The deadline stays while it is suspended"),
    ]


def on_resume(view: JobView, clock: Clock) -> list[str]:
    """Describe the return of a suspended job."""
    needs = counted(view.minimum, "device")
    return [
        f"It goes on from step {steps_of(view)} as soon as the policy gives it {needs} or more "
        f"(it may have {range_of(view)}).",
        *_about_deadline(view, clock, "Its deadline"),
    ]


def on_cancel(view: JobView, clock: Clock) -> list[str]:
    """Describe the end of a job by cancellation."""
    hours = view.attained_seconds / _HOUR
    return [
        f"It ends for good at step {steps_of(view)}, after {hours:,.2f} device hours.",
        _gives_back(view, "Its logs and last checkpoint stay until it is forgotten"),
        *_about_deadline(view, clock, "Its deadline is given up"),
    ]


def on_resize(view: JobView, minimum: int, maximum: int) -> list[str]:
    """Describe the effect of another range of workers."""
    new = f"{minimum}–" if minimum < maximum else ""
    lines = [f"It may have {new}{counted(maximum, 'worker')} instead of {range_of(view)}."]
    if view.workers > maximum:
        lines.append(
            f"It gives {counted(view.workers - maximum, 'device')} back at a step boundary; no step "
            "is lost."
        )
    elif 0 < view.workers < minimum:
        lines.append(
            f"It runs on {view.workers} and needs {minimum}: without "
            f"{counted(minimum - view.workers, 'more device')} it is suspended with a checkpoint."
        )
    elif maximum > view.maximum:
        lines.append("It gets more than now only as devices are free, or by its right to them.")
    return lines


def on_drain(node: NodeView, jobs: Mapping[str, JobView], nodes: Sequence[NodeView]) -> list[str]:
    """Describe the drain of a node."""
    counts = {
        view.job: view.nodes.get(node.node, 0) for view in jobs.values() if not view.has_ended
    }
    named = [f"{job} ({count})" for job, count in counts.items() if count]
    free = sum(
        view.devices - view.held
        for view in nodes
        if view.node != node.node and view.state == "up" and not view.drained
    )
    lines = [f"Nothing runs on {node.node} any more, until the drain is undone."]
    if node.held:
        owners = f" of {', '.join(named)}" if named else ""
        lines.append(
            f"{counted(node.held, 'worker')}{owners} leave at a step boundary; no step is lost."
        )
        lines.append(
            f"Other nodes have {counted(max(0, free), 'free device')}: "
            + (
                "they start there at the same moment."
                if free >= node.held
                else f"{counted(node.held - max(0, free), 'device')} fewer for the jobs, until some "
                "come free."
            )
        )
    else:
        lines.append("No worker is there now.")
    return lines


def on_undrain(node: NodeView) -> list[str]:
    """Describe the end of a node's drain."""
    return [f"Jobs may use the {counted(node.devices, 'device')} of {node.node} again at once."]


def of_effects(effects: Sequence[Effect], jobs: Mapping[str, JobView], clock: Clock) -> list[str]:
    """Describe a change's effects on the jobs of a cluster, the greatest losses first."""
    if not effects:
        return ["Nothing changes for other jobs, as far as it can be foreseen."]
    lines = [_of_effect(effect, jobs.get(effect.job), clock) for effect in effects[:_MOST_EFFECTS]]
    rest = len(effects) - _MOST_EFFECTS
    return [
        *lines,
        *([f"And {counted(rest, 'other job')}, for which less changes."] if rest > 0 else []),
    ]


def _of_effect(effect: Effect, view: JobView | None, clock: Clock) -> str:
    parts = []
    if effect.workers != effect.workers_after:
        parts.append(f"{effect.workers} → {counted(effect.workers_after, 'worker')} at once")
    old_end, new_end = effect.finish, effect.finish_after
    if old_end is not None and new_end is not None and round(old_end) != round(new_end):
        word = "later" if new_end > old_end else "earlier"
        parts.append(f"ends {span_of(abs(new_end - old_end))} {word}, at {clock(new_end)}")
    elif new_end is None and old_end is not None:
        parts.append("no end can be foreseen any more")
    elif old_end is None and new_end is not None:
        parts.append(f"ends at {clock(new_end)}")
    deadline = view.deadline if view is not None else None
    if (
        deadline is not None
        and new_end is not None
        and (old_end is None or old_end <= deadline)
        and new_end > deadline
    ):
        promised = "promised deadline" if view is not None and view.promised else "deadline"
        parts.append(f"misses its {promised} of {clock(deadline)}")
    return f"{effect.job}: {', '.join(parts)}."


def of_forecast(forecast: Forecast, clock: Clock) -> list[str]:
    """Describe the fate of a job before it is submitted."""
    word = {True: "Promised", False: "Not promised", None: "Accepted"}[forecast.admitted]
    reason = f" ({forecast.reason})" if forecast.reason else ""
    lines = [f"{word}{reason}: {forecast.detail}."]
    lines.append(
        f"It would begin at once with {counted(forecast.workers, 'worker')}."
        if forecast.workers
        else "It would wait: no device is free for it now."
    )
    if forecast.takes:
        givers = ", ".join(f"{count} of {job}" for job, count in forecast.takes.items())
        lines.append(f"Taken from others: {givers}.")
    if forecast.finish is not None:
        lines.append(f"Expected to end at {clock(forecast.finish)}.")
    if forecast.earliest is not None and not forecast.admitted:
        lines.append(f"The earliest deadline that could be promised: {clock(forecast.earliest)}.")
    return lines


def _gives_back(view: JobView, first: str) -> str:
    if not view.workers:
        return f"{first}. It holds no device now."
    return f"{first}. It gives back {counted(view.workers, 'device')}."


def _about_deadline(view: JobView, clock: Clock, first: str) -> list[str]:
    if view.deadline is None:
        return []
    expected = f"; expected to end at {clock(view.finish)}" if view.finish is not None else ""
    return [f"{first}: {promise_of(view, clock)}{expected}."]
