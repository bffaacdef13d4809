"""From the submission of a job to its first step, beside `brim train`: see README.md."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.brim_cluster import BrimCluster
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, ratio, seconds, table
from brim.domain.job import WorkerRange
from brim_lab.driver import Driver
from brim_lab.experiments.joined import joined_cluster
from brim_lab.experiments.scale import QUICK_TWO_JOBS

BENCHMARK = Path(__file__).parent
TRAINING_FILE = BENCHMARK.parent / "harness" / "training_file.py"
WORKERS, BATCH, STEPS = 2, 512, 20
TARGET = 2.0  # seconds from a submission to its first step
JOB = (
    *(str(TRAINING_FILE), "--workers", str(WORKERS), "--global-batch-size", str(BATCH)),
    *("--set", f"samples={STEPS * BATCH}"),
)


@dataclass(slots=True)
class Found:
    """Seconds to the first step."""

    from_submission: list[float] = field(default_factory=list)
    from_submit: list[float] = field(default_factory=list)
    from_train: list[float] = field(default_factory=list)


def first_step(run_dir: Path) -> float:
    """When it was made."""
    return float(json.loads((run_dir / "steps.jsonl").read_text().partition("\n")[0])["at"])


def submit(cluster: BrimCluster) -> tuple[float, float]:
    """From the submission, and from the command, to the first step of one job."""
    started = time.time()
    job = cluster.brim("submit", *JOB).strip()
    view = cluster.client.wait(job, timeout=120.0)
    if view.state != "done":
        raise RuntimeError(f"{job} is {view.state}: {view.problem}")
    first = first_step(Path(view.run))
    return first - view.submitted, first - started


def train() -> float:
    """From the command `brim train` to its first step."""
    directory = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    driver = Driver(PYTHONPATH=str(repository()))
    started = time.time()
    driver.call("train", *JOB, "--run-dir", str(directory / "run"), "--json")
    first = first_step(directory / "run")
    shutil.rmtree(directory, ignore_errors=True)
    return first - started


def over_hosts(report: Report, times: int) -> dict[str, list[float]]:
    """From the decision to the first step on nodes that have joined, forked and started anew."""
    scale = replace(QUICK_TWO_JOBS, slots=3, workers=3)
    all_of_them = WorkerRange(minimum=3, maximum=3)
    ways: dict[str, dict[str, str]] = {"forked": {}, "anew": {"OF_ITS": "own"}}
    found: dict[str, list[float]] = {way: [] for way in ways}
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    with joined_cluster(scale, folder, report.say) as cluster:
        for number in range(times):
            for way, variables in ways.items():
                job = cluster.submit(way, all_of_them, env=variables)
                job_timing = cluster.begin_and_cancel(job)
                story = cluster.client.explain(job.job)
                decided = next(each.at for each in story if each.event == "running")
                found[way].append(job_timing - decided)
            note = ", ".join(f"{way} {seconds[-1]:.2f} s" for way, seconds in found.items())
            report.say(f"{number + 1} of {times}: {note}")
    shutil.rmtree(folder, ignore_errors=True)
    forked = found["forked"]
    rows = [
        ("forked from the node's warm process", seconds(forked), ratio(found["anew"], forked)),
        ("started anew: it has variables of its own", seconds(found["anew"]), "1"),
    ]
    report.add(
        "One worker on each of three hosts. Seconds from the decision, which starts the job, to its "
        "first step, median (minimum–maximum).\n\n"
        + table(["how", "seconds", "times faster"], rows)
    )
    return found


def tell(report: Report, found: Found) -> None:
    within = sum(value <= TARGET for value in found.from_submission)
    rows = [
        ("submission to first step", seconds(found.from_submission), ""),
        (
            "`brim submit` to first step",
            seconds(found.from_submit),
            ratio(found.from_train, found.from_submit),
        ),
        ("`brim train` to first step", seconds(found.from_train), "1"),
    ]
    report.add(
        "Seconds, median (minimum–maximum).\n\n"
        + table(["what", "seconds", "times faster than brim train"], rows)
        + f"\n\n{within} of {len(found.from_submission)} submissions made their first step within "
        f"{TARGET:.0f} s; "
        f"median {statistics.median(found.from_submission):.2f} s."
    )


def plot(found: Found) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.2))
    axes = figure.subplots()
    series = {
        "submission": found.from_submission,
        "brim submit": found.from_submit,
        "brim train": found.from_train,
    }
    for place, values in enumerate(series.values()):
        axes.plot(values, [place] * len(values), "|", markersize=14)
    axes.axvline(TARGET, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(series)), list(series))
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds to the first step")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="It takes about a minute.")
    parser.add_argument("--quick", action="store_true", help="a smoke run: no report is written")
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="on nodes that have joined from three hosts; needs root",
    )
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    times = 2 if quick else 10
    if arguments.hosts:
        report = Report(BENCHMARK, "From a decision to the first step, on three hosts", seed=0)
        over = over_hosts(report, times)
        if not quick:
            report.write(over, name="hosts")
        return
    report = Report(BENCHMARK, "From a submission to its first step, beside brim train", seed=0)
    found = Found()
    with BrimCluster({"nodes": [{"name": "n1", "workers": WORKERS}]}) as cluster:
        report.say("once each, uncounted")
        submit(cluster), train()
        for number in range(times):
            submission, command = report.attempt(submit, cluster)
            found.from_submission.append(submission)
            found.from_submit.append(command)
            found.from_train.append(report.attempt(train))
            report.say(
                f"{number + 1} of {times}: {submission:.2f} s, brim train "
                f"{found.from_train[-1]:.2f} s"
            )
    tell(report, found)
    if not quick:
        report.write(asdict(found), plot(found))


if __name__ == "__main__":
    main()
