"""A scheduler of a benchmark's own: started, handed jobs, watched, ended,
and its journal replayed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.harness import waiting
from brim.client import Client
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.measuring import Measured
from brim.domain.resizing import Overheads, measured_overheads
from brim.domain.submission import Submission, fingerprint
from brim.scheduler.replay import Replay, replay
from brim.storage.book import Book
from brim.storage.database import Database
from brim.telemetry.history import RunHistory, read_history
from brim.wire.cluster import JobView, Submit
from brim_lab.driver import MARK, Driver

FILE = Path(waiting.__file__)
_LOOK = 0.1
_EPOCHS = 16  # of a job that is to be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A model: jobs of one kind take equally long steps.

    Args:
        wait: seconds that a micro-batch waits.
        salt: makes the same model another one for look-ups by name.
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
            spec=spec,
            fingerprint=fingerprint(spec, FILE.read_bytes()),
            deadline=deadline,
            tenant=tenant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The measurements of a scheduler.

    Args:
        measured: steps and the seconds that they took, by kind.
        costs: seconds of starts, resizes and ends.
    """

    measured: Mapping[str, Measured]
    costs: Mapping[str, Sequence[float]]

    @property
    def overheads(self) -> Overheads:
        return measured_overheads({kind: list(seconds) for kind, seconds in self.costs.items()})


@dataclass(slots=True)
class Asked:
    """The views of a job over time: (when, its view), seconds since 1970."""

    views: list[tuple[float, JobView]] = field(default_factory=list)

    @property
    def last(self) -> JobView:
        return self.views[-1][1]


class BrimCluster:
    """A scheduler with a state directory of its own.

    Args:
        cluster: the content of its cluster.yaml.
        learnt: earlier measurements of these `kinds` in its database.
    """

    def __init__(
        self, cluster: dict[str, Any], *, learnt: Learnt | None = None, kinds: Sequence[Kind] = ()
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
        self.state = self.folder / "state"
        self.asked: dict[str, Asked] = {}
        self._driver = Driver(BRIM_HOME=str(self.state), PYTHONPATH=str(FILE.parents[2]))
        self.state.mkdir(mode=0o700)
        self._file = self.folder / "cluster.yaml"
        self._file.write_text(json.dumps(cluster) + "\n")  # JSON is YAML
        database = Database(self.state / "scheduler.db")
        if learnt is not None:
            _teach(Book(database), learnt, kinds)
        database.close()

    def __enter__(self) -> Self:
        self.brim("up", "--cluster", str(self._file), "--env", MARK)
        self.client = Client(self.state)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.brim("down", "--kill")
        self._driver.end()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(
                f"the state of the cluster that failed: {self.state}", file=sys.stderr, flush=True
            )

    def brim(self, *words: str) -> str:
        """The output of one of brim's verbs, as its user would type it."""
        return self._driver.call(*words).stdout

    def start(self, *words: str, output: IO[bytes]) -> subprocess.Popen[str]:
        """Start a verb that goes on, and has all it prints written to a file."""
        return self._driver.start(*words, stdout=output, stderr=output)

    def warm_up(self, kind: Kind) -> None:
        """Run a short job: its node has then imported the packages of jobs, as that of a scheduler
        that is up for long.
        """
        job = self.submit("warm-up", kind.submission(epochs=1))
        self.until("a warm node", lambda: self.asked[job].last.has_ended)
        self.check(job)

    def check(self, job: str) -> None:
        """Raises RuntimeError unless a job that has ended is done."""
        last = self.asked[job].last
        if last.state != "done":
            raise RuntimeError(f"{job} is {last.state}: {last.problem}")

    def submit(self, name: str, submission: Submission) -> str:
        """Hand a job in; its id."""
        return self.client.submit(Submit(submission=submission, name=name)).job

    def look(self) -> list[JobView]:
        """Write down the present view of every job."""
        views, now = self.client.jobs(), time.time()
        for view in views:
            self.asked.setdefault(view.job, Asked()).views.append((now, view))
        return views

    def has_ended(self, job: str) -> bool:
        return self.asked[job].last.has_ended

    def until(self, subject: str, true: Callable[[], Any], *, timeout: float = 120.0) -> Any:
        """Look until `true()` is; its value."""
        end = time.monotonic() + timeout
        while True:
            self.look()
            value = true()
            if value:
                return value
            if time.monotonic() > end:
                raise RuntimeError(f"no {subject} within {timeout:g} s")
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


def _teach(book: Book, learnt: Learnt, kinds: Sequence[Kind]) -> None:
    for kind in kinds:
        book.learn(kind.submission(epochs=1), learnt.measured[kind.name], waiting.STEPS_PER_EPOCH)
    for cost, seconds in learnt.costs.items():
        for second in seconds:
            book.learn_cost(cost, second)


def measure(kinds: Sequence[Kind], *, slots: int, say: Callable[[str], None]) -> Learnt:
    """Let a scheduler profile one job of each kind after another, and return its measurements."""
    with BrimCluster({"nodes": [{"name": "n1", "workers": slots}]}) as cluster:
        cluster.warm_up(replace(kinds[0], salt="warm-up"))
        for kind in kinds:
            job = cluster.submit(kind.name, kind.submission(epochs=_EPOCHS))
            cluster.until(f"{job}'s end", partial(cluster.has_ended, job))
            cluster.check(job)
        database = cluster.database()
        book = Book(database)
        found = Learnt(
            measured={
                kind.name: book.measured(kind.submission(epochs=1).fingerprint) for kind in kinds
            },
            costs=dict(book.costs),
        )
        database.close()
    for name, measurement in found.measured.items():
        say(
            f"{name}: a step takes "
            f"{', '.join(f'{1000 / rate:.0f} ms on {n}' for n, rate in measurement.rates.items())}"
        )
    return found


def replay_line(owner: str, found: Replay) -> str:
    """How a replay went, in a sentence."""
    return (
        f"Replay of {owner}: {found.cycles} cycles, {len(found.differences) or 'none'} decided "
        "otherwise."
    )
