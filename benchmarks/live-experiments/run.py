"""ElasticDL's experiments 1 and 3, live, beside what the simulator predicts: see README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, seconds, spread, table
from brim_lab.experiments import scale as scales
from brim_lab.experiments.changing_workers import ChangingWorkers, changing_workers
from brim_lab.experiments.claims import error
from brim_lab.experiments.cluster import demo_cluster
from brim_lab.experiments.course import makespan
from brim_lab.experiments.figures import changing_workers_figure, two_jobs_figure
from brim_lab.experiments.joined import joined_cluster
from brim_lab.experiments.outcome import numbers_of
from brim_lab.experiments.scale import Scale
from brim_lab.experiments.two_jobs import SIDES, TwoJobs, two_jobs

HERE = Path(__file__).parent
_REPEAT = 2


def tell_two_jobs(report: Report, found: TwoJobs) -> None:
    rows = []
    for side in SIDES:
        spans = [makespan(each[side]) for each in found.rounds]
        waits = [each[side][1].to_first_step for each in found.rounds]
        predicted = found.predicted[side].makespan
        errors = [100 * error(span, predicted) for span in spans]
        same = sum(
            course.digest == found.calm[course.name]
            for each in found.rounds
            for course in each[side]
        )
        rows.append(
            [
                *(
                    side,
                    SIDES[side],
                    len(spans),
                    seconds(spans),
                    f"{predicted:.2f}",
                    spread(errors),
                ),
                *(seconds(waits), f"{same} of {2 * len(spans)}"),
            ]
        )
    head = ["run", "policy", "times", "makespan, s", "simulated, s", "live beyond simulated, %"]
    head += ["second: submission to first step, s", "weights as undisturbed"]
    gains = [
        100 * error(makespan(each["elastic"]), makespan(each["gang"])) for each in found.rounds
    ]
    report.add(
        f"## Two jobs that want {found.scale.workers} of {found.scale.slots} slots each, the "
        "second "
        f"{found.scale.gap:g} s after the first\n\nMedian (minimum–maximum).\n\n"
        + table(head, rows)
        + f"\n\nElastic against gang: {spread(gains)} % of the makespan."
    )


def tell_changing_workers(report: Report, found: ChangingWorkers) -> None:
    rows = []
    for name, courses in (
        ("elastic", list(found.rounds)),
        *((f"{n} workers", [one]) for n, one in zip(found.scale.fixed, found.fixed, strict=True)),
    ):
        changes = [float(len(course.workers) - 2) for course in courses]
        sizes = sorted({count for course in courses for _, count in course.workers if count})
        auc = sorted({f"{course.metric[-1][1]:.9f}" for course in courses})
        digests = sorted({course.digest[:12] for course in courses})
        redone = sum(course.redone for course in courses)
        rows.append(
            [
                *(name, len(courses), spread(changes, digits=0), " ".join(map(str, sizes)), redone),
                *(", ".join(auc), ", ".join(digests)),
            ]
        )
    head = ["run", "times", "changes of workers", "sizes", "steps redone", "AUC", "weights, sha256"]
    ends = [course.ended for course in found.rounds]
    report.add(
        f"## A job beside an online service that takes and gives slots every {found.scale.every:g} "
        "s\n\n"
        + table(head, rows)
        + f"\n\nThe elastic job took {seconds(ends)} s; simulated {found.predicted.makespan:.2f} s "
        "(which knows "
        "nothing of the evaluation after each epoch)."
    )


def tell_claims(report: Report, found: TwoJobs | ChangingWorkers) -> None:
    costs = found.learnt.overheads
    steps = ", ".join(f"{1 / rate:.3f} s on {n}" for n, rate in sorted(found.learnt.rates.items()))
    rows = [
        [claim.claim, claim.got, claim.need, "yes" if claim.held else "**no**"]
        for claim in found.claims
    ]
    report.add(
        "## What the simulator was told, and what held\n\nMeasured before, on a job of its own: a "
        "step takes "
        f"{steps} workers; a start costs {costs.start:.2f} s, a change of workers "
        f"{costs.fixed:.3f} s, an end "
        f"{costs.end:.2f} s. A claim holds if it held in every repetition.\n\n"
        + table(["claim", "found", "needed", "holds"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} Takes about 5 minutes each.")
    parser.add_argument("experiment", type=int, choices=(1, 3))
    parser.add_argument(
        "--repeat", type=int, default=_REPEAT, help=f"repetitions; default: {_REPEAT}"
    )
    parser.add_argument(
        "--path", help="experiment 3 on a sample of Criteo's logs: label, I1 to I13, C1 to C26"
    )
    parser.add_argument(
        "--by-rows",
        action="store_true",
        help="with --path: one table of hashed ids, trained by rows",
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="the slots on three hosts, the scheduler on a fourth, made of namespaces; needs root",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    arguments = parser.parse_args()
    if arguments.hosts and arguments.path:
        parser.error("--path names a file of this host, which the others do not have")
    os.environ["PYTHONPATH"] = str(repository())
    run: Callable[..., Any] = two_jobs if arguments.experiment == 1 else changing_workers
    repeat = 1 if arguments.quick else arguments.repeat
    title = f"ElasticDL's experiment {arguments.experiment}, live" + (
        " on Criteo" if arguments.path else ""
    )
    title += ", by rows" if arguments.by_rows else ""
    title += ", over three hosts" if arguments.hosts else ""
    report = Report(HERE, title, seed=0)
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    on = joined_cluster if arguments.hosts else demo_cluster
    found = run(_scale(arguments), folder, report.say, repeat=repeat, on=on)
    if isinstance(found, TwoJobs):
        tell_two_jobs(report, found)
        figure = two_jobs_figure(found)
    else:
        tell_changing_workers(report, found)
        figure = changing_workers_figure(found)
    tell_claims(report, found)
    shutil.rmtree(folder, ignore_errors=True)
    if not arguments.quick:
        name = f"experiment-{arguments.experiment}" + ("-criteo" if arguments.path else "")
        name += "-by-rows" if arguments.by_rows else ""
        name += "-hosts" if arguments.hosts else ""
        report.write(numbers_of(found), figure, name=name)


def _scale(arguments: argparse.Namespace) -> Scale:
    if arguments.experiment == 1:
        return scales.QUICK_TWO_JOBS if arguments.quick else scales.TWO_JOBS
    scale = scales.QUICK_CHANGING_WORKERS if arguments.quick else scales.CHANGING_WORKERS
    if arguments.path:
        # A tenth of the rows that the flights have: smaller batches and more epochs, for as many
        # steps.
        scale = replace(
            scale,
            file=HERE / "criteo.py",
            parameters={
                "path": str(Path(arguments.path).resolve()),
                "kind": "by_rows" if arguments.by_rows else "dense",
            },
            global_batch_size=1200,
            wait=0.8e-3,
            epochs=2 if arguments.quick else 5,
        )
    return scale


if __name__ == "__main__":
    main()
