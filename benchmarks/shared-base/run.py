"""Memory of several adapters that are tuned on one base on one host: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table

FOLDER = Path(__file__).parent
SCRIPT = str(FOLDER / "tune.py")
# A worker of each job is replaced before it measures: what a newcomer has counts, too.
OPTIONS = ("--workers", "1", "--checkpoint-every", "5", "--faults", "kill rank 0 at step 7")
Memory = dict[str, int]


def environment(source: Path, *, copies: bool) -> dict[str, str]:
    path = f"{source}{os.pathsep}{repository()}"
    variables = {**os.environ, "PYTHONPATH": path, "BRIM_KEEP_WARM": "0"}
    return {**variables, "COPY": "1"} if copies else variables


def measure(source: Path, base: Path, *, jobs: int, copies: bool) -> tuple[list[Memory], set[str]]:
    """The memory of a worker of each job, and the digests of their weights."""
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        place = Path(folder)
        (place / "meeting").mkdir()
        words = [SCRIPT, "tune", str(base), str(place / "meeting"), str(jobs)]
        run = [sys.executable, "-m", "brim", "run", "--json", *OPTIONS, "--run-dir"]
        processes = [
            subprocess.Popen(
                [*run, str(place / f"run-{number}"), "--", sys.executable, *words],
                env=environment(source, copies=copies),
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(jobs)
        ]
        weights: set[str] = set()
        for process in processes:
            output, problems = process.communicate()
            if process.returncode:
                raise RuntimeError(problems[-2000:])
            weights.add(json.loads(output)["weights_sha256"])
        shares = [json.loads(path.read_text()) for path in (place / "meeting").glob("*.measured")]
    return shares, weights


def row(name: str, shares: list[Memory]) -> tuple[str, ...]:
    def mb(field: str) -> str:
        return f"{sum(memory[field] for memory in shares) / 1000:,.0f}"

    return name, mb("pss"), mb("base_pss"), mb("base_own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="src of another checkout, to compare with")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one way alone")
    options = parser.parse_args()
    report = Report(FOLDER, "Several adapters on one base: memory of a host", seed=0)
    source = repository() / "src"
    ways = {"now": (source, False)}
    if not options.quick:
        earlier = {"before": (options.before.resolve(), False)} if options.before else {}
        ways = {"a base that each job has copied": (source, True), **earlier, **ways}
    rows, weights, data = [], set[str](), dict[str, list[Memory]]()
    with tempfile.TemporaryDirectory(prefix="brim-base-") as base:
        subprocess.run(
            [sys.executable, SCRIPT, "make", base],
            env=environment(source, copies=False),
            check=True,
        )
        size = (Path(base) / "model.safetensors").stat().st_size
        for name, (way, copies) in ways.items():
            shares, digests = measure(way, Path(base), jobs=options.jobs, copies=copies)
            weights |= digests
            rows.append(row(name, shares))
            data[name] = shares
            report.say(" ".join(rows[-1]))
    if len(weights) > 1:
        raise RuntimeError("the jobs end with different weights")
    title = f"{options.jobs} jobs, a base of {size / 1e6:,.0f} MB. All end with the same weights."
    heads = ["MB in all", "workers (PSS)", "the base's file (PSS)", "of it, pages of one job alone"]
    report.add(f"{title}\n\n{table(heads, rows)}")
    if not options.quick:
        report.write(data)


if __name__ == "__main__":
    main()
