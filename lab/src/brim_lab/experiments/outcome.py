"""The claims, numbers, table and sentence that `brim demo` and the benchmark give.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from brim.demo import Findings
from brim_lab.experiments.beside_service import BesideService
from brim_lab.experiments.changing_workers import ChangingWorkers
from brim_lab.experiments.claims import error
from brim_lab.experiments.course import makespan
from brim_lab.experiments.two_jobs import SIDES, TwoJobs
from brim_lab.experiments.web_service import WebService


def findings_of(found: TwoJobs | WebService | ChangingWorkers, figure: Path) -> Findings:
    """Return the findings of an experiment that `brim demo` prints."""
    return Findings(
        numbers=numbers_of(found),
        table=table_of(found),
        sentence=sentence_of(found),
        figure=figure,
    )


def numbers_of(found: TwoJobs | BesideService | WebService | ChangingWorkers) -> dict[str, Any]:
    """Return all that was found, in types that JSON has."""
    numbers = {name: getattr(found, name) for name in found.__dataclass_fields__ if name != "scale"}
    content = {"claims": found.claims, "held": all(claim.held for claim in found.claims), **numbers}
    plain: dict[str, Any] = msgspec.to_builtins(content, str_keys=True)
    return plain


def table_of(
    found: TwoJobs | WebService | ChangingWorkers,
) -> tuple[Sequence[str], list[list[str]]]:
    """A heading and rows, of the last repetition."""
    if isinstance(found, ChangingWorkers):
        return _changing(found)
    if isinstance(found, WebService):
        return _web_service(found)
    names = (
        "run",
        "makespan s",
        "simulated s",
        "live / simulated",
        "second's first step after s",
        "weights",
    )
    rows = []
    for side in SIDES:
        courses, predicted = found.rounds[-1][side], found.predicted[side].makespan
        are_same = all(course.digest == found.calm[course.name] for course in courses)
        live = makespan(courses)
        times = [f"{live:.1f}", f"{predicted:.1f}", f"{error(live, predicted):+.1%}"]
        rows.append(
            [
                side,
                *times,
                f"{courses[1].to_first_step:.1f}",
                "as undisturbed" if are_same else "OTHERS",
            ]
        )
    return names, rows


def _changing(found: ChangingWorkers) -> tuple[Sequence[str], list[list[str]]]:
    rows = []
    for course, text in zip(
        [found.rounds[-1], *found.fixed], ["elastic", *map(str, found.scale.fixed)], strict=True
    ):
        sizes = sorted({count for _, count in course.workers if count})
        auc = f"{course.metric[-1][1]:.6f}"
        rows.append(
            [text, str(len(course.workers) - 2), " ".join(map(str, sizes)), auc, course.digest[:12]]
        )
    return ("workers", "changes", "sizes", "AUC", "weights"), rows


def _web_service(found: WebService) -> tuple[Sequence[str], list[list[str]]]:
    names = (
        "day",
        "requests",
        "lost",
        "median ms",
        "99 % within ms",
        "late",
        "replicas",
        "slots used",
        "steps",
    )
    seconds, slots = found.day.seconds, found.scale.slots
    days = {
        "service alone": found.alone,
        "beside training": found.beside,
        "the same, following": found.following,
        "fixed parts": found.fixed,
    }
    rows = [
        [
            name,
            f"{day.requests.made:,}",
            str(day.requests.lost),
            f"{1e3 * day.requests.median:.1f}",
            f"{1e3 * day.requests.slowest:.0f}",
            f"{day.late(found.day):.1%}",
            f"{day.replicas(seconds):.2f}",
            f"{day.use(slots, seconds):.1%}",
            str(day.steps) if day.training else "",
        ]
        for name, day in days.items()
    ]
    return names, rows


def sentence_of(found: TwoJobs | WebService | ChangingWorkers) -> str:
    """State the result of the experiment, or its failed claims."""
    broken = [
        f"{claim.claim}: {claim.got} (need: {claim.need})"
        for claim in found.claims
        if not claim.held
    ]
    if broken:
        return "\n".join(["It does not show what it claims:", *broken])
    if isinstance(found, TwoJobs):
        gang, elastic = (makespan(found.rounds[-1][side]) for side in ("gang", "elastic"))
        return (
            f"Elastic jobs share the cluster: both are done after {elastic:.0f} s instead of "
            f"{gang:.0f} s "
            f"({error(elastic, gang):+.0%}), the second does not wait, and the weights are the "
            "same, bit for bit."
        )
    if isinstance(found, WebService):
        return (
            f"Training has what the service leaves: {found.beside.steps} steps in the day in place of "
            f"{found.fixed.steps} with fixed parts, {found.use:.0%} of the slots in use, no request "
            "lost, and the weights of an undisturbed run, bit for bit."
        )
    return (
        f"{len(found.rounds[-1].workers) - 2} changes of workers leave no trace: after each epoch "
        "the AUC, and at the "
        "end the weights, are those of the runs at fixed numbers, bit for bit."
    )
