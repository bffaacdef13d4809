"""The cost for training of checkpoints of a large table: its base, deltas upon it, and a restore.

    python -m benchmarks.checkpoints.tables --rows 10000000           # a report; some minutes
    python -m benchmarks.checkpoints.tables --rows 1000000 --quick    # a smoke run

One process has a table of dimension 16 with Adagrad's sums, and changes some thousand rows in each
step. The rows are drawn with a power law, as ids of clicks are.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.harness.report import Report, ms, seconds, spread, table
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.table_parts import Lineage
from brim.embeddings.table_file import NumberedRows
from brim.storage.checkpoints import Store
from brim.storage.file_stores import Directory
from brim.train.checkpoints import Checkpoints
from brim.train.state.job_state import TrainingState
from brim.wire.messages import CheckpointDrafted, CheckpointMade, Publish, WorkerMessage

DIM, LOOKUPS, EVERY = 16, 20_000, 200  # rows that a step looks up, not all of them distinct; steps
SPEC = JobSpec(parameters={}, workers=WorkerRange(minimum=1, maximum=1))
BENCHMARK = Path(__file__).parent


class State:
    """The state of a job that has a table and nothing else."""

    def __init__(self, rows: int) -> None:
        self.metrics: dict[str, float] = {}
        self.measured = self.unsound_since = None
        self.lineage = Lineage()
        self.committed = 0
        self.fields = {name: torch.zeros(rows, DIM) for name in ("weight", "sum")}
        self.changed = torch.zeros(rows, dtype=torch.int64)
        self.fields["weight"].normal_()
        self.tables = [NumberedRows("table.weight", self.fields, self.changed)]

    def step(self) -> float:
        """The seconds of a step: it reads some rows, and writes them."""
        started = time.perf_counter()
        ids = (torch.rand(LOOKUPS).pow(8) * len(self.changed)).long().unique()
        for field in self.fields.values():
            field.index_copy_(0, ids, field.index_select(0, ids) + 0.001)
        self.committed += 1
        self.changed.index_fill_(0, ids, self.committed)
        return time.perf_counter() - started

    def get(self) -> dict[str, Any]:
        return {"model": {"committed": torch.tensor(self.committed)}, "optimizer": {"state": {}}}

    def put(self, tree: dict[str, Any]) -> None:
        self.committed = int(tree["model"]["committed"])

    def start(self) -> None:
        pass

    def clear_tables(self) -> None:
        pass

    def take_back(self) -> None:
        pass

    def keep_tables(self) -> None:
        pass


def checkpoints_of(
    state: State, directory: Path, checkpoints_made: list[CheckpointMade]
) -> Checkpoints:
    def tell(message: WorkerMessage) -> None:
        if isinstance(message, CheckpointDrafted):
            checkpoints.permit(Publish(step=message.step, writers=[]))
        elif isinstance(message, CheckpointMade):
            checkpoints_made.append(message)

    checkpoints = Checkpoints(
        cast(TrainingState, state), SPEC, context=None, tell=tell, listen=time.sleep
    )
    checkpoints.keep_in(str(directory), writer="w1")
    return checkpoints


class Trial:
    """Training that goes on, and checkpoints beside it."""

    def __init__(self, rows: int, directory: Path) -> None:
        self.state, self.made = State(rows), list[CheckpointMade]()
        self.checkpoints = checkpoints_of(self.state, directory, self.made)
        self.beside: list[float] = []  # seconds of steps while something was read or written
        self.pauses: list[float] = []  # seconds that training waited

    def begin(self) -> None:
        """Begin a checkpoint, and train until it has all of the state."""
        while True:
            started = time.perf_counter()
            self.checkpoints.begin(ends_epoch=False)
            self.checkpoints.await_copy()
            self.pauses.append(time.perf_counter() - started)
            if not self.checkpoints._is_owed:
                return
            while not self.checkpoints.is_due(1):
                self.beside.append(self.state.step())

    def finish(self) -> None:
        """Train until it is official."""
        official = len(self.made) + 1
        while len(self.made) < official:
            self.beside.append(self.state.step())


def measure(rows: int, *, deltas: int, directory: Path) -> dict[str, Any]:
    trial = Trial(rows, directory)
    state, messages = trial.state, trial.made
    lone_steps = [state.step() for _ in range(EVERY)][20:]
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for number in range(deltas + 1):
        for _ in range(EVERY if number else 0):
            state.step()
        started = time.perf_counter()
        trial.begin()
        trial.finish()
        times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
    (stored,) = Store(Directory(directory)).load(messages[-1].step).tables
    trial.checkpoints.drain()
    started = time.perf_counter()
    assert trial.checkpoints.restore()[0]
    restored = time.perf_counter() - started
    return {
        "rows": rows,
        "table_bytes": sum(field.nbytes for field in state.fields.values()),
        "first_seconds": times[0],
        "first_bytes": messages[0].size_bytes,
        "step_alone": lone_steps,
        "step_beside": trial.beside,
        "pauses": trial.pauses,
        "later_seconds": times[1:],
        "later_bytes": [message.size_bytes for message in messages[1:]],
        "parts": [[part.step, part.rows, part.size_bytes] for part in stored.parts],
        "restore_seconds": restored,
        "restored_bytes": sum(file.size_bytes for file in stored.files),
        "more_memory_bytes": peak * 1024,
    }


def tell(report: Report, results: list[dict[str, Any]]) -> None:
    rows: list[list[str]] = []
    for row_name, cell in (
        ("table with Adagrad's sums, GB", lambda r: f"{r['table_bytes'] / 1e9:.2f}"),
        ("first checkpoint, with a base: GB", lambda r: f"{r['first_bytes'] / 1e9:.2f}"),
        ("… seconds until official, beside training", lambda r: f"{r['first_seconds']:.1f}"),
        (
            f"later ones, every {EVERY} steps: MB",
            lambda r: spread([b / 1e6 for b in r["later_bytes"]]),
        ),
        ("… seconds until official, beside training", lambda r: seconds(r["later_seconds"])),
        ("training waits, each time, ms", lambda r: ms(r["pauses"])),
        ("a step while nothing is written, ms", lambda r: ms(r["step_alone"])),
        ("a step beside what is written, ms", lambda r: ms(r["step_beside"])),
        ("restore: GB", lambda r: f"{r['restored_bytes'] / 1e9:.2f}"),
        ("… seconds", lambda r: f"{r['restore_seconds']:.1f}"),
        ("more memory than before, at most, GB", lambda r: f"{r['more_memory_bytes'] / 1e9:.2f}"),
    ):
        rows.append([row_name, *map(cell, results)])
    report.add("Median (minimum–maximum) where there are several.")
    report.add(table(["", *(f"{result['rows']:,} rows" for result in results)], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report = Report(BENCHMARK, "Checkpoints of large tables", seed=0)
    results = []
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory(prefix="brim-checkpoints-") as scratch:
            results.append(
                measure(rows, deltas=1 if arguments.quick else 5, directory=Path(scratch))
            )
        report.say(f"{rows:,} rows")
    tell(report, results)
    if not arguments.quick:
        report.write({"results": results}, name="tables")


if __name__ == "__main__":
    main()
