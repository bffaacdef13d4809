"""A scheduler of a benchmark's own: started, handed jobs, watched, ended, and its journal replayed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness import waiting
from brim.client import Client
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.measuring import Measured
from brim.domain.resizing import Overheads
from brim.domain.submission import Submission, fingerprint
from brim.scheduler.replay import Replay, replay
from brim.storage.book import Book
from brim.storage.database import Database
from brim.telemetry.history import RunHistory, read_history
from brim.wire.cluster import JobView, Submit

__all__ = ["Asked", "BrimCluster", "Kind", "Learnt", "measure"]

FILE = Path(waiting.__file__)
_LOOK = 0.1
_SIZES = (1, 2, 4, 8)
_STEPS_AT_A_SIZE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A model: jobs of one kind take equally long steps.

    Args:
        wait: seconds that a micro-batch waits.
        salt: makes the same model another one, for whoever looks it up by name.
    """

    name: str
    wait: float
    maximum: int = 8
    salt: str = ""

    def submission(
        self, *, epochs: int, workers: WorkerRange | None = None, deadline: float | None = None, tenant: str = "default"
    ) -> Submission:  # fmt: skip
        """A job of this kind."""
        parameters = {"wait": repr(self.wait)} | ({"salt": self.salt} if self.salt else {})
        spec = JobSpec(
            file=str(FILE),
            parameters=parameters,
            workers=workers or WorkerRange(minimum=1, maximum=self.maximum),
            epochs=epochs,
            global_batch_size=waiting.GLOBAL_BATCH,
            micro_batches=waiting.MICRO_BATCHES,
            directory=str(FILE.parent),
        )
        return Submission(
            spec=spec, fingerprint=fingerprint(spec, FILE.read_bytes()), deadline=deadline, tenant=tenant
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What was measured before.

    Args:
        steps: made at each size, and the seconds that they took.
        start: seconds from a submission to its first step and from its last step to its end, beyond those of steps.
        resize: seconds beyond those of steps between the last step of a world and the first of the next.
    """

    measured: Measured
    start: float
    resize: float


@dataclass(slots=True)
class Asked:
    """What a job was seen to be, over time: (when, its view), seconds since 1970."""

    views: list[tuple[float, JobView]] = field(default_factory=list)

    @property
    def last(self) -> JobView:
        return self.views[-1][1]


class BrimCluster:
    """A scheduler with a state directory of its own.

    Args:
        cluster: the content of its cluster.yaml.
        known: kinds that its database knows from before.
    """

    def __init__(self, cluster: dict[str, Any], *, known: Sequence[tuple[Kind, Learnt]] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
        self.state = self.folder / "state"
        self.asked: dict[str, Asked] = {}
        self.state.mkdir(mode=0o700)
        self._file = self.folder / "cluster.yaml"
        self._file.write_text(json.dumps(cluster) + "\n")  # JSON is YAML
        database = Database(self.state / "scheduler.db")
        for kind, learnt in known:
            Book(database).learn(kind.submission(epochs=1), learnt.measured, waiting.STEPS_PER_EPOCH)
        database.close()

    def __enter__(self) -> Self:
        self.brim("up", "--cluster", str(self._file))
        self.client = Client(self.state)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.brim("down", "--kill")
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"the state of the cluster that failed: {self.state}", file=sys.stderr, flush=True)

    def brim(self, *words: str) -> str:
        """The output of one of brim's verbs, as its user would type it."""
        command = [sys.executable, "-m", "brim.cli", *words]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BRIM_")}
        environment |= {"BRIM_HOME": str(self.state), "PYTHONPATH": str(FILE.parents[2])}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=180, check=False
        )
        if done.returncode:
            raise RuntimeError(f"brim {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout

    def submit(self, name: str, submission: Submission) -> str:
        """Hand a job in; its id."""
        return self.client.submit(Submit(submission=submission, name=name)).job

    def look(self) -> list[JobView]:
        """Write down what every job is now."""
        views, now = self.client.jobs(), time.time()
        for view in views:
            self.asked.setdefault(view.job, Asked()).views.append((now, view))
        return views

    def until(self, what: str, true: Callable[[], Any], *, timeout: float = 120.0) -> Any:
        """Look until `true()` is; its value."""
        end = time.monotonic() + timeout
        while True:
            self.look()
            value = true()
            if value:
                return value
            if time.monotonic() > end:
                raise RuntimeError(f"no {what} within {timeout:g} s")
            time.sleep(_LOOK)

    def history(self, job: str) -> RunHistory:
        """The records of a job's run."""
        return read_history(Path(self.asked[job].last.run))

    def database(self) -> Database:
        return Database(self.state / "scheduler.db")

    def replay(self) -> Replay:
        """Its whole journal, decided again."""
        database = self.database()
        try:
            return replay(database.cycles())
        finally:
            database.close()


def measure(kinds: Sequence[Kind], *, slots: int, say: Callable[[str], None]) -> dict[str, Learnt]:
    """What each kind's step takes at 1, 2, 4 and 8 workers, and what a start and a resize cost, one after another."""
    found = {}
    with BrimCluster({"nodes": [{"name": "n1", "workers": slots}]}) as cluster:
        for kind in kinds:
            found[kind.name] = learnt = _measure(cluster, kind)
            steps = ", ".join(f"{1000 / rate:.0f} ms on {n}" for n, rate in learnt.measured.rates.items())
            say(
                f"{kind.name}: a step takes {steps}; a start {learnt.start:.2f} s, a resize {learnt.resize:.2f} s"
            )
    return found


def _measure(cluster: BrimCluster, kind: Kind) -> Learnt:
    sizes = [n for n in _SIZES if n <= kind.maximum]
    one = WorkerRange(minimum=1, maximum=1)
    job = cluster.submit(kind.name, kind.submission(epochs=1000, workers=one))
    measured = Measured()
    for size in sizes:
        if size > 1:
            cluster.client.resize(job, WorkerRange(minimum=size, maximum=size))
        cluster.until(f"{kind.name} on {size} workers", lambda n=size: _has_stepped(cluster, job, n))
    asked = time.time()
    cluster.client.suspend(job)
    cluster.until("its suspension", lambda: cluster.asked[job].last.state == "suspended")
    ended = time.time()
    cluster.client.cancel(job)
    history = cluster.history(job)
    worlds = _worlds(history)
    for before, after in pairwise(history.steps):
        if before.round == after.round:
            measured.add(worlds[after.round], after.at - before.at)
    rates = measured.rates
    view = cluster.asked[job].last
    first, last = history.steps[0], history.steps[-1]
    gaps = [
        max(0.0, after.at - before.at - 1 / rates[worlds[after.round]])
        for before, after in pairwise(history.steps)
        if before.round != after.round and worlds[after.round] in rates
    ]
    end = max(0.0, ended - max(asked, last.at))
    start = first.at - view.submitted - 1 / rates[1]
    return Learnt(measured=measured, start=start + end, resize=sum(gaps) / len(gaps) if gaps else 0.0)


def _worlds(history: RunHistory) -> dict[int, int]:
    """World size by round."""
    from brim.telemetry.records import RoundFormed

    return {each.round: each.world_size for each in history.events if isinstance(each, RoundFormed)}


def _has_stepped(cluster: BrimCluster, job: str, size: int) -> bool:
    history = cluster.history(job)
    worlds = _worlds(history)
    return sum(worlds.get(step.round) == size for step in history.steps) >= _STEPS_AT_A_SIZE


def overheads_of(learnt: Sequence[Learnt]) -> Overheads:
    """What starts and resizes cost, on average of these."""
    resize = sum(each.resize for each in learnt) / len(learnt)
    start = sum(each.start for each in learnt) / len(learnt)
    return Overheads(name="measured", fixed=resize, start=max(0.0, start - resize))
