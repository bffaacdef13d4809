"""A stream of real jobs with deadlines under three policies, beside the simulator's forecast: see
README.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_cluster import BrimCluster, Learnt, measure, replay_line
from benchmarks.harness.report import Report, table
from benchmarks.harness.stream import KINDS, Item, predict, stream
from brim.domain.estimates import Estimate
from brim.domain.resizing import Overheads
from brim.domain.schedule import Reason
from brim.scheduler.replay import Replay
from brim.simulator.run import SimulatedRun
from brim.wire.cluster import EstimateView

BENCHMARK = Path(__file__).parent
POLICIES = ("brim", "elasticflow", "edf")
SLOTS, JOBS, SEED = 8, 22, 4
_LIMIT = 420.0  # seconds for one policy
_LOOK = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One job of the stream under one policy, live; times are seconds since the stream began.

    Args:
        submitted: when the scheduler had it; its deadline is the same as in the simulation.
        first, half: when the scheduler expected it to end: when it first could, and at half of the
            steps.
        workers: (when, how many from then on).
    """

    item: Item
    submitted: float
    first_step: float | None
    ended: float
    state: str
    promised: bool
    refused: bool
    first: Estimate | None
    half: Estimate | None
    workers: tuple[tuple[float, int], ...]

    @property
    def met(self) -> bool:
        return self.state == "done" and self.ended <= self.item.deadline

    def error(self, predicted: float) -> float:
        """How wrong a finish is that was predicted, as a part of the job's whole time."""
        return abs(predicted - self.ended) / (self.ended - self.submitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A policy, live and simulated."""

    policy: str
    live: Sequence[Course]
    simulated: SimulatedRun
    replayed: Replay

    @property
    def simulated_ends(self) -> list[float | None]:
        """When each job ended in the simulation."""
        return [outcome.finished for outcome in self.simulated.outcomes]

    @property
    def simulated_met(self) -> list[bool]:
        """Which deadlines were met there; its jobs have earlier ones, see `predict`."""
        pairs = zip(self.live, self.simulated_ends, strict=True)
        return [end is not None and end <= course.item.deadline for course, end in pairs]

    @property
    def ratios(self) -> tuple[float, float]:
        """Shares of deadlines met: live, simulated."""
        met = sum(course.met for course in self.live), sum(self.simulated_met)
        return met[0] / len(self.live), met[1] / len(self.live)

    def errors(self) -> dict[str, list[tuple[float, float]]]:
        """Return the errors of jobs' ends by predictor: in parts of the remaining time, and of the
        whole time.
        """
        ends = zip(self.live, self.simulated_ends, strict=True)
        found = {
            "the simulator, which knows the stream": [
                (c.error(end),) * 2 for c, end in ends if end is not None
            ]
        }
        submitted = [course.submitted for course in self.live]
        for name, estimate in (("when it first could", "first"), ("at half of the steps", "half")):
            pairs = [(course, getattr(course, estimate)) for course in self.live]
            estimated = [
                (course, estimate_made)
                for course, estimate_made in pairs
                if estimate_made is not None and course.ended > estimate_made.at
            ]
            undisturbed = [
                (course, estimate_made)
                for course, estimate_made in estimated
                if not any(
                    estimate_made.at < submitted_at < course.ended for submitted_at in submitted
                )
            ]
            for label, estimates in (
                (name, estimated),
                (f"{name}, if nobody came later", undisturbed),
            ):
                found[f"the scheduler, {label}"] = [
                    (abs(estimate_made.error(course.ended)), course.error(estimate_made.finish))
                    for course, estimate_made in estimates
                ]
        return found


def live(policy: str, items: Sequence[Item], learnt: Learnt) -> tuple[list[Course], Replay]:
    """The stream under a scheduler of its own, which knows the earlier measurements."""
    described = {"nodes": [{"name": "n1", "workers": SLOTS}], "policy": policy}
    with BrimCluster(described, learnt=learnt, kinds=list(KINDS.values())) as cluster:
        cluster.warm_up(replace(KINDS["small"], salt="warm-up"))
        origin = time.time() + 0.5
        jobs: list[str] = []
        end = origin + _LIMIT
        while True:
            while len(jobs) < len(items) and time.time() >= origin + items[len(jobs)].at:
                jobs.append(_submit(cluster, items[len(jobs)], origin, salt=policy))
            views = {view.job: view for view in cluster.look()}
            if len(jobs) == len(items) and all(
                views[job].has_ended for job in jobs if job in views
            ):
                break
            if time.time() > end:
                raise RuntimeError(f"{policy}: the stream has not ended after {_LIMIT:.0f} s")
            time.sleep(_LOOK)
        return [
            _course(cluster, job, item, origin) for job, item in zip(jobs, items, strict=True)
        ], cluster.replay()


def _submit(cluster: BrimCluster, item: Item, origin: float, *, salt: str) -> str:
    kind = replace(KINDS[item.kind], salt=item.name + salt) if item.new else KINDS[item.kind]
    submission = kind.submission(epochs=item.epochs, deadline=origin + item.deadline)
    return cluster.submit(item.name, submission)


def _course(cluster: BrimCluster, job: str, item: Item, origin: float) -> Course:
    submission = cluster.asked[job]
    view = submission.last
    promised = any(view.promised for _, view in submission.views)
    changes = [change for change in cluster.client.explain(job) if change.event == "workers"]
    assert view.ended is not None, "it was waited for"
    return Course(
        item=item,
        submitted=view.submitted - origin,
        first_step=view.started - origin if view.started else None,
        ended=view.ended - origin,
        state=view.state,
        promised=promised,
        refused=view.was_refused and not promised and view.reason != Reason.NO_ADMISSION,
        first=_estimate(view.first_estimate, origin),
        half=_estimate(view.half_estimate, origin),
        workers=(
            *((change.at - origin, change.after) for change in changes),
            (view.ended - origin, 0),
        ),
    )


def _estimate(view: EstimateView | None, origin: float) -> Estimate | None:
    return (
        None
        if view is None
        else Estimate(at=view.at - origin, finish=view.finish - origin, step=view.step)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="6 jobs under one policy, 2 minutes: no report is written",
    )
    parser.add_argument("--policy", action="append", help=f"only these of {', '.join(POLICIES)}")
    parser.add_argument("--seed", type=int, default=SEED, help="of the stream")
    parser.epilog = "A whole run takes about 12 minutes."
    arguments = parser.parse_args()
    policies = arguments.policy or (POLICIES[:1] if arguments.quick else POLICIES)
    items = stream(jobs=6 if arguments.quick else JOBS, slots=SLOTS, seed=arguments.seed)
    report = Report(BENCHMARK, "Deadlines of real jobs, beside the simulator", seed=arguments.seed)
    report.say("measuring the models that are known before")
    learnt = measure(list(KINDS.values()), slots=SLOTS, say=report.say)
    overheads = learnt.overheads
    sides = []
    for policy in policies:
        report.say(f"{len(items)} jobs under {policy}")
        courses, replayed = report.attempt(live, policy, items, learnt)
        simulated = predict(
            items, policy, slots=SLOTS, measured=learnt.measured, overheads=overheads
        )
        sides.append(Side(policy=policy, live=courses, simulated=simulated, replayed=replayed))
    tell(report, sides, overheads)
    if not arguments.quick:
        report.write({"sides": [plain(side) for side in sides]}, draw(sides, slots=SLOTS))


def tell(report: Report, sides: Sequence[Side], overheads: Overheads) -> None:
    """The tables."""
    rows = []
    for side in sides:
        promised = [course for course in side.live if course.promised]
        pairs = zip(side.simulated.outcomes, side.simulated_met, strict=True)
        simulated = [met for outcome, met in pairs if outcome.admitted]
        rows.append(
            [
                side.policy,
                f"{len(promised)} / {len(simulated)}",
                f"{sum(not c.met for c in promised)} / {sum(not met for met in simulated)}",
                *(f"{ratio:.3f}" for ratio in side.ratios),
                f"{max(course.ended for course in side.live):.0f}",
                f"{max(o.finished or 0.0 for o in side.simulated.outcomes):.0f}",
            ]
        )
    head = ["policy", "promised, live / simulated", "of these missed", "deadlines met, "
                                                                       "live", "simulated",
            "all done after, s, live", "simulated"]  # fmt: skip
    report.add(
        f"## {len(sides[0].live)} jobs on {SLOTS} worker slots\n\n"
        f"A start costs {overheads.cost(0, 1):.2f} s, a change of workers "
        f"{overheads.cost(1, 2):.2f} s, an end "
        f"{overheads.end:.2f} s, as the scheduler measured before.\n\n" + table(head, rows)
    )
    rows = []
    for side in sides:
        for name, errors in side.errors().items():
            if errors:
                remaining, whole = zip(*errors, strict=True)
                rows.append(
                    [
                        side.policy,
                        name,
                        str(len(errors)),
                        *_quantiles(remaining),
                        *_quantiles(whole),
                    ]
                )
    report.add(
        "## Errors of predicted finish times\n\n"
        + "In parts of the time that was left when it was said (by the simulator: of the job's "
        "whole time), and in "
        "parts of the job's whole time from its submission to its end.\n\n"
        + table(
            [
                "policy",
                "predicted by",
                "jobs",
                "of what was left: median",
                "p95",
                "of all: median",
                "p95",
            ],
            rows,
        )
    )
    for side in sides:
        undone = ", ".join(
            f"{course.item.name} is {course.state}"
            for course in side.live
            if course.state != "done"
        )
        if undone:
            report.add(f"{side.policy}: {undone}.")
        late = [course for course in side.live if course.promised and not course.met]
        for course in late:
            report.add(f"{side.policy}: {course.item.name} was promised {course.item.deadline:.1f} "
                       "s and took until "
                       f"{course.ended:.1f} s.")  # fmt: skip
    report.add("\n".join(replay_line(f"{side.policy}'s journal", side.replayed) for side in sides))


_COLOURS = {"met": "C2", "missed": "C3", "refused, met": "C0", "refused, missed": "C7"}


def draw(sides: Sequence[Side], *, slots: int) -> Any:
    """Jobs over time with their deadlines, by policy; and the shares met, live beside simulated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2 * len(sides)), layout="constrained")
    axes = figure.subplots(len(sides), 2, width_ratios=[4, 1], squeeze=False)
    for (axis, bars), side in zip(axes, sides, strict=True):
        for row, course in enumerate(side.live):
            _draw_job(axis, row, course)
        finishes = side.simulated_ends
        finished = [(finish, row) for row, finish in enumerate(finishes) if finish is not None]
        axis.plot(*zip(*finished, strict=True), "kx", markersize=4, label="simulated end")
        axis.set_title(
            f"{side.policy}: a line for each job; the thicker, the more workers",
            loc="left",
            fontsize=9,
        )
        axis.set(
            ylabel="job",
            xlabel="seconds since the stream began",
            ylim=(len(side.live), -1),
            xlim=(0, None),
        )
        for name, colour in _COLOURS.items():
            axis.plot([], [], "-", color=colour, linewidth=3, label=name)
        axis.plot([], [], "|", color="black", markersize=9, label="deadline")
        live, simulated = side.ratios
        drawn = bars.bar(["live", "simulated"], [live, simulated], color=["C2", "0.7"])
        bars.bar_label(drawn, fmt="%.2f")
        bars.set(ylim=(0, 1.1))
        bars.set_title("deadlines met", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def _draw_job(axis: Any, row: int, course: Course) -> None:
    colour = _COLOURS[("refused, " if course.refused else "") + ("met" if course.met else "missed")]
    axis.plot([course.submitted, course.ended], [row, row], color=colour, linewidth=0.6)
    for (start, workers), (stop, _) in pairwise(course.workers):
        if workers:
            axis.plot(
                [start, stop],
                [row, row],
                color=colour,
                linewidth=0.7 * workers,
                solid_capstyle="butt",
            )
    axis.plot(course.item.deadline, row, "|", color="black", markersize=9)


def _quantiles(errors: Sequence[float]) -> tuple[str, str]:
    return (
        f"{statistics.median(errors):.1%}",
        f"{sorted(errors)[max(0, round(0.95 * len(errors)) - 1)]:.1%}",
    )


def plain(side: Side) -> dict[str, Any]:
    """All values, for the report's JSON."""
    return {
        "policy": side.policy,
        "live": [asdict(course) | {"met": course.met} for course in side.live],
        "simulated": [
            {
                "started": outcome.started,
                "finished": outcome.finished,
                "admitted": outcome.admitted,
                "met": met,
            }
            for outcome, met in zip(side.simulated.outcomes, side.simulated_met, strict=True)
        ],
        "replayed": {"cycles": side.replayed.cycles, "differences": len(side.replayed.differences)},
    }


if __name__ == "__main__":
    main()
