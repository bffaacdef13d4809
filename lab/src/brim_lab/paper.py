"""The figures of the ElasticFlow paper that public data allows, simulated.

The published values stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brim.domain.cluster import Cluster
from brim.domain.workload import Job
from brim.errors import SpecError
from brim.policies.baselines.ceiling import ceiling_per_job
from brim.simulator.compare import run_policy
from brim.simulator.engine import Settings
from brim.simulator.profiles import Profiles, read_profiles
from brim.simulator.run import SimulatedRun
from brim.simulator.traces import read_trace
from brim.storage.files import write_whole

_CODED = ("edf", "gandiva", "tiresias", "themis", "elasticflow")
_POLICIES = ("brim", "elasticflow", "edf", "gandiva", "tiresias", "themis", "pollux")

# Deadline satisfactory ratios as the paper's plots have them: EDF, Gandiva, Tiresias, Themis,
# ElasticFlow.
_PUBLISHED: dict[str, tuple[float, ...]] = {
    "6a": (0.08, 0.24, 0.32, 0.28, 0.64),
    "6b": (0.0872, 0.2103, 0.4564, 0.3897, 0.6667),
    "8a": (0.118, 0.090, 0.287, 0.312, 0.728),
    "cluster01": (0.182, 0.246, 0.478, 0.464, 0.788),
    "cluster02": (0.228, 0.286, 0.470, 0.431, 0.822),
    "cluster03": (0.095, 0.314, 0.401, 0.389, 0.455),
    "cluster04": (0.007, 0.228, 0.120, 0.432, 0.631),
    "cluster05": (0.375, 0.228, 0.420, 0.430, 0.832),
    "cluster06": (0.105, 0.381, 0.466, 0.425, 0.607),
    "cluster07": (0.046, 0.351, 0.346, 0.437, 0.665),
    "cluster08": (0.252, 0.325, 0.373, 0.423, 0.896),
    "cluster09": (0.800, 0.329, 0.468, 0.456, 0.938),
    "cluster10": (0.769, 0.354, 0.473, 0.431, 0.981),
}
_LARGE_CLUSTERS = {
    "cluster04": "128x8",
    "cluster07": "128x8",
    "cluster08": "128x8",
    "cluster09": "128x8",
    "cluster10": "32x8",
}
_FIG9 = {
    "8x8": (0.026, 0.203, 0.452, 0.926),
    "16x8": (0.118, 0.326, 0.835, 0.949),
    "32x8": (0.118, 0.658, 0.939, 0.944),
}
_FIG11 = {"0.2": (0.10, 0.24, 0.46, 0.40, 0.67), "0.5": (0.23, 0.19, 0.42, 0.36, 0.68)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One bar of a figure: the share of deadlines met.

    Figures with best-effort jobs have the mean JCT of these too.
    """

    figure: str
    trace: str
    policy: str
    ratio: float | None
    published: float | None = None
    best_effort_jct: float | None = None


@dataclass(frozen=True, slots=True)
class _Bench:
    """A trace on a cluster."""

    figure: str
    trace: str
    jobs: tuple[Job, ...]
    cluster: Cluster
    slot: float


def bars(
    data: Path, *, coded: Sequence[str] = _CODED, own_policies: Sequence[str] = _POLICIES
) -> Iterator[Cell]:
    """Figures 6a, 6b, 8a, 8b, 9 and 11, as far as `data` has their traces.

    Args:
        data: a folder with itp/, generated/ and profiles/a100, profiles/t4.
    """
    for bench in _benches(data):
        published = dict(
            zip(_CODED, _PUBLISHED.get(bench.trace, _PUBLISHED.get(bench.figure, ())), strict=False)
        )
        # ElasticFlow as coded takes hours on the large traces, as the artifact does.
        names = [n for n in coded if len(bench.jobs) <= 300 or n in ("gandiva", "tiresias")]
        for name in names:
            yield _cell(bench, f"{name}:as-coded", published.get(name))
        for name in own_policies:
            yield _cell(bench, name, None)
        devices = bench.cluster.devices
        limit = ceiling_per_job(bench.jobs, devices=devices)
        yield Cell(figure=bench.figure, trace=bench.trace, policy="ceiling", ratio=limit)
    yield from _ablation(data)
    yield from _best_effort(data)


def _cell(bench: _Bench, name: str, published: float | None) -> Cell:
    slot = bench.slot if ":" in name else 0.0
    result = run_policy(name, bench.jobs, bench.cluster, settings=Settings(), slot=slot)
    free = [
        o.finished - o.job.submitted
        for o in result.run.outcomes
        if o.finished and o.job.deadline is None
    ]
    return Cell(
        figure=bench.figure,
        trace=bench.trace,
        policy=name,
        ratio=result.metrics.deadline_satisfactory_ratio,
        published=published,
        best_effort_jct=sum(free) / len(free) if free else None,
    )


def _profiles(data: Path, kind: str) -> Profiles:
    return read_profiles(data / "profiles" / kind)


def _benches(data: Path) -> Iterator[_Bench]:
    found = False
    whole = data / "itp" / "195job.csv"
    if whole.exists():
        found = True
        jobs = read_trace(whole, _profiles(data, "a100"))
        yield _Bench("6a", "first 25 of 195job", jobs[:25], Cluster.parse("4x8"), 240)
        yield _Bench("6b", "195job", jobs, Cluster.parse("16x8"), 240)
    t4 = data / "itp" / "fig8a_t4_195jobs.csv"
    if t4.exists():
        yield _Bench("8a", "t4", read_trace(t4, _profiles(data, "t4")), Cluster.parse("16x4"), 60)
    for path in sorted((data / "itp").glob("cluster*.csv")):
        found = True
        shape = Cluster.parse(_LARGE_CLUSTERS.get(path.stem, "64x8"))
        yield _Bench("8b", path.stem, read_trace(path, _profiles(data, "a100")), shape, 60)
    if not found:
        raise SpecError(
            "--data", got=str(data), need="a folder with itp/195job.csv and profiles/a100"
        )


def _ablation(data: Path) -> Iterator[Cell]:
    path = data / "generated" / "1000job_1500lam.csv"
    if path.exists():
        jobs = read_trace(path, _profiles(data, "a100"))
        for shape, published in _FIG9.items():
            bench = _Bench("9", shape, jobs, Cluster.parse(shape), 240)
            names = ("edf:as-coded", "edf-admission:as-coded")
            for name, value in zip(names, published, strict=False):
                yield _cell(bench, name, value)
            for name, paper in (
                ("edf", None),
                ("edf-admission", None),
                ("elasticflow", published[3]),
                ("brim", None),
            ):
                yield _cell(bench, name, paper)


def _best_effort(data: Path) -> Iterator[Cell]:
    for share, published in _FIG11.items():
        path = data / "generated" / f"200jobs_900lam_{share}.csv"
        if path.exists():
            jobs = read_trace(path, _profiles(data, "a100"))
            bench = _Bench("11", share, jobs, Cluster.parse("8x8"), 240)
            for name, value in zip(_CODED, published, strict=True):
                yield _cell(bench, f"{name}:as-coded", value)
            for name in _POLICIES:
                yield _cell(bench, name, None)


def efficiency(run: SimulatedRun) -> list[tuple[float, float]]:
    """Figure 10's cluster efficiency over time.

    It is the sum of T(n)/T(1) over running jobs, per device.
    """
    curves = {outcome.job.id: outcome.job.curve for outcome in run.outcomes}
    now: dict[str, float] = {}
    line = []
    for change in run.changes:
        curve = curves[change.job]
        now[change.job] = curve.rate(change.after) / curve.rate(1) if change.after else 0.0
        line.append((change.at, sum(now.values()) / run.devices))
    return line


def timelines(
    data: Path, *, policies: Sequence[str] = ("brim", "elasticflow", "edf", "gandiva")
) -> dict[str, Any]:
    """Figures 7a, 7b and 10 over time: devices in use, jobs submitted and promised, efficiency."""
    found: dict[str, Any] = {}
    recorded = Settings(record=True)
    for figure, path, shape in (
        ("7", data / "itp" / "195job.csv", "16x8"),
        ("10", data / "generated" / "100jobs_1500lam.csv", "16x8"),
    ):
        if path.exists():
            jobs = read_trace(path, _profiles(data, "a100"))
            for name in policies:
                run = run_policy(name, jobs, Cluster.parse(shape), settings=recorded).run
                promised = sorted(o.job.submitted for o in run.outcomes if o.admitted)
                found[f"{figure}:{name}"] = {
                    "submitted": [job.submitted for job in jobs],
                    "promised": promised,
                    "devices": [(time, used) for time, used, _ in run.usage],
                    "efficiency": efficiency(run),
                }
    return found


def draw(
    out_folder: Path, data: Path, *, tell: Callable[[str], None] = lambda _: None
) -> list[Cell]:
    """Every figure as a PNG in `out_folder`, and all numbers as figures.json."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out_folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for cell in bars(data):
        tell(f"{cell.figure} {cell.trace} {cell.policy}")
        cells.append(cell)
    for figure, trace in sorted({(cell.figure, cell.trace) for cell in cells}):
        rows = [cell for cell in cells if (cell.figure, cell.trace) == (figure, trace)]
        plot, axes = plt.subplots(figsize=(9, 4))
        axes.bar([c.policy for c in rows], [c.ratio or 0.0 for c in rows], label="simulated here")
        paper: list[Any] = [c.published for c in rows]
        axes.plot([c.policy for c in rows], paper, "k_", markersize=24, label="published")
        axes.set(
            ylim=(0, 1.05),
            ylabel="deadline satisfactory ratio",
            title=f"Fig {figure}: {trace} (simulated)",
        )
        axes.tick_params(axis="x", rotation=40)
        plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
        axes.legend()
        plot.tight_layout()
        plot.savefig(out_folder / f"fig{figure}_{trace.replace(' ', '_')}.png", dpi=110)
        plt.close(plot)
    lines = timelines(data)
    for name, key, label in (
        ("7", "devices", "devices in use"),
        ("10", "efficiency", "cluster efficiency"),
    ):
        plot, axes = plt.subplots(figsize=(9, 4))
        for policy, found in lines.items():
            if policy.startswith(f"{name}:") and found[key]:
                start = found[key][0][0]
                xs, ys = [(t - start) / 3600 for t, _ in found[key]], [y for _, y in found[key]]
                axes.step(xs, ys, where="post", label=policy.partition(":")[2])
        axes.set(xlabel="hours", ylabel=label, title=f"Fig {name} (simulated)")
        axes.legend()
        plot.tight_layout()
        plot.savefig(out_folder / f"fig{name}_{key}.png", dpi=110)
        plt.close(plot)
    body = {"bars": [asdict(cell) for cell in cells], "lines": lines}
    write_whole(out_folder / "figures.json", (json.dumps(body) + "\n").encode())
    return cells
