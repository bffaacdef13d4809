"""`brim.Run`: a run, or a job of the scheduler, as an object of Python."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.clock import monotonic, sleep
from brim.domain.accounting import lasting
from brim.domain.job import WorkerRange
from brim.errors import EnvironmentFault, SpecError
from brim.runs.directories import LATEST, find_run
from brim.runs.keywords import in_python
from brim.runs.outcome import error_of, state_of, summary_of
from brim.runs.schedulers import scheduler_of
from brim.telemetry.events import RoundFormed
from brim.telemetry.history import RunReader, describe_metrics

if TYPE_CHECKING:
    from brim.client import Client
    from brim.telemetry.history import RunHistory
    from brim.wire.cluster import JobView


_LOOK = 0.2  # seconds between two looks at a run that somebody waits for


class Run:
    """A run of `brim.train` or `brim.run`, or a job of the scheduler.

    Its properties show its current state.

    In a notebook it is displayed as a picture of loss, speed and workers over time.

    Args:
        name: a path, a name under `runs`, `latest`, or the id of a job.
        state_dir: the scheduler's state directory, if it is a job; None means the default.

    Raises:
        SpecError: there is no such run.

    Example:
        >>> run = brim.Run("latest")                        # doctest: +SKIP
        >>> run.status, run.metrics                         # doctest: +SKIP
        ('done', {'auc': 0.7712})
    """

    def __init__(
        self, name: str | os.PathLike[str] = LATEST, *, state_dir: Path | None = None
    ) -> None:
        self._client: Client | None = scheduler_of(os.fspath(name), state_dir)
        self._id = os.fspath(name) if self._client else ""
        self._found = Path() if self._client else find_run(os.fspath(name), state=state_dir)
        self._reader: RunReader | None = None

    @property
    def path(self) -> Path:
        """Its directory: records, logs, checkpoints and the report
        (docs/reference/run-directory.md).
        """
        return Path(self.job.run) if self.job else self._found

    @property
    def job(self) -> JobView | None:
        """The scheduler's view of the job: deadline, promise, reason …; None for a run without a
        scheduler.

        Raises:
            EnvironmentFault: the scheduler does not answer.
        """
        return self._client.job(self._id) if self._client else None

    @property
    def status(self) -> str:
        """`starting`, `running`, `done`, `suspended`, `failed`, or `died` if it was killed from
        outside.

        For a job: `submitted`, `admitted`, `running`, `suspended`, `done`, `failed`, `cancelled` or
        `refused`.
        """
        if self.job:
            return self.job.state
        history, alive = self._history(), self._is_alive()
        return "starting" if alive and history.started is None else state_of(history, alive=alive)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the test split at the end of the last epoch; empty before that."""
        return {name: value for name, value in self.summary["metrics"].items() if value is not None}

    @property
    def summary(self) -> dict[str, Any]:
        """The fields of `brim train --json`, as far as they are known
        (docs/reference/summary.md).
        """
        return summary_of(self._history(), self.path)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Every step that counts: `step` and `epoch` from 1, `loss`, `samples`, `workers`, `at`
        (seconds since 1970).

        `lr` is the learning rate, or a tuple with one for each parameter group where they differ;
        None in records of earlier versions. Also its seconds, averaged over the workers: `data`,
        `compute`, `reduce`, `wait` and `apply`.
        """
        history = self._history()
        sizes = {
            each.round: each.world_size for each in history.events if isinstance(each, RoundFormed)
        }
        return [
            {
                "step": each.step,
                "epoch": each.epoch + 1,
                "loss": each.loss,
                "samples": each.samples,
                "workers": sizes.get(each.round),
                "at": each.at,
                "lr": each.lr,
                **each.seconds,
            }
            for each in lasting(history.steps, history.restores)
        ]

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Every completed epoch: `epoch` from 1, `step`, and its metrics."""
        ended = self._history().epochs
        return [
            {"epoch": number, "step": ended[number].step, **ended[number].metrics}
            for number in sorted(ended)
        ]

    def to_pandas(self) -> Any:
        """Return the steps as a `pandas.DataFrame`, one row each.

        Raises:
            SpecError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise SpecError(
                "pandas",
                got="no such package",
                need="pandas for a table",
                hint="pip install pandas",
            ) from None
        return pandas.DataFrame(self.steps)

    def logs(self, worker: str = "") -> str:
        """Return what its processes printed, each line with its worker's name, as `brim logs` shows
        it.

        Args:
            worker: only the lines of this worker, such as `w1`.

        Raises:
            SpecError: that worker has no log.
        """
        from brim.telemetry.logs import Tail

        tail, lines = Tail(self.path, worker), []
        while fresh := tail.fresh():
            lines += [f"{name} | {text}" for name, text in fresh]
        return "\n".join(lines)

    def model(self, *, device: str = "cpu") -> Any:
        """Return the trained model, built by the training file, with the weights of the newest
        intact checkpoint.

        Args:
            device: where to put it, `cpu` or `cuda`.

        Returns:
            The torch.nn.Module, in eval mode. The file is run as it is now, in this process, with a
            warning if it has changed since the run began.

        Raises:
            SpecError: there is no checkpoint yet, or the run was your own loop, which has to save
                its model itself.
            UserCodeError: the training file raised.
        """
        import warnings

        from brim.runs.trained import find_trained, wanted_of

        found = find_trained(str(self.path), warn=lambda text: warnings.warn(text, stacklevel=3))
        wanted = wanted_of(found, "predict")
        spec = replace(found.spec, inference=wanted, device=device, servers=0, faults=())
        from brim.train.weights import model_of

        with contextlib.chdir(spec.directory or "."):
            return model_of(spec)

    def wait(self, timeout: float = float("inf")) -> Run:
        """Block until it has ended.

        Args:
            timeout: seconds.

        Returns:
            This run, if it is done or suspended.

        Raises:
            TimeoutError: it has not ended after `timeout` seconds.
            SpecError, UserCodeError, EnvironmentFault, InternalError: it failed, was cancelled or
                refused.
        """
        end = monotonic() + timeout
        if self._client:
            view = self._client.wait(self._id, timeout=timeout)
            if not view.has_ended:
                raise TimeoutError(f"{self._id} is {view.state} after {timeout:g} s")
            return self._ended_well(view.state)
        while self._is_alive():
            if monotonic() > end:
                raise TimeoutError(f"{self.path} is {self.status} after {timeout:g} s")
            sleep(_LOOK)
        return self._ended_well(self.status)

    def _ended_well(self, status: str) -> Run:
        if status in ("done", "suspended"):
            return self
        history = self._history()
        known = error_of(history, self.path) if history.started or history.failed else None
        said = f"{self._id or self.path}: {status}"
        if self.job and (self.job.detail or self.job.problem):
            said += f": {self.job.problem or self.job.detail}"
        raise known or EnvironmentFault(said)

    def suspend(self) -> None:
        """Pause it: write a checkpoint at the next step and release its workers; returns at once.

        Raises:
            EnvironmentFault: it is not running.
        """
        if self._client:
            self._client.suspend(self._id)
            return
        from brim import client

        client.suspend(self.path)

    def resume(self, *, workers: int | str | None = None, ps: int | None = None) -> Run:
        """Continue from its last checkpoint.

        For a run, this blocks until the end; for a job, it returns at once.

        Args:
            workers: how many from now on, as `brim.train` takes them; None: as before.
            ps: how many servers a run has from now on; None: as before.

        Raises: as `brim.train` does.
        """
        wanted = _range_of(workers)
        if self._client:
            _check_no_servers(ps)
            if wanted:
                self._client.resize(self._id, wanted)
            self._client.resume(self._id)
            return self
        from brim.runs.following import follow
        from brim.runs.starting import make_ready_again

        with in_python():
            ready = make_ready_again(self.path, workers=wanted, servers=ps)
        follow(ready)
        return self

    def resize(self, workers: int | str | None = None, *, ps: int | None = None) -> None:
        """Give it more or fewer workers; training continues. Returns at once.

        Args:
            workers: a number, or, for a job, a range such as `"1:8"`; None: as before.
            ps: how many servers, for a run that has some; None: as before.

        Raises:
            SpecError: neither is given, or what only a run, or only a job, can have.
            EnvironmentFault: it is not running.
        """
        wanted = _range_of(workers)
        if wanted is None and ps is None:
            raise SpecError("workers=", got="None", need="how many", hint="run.resize(4)")
        if self._client:
            _check_no_servers(ps)
            assert wanted is not None
            self._client.resize(self._id, wanted)
            return
        if wanted is not None and wanted.minimum != wanted.maximum:
            need = "one number: only the scheduler decides within a range"
            raise SpecError(
                "workers=", got=repr(workers), need=need, hint=f"run.resize({wanted.maximum})"
            )
        from brim import client

        client.resize(self.path, wanted.maximum if wanted else 0, servers=ps)

    def cancel(self) -> None:
        """End a job for good; its directory and its last checkpoint stay.

        Raises:
            SpecError: it is not a job of a scheduler.
        """
        if self._client is None:
            raise SpecError(
                "cancel()",
                got=f"{self.path}, a run without a scheduler",
                need="a job",
                hint="run.suspend()",
            )
        self._client.cancel(self._id)

    def report(self) -> Path:
        """Write its `report.html` again and return the path.

        Raises:
            SpecError: it has not begun.
        """
        from brim.report.run import render_report
        from brim.storage.files import write_whole

        history = self._history()
        if history.started is None:
            raise SpecError(
                str(self.path),
                got="a run that has not begun",
                need="one that has",
                hint="run.wait()",
            )
        path = self.path / "report.html"
        write_whole(path, render_report(history).encode())
        return path

    def _history(self) -> RunHistory:
        if self._reader is None:
            self._reader = RunReader(self.path)
        self._reader.poll()
        return self._reader.history

    def _is_alive(self) -> bool:
        from brim import client

        try:
            client.status(self.path)
        except EnvironmentFault:
            return False
        return True

    def __repr__(self) -> str:
        return f"<brim.Run {self._said()}>"

    def _said(self) -> str:
        """Which run, how it is, how far it got, and how good."""
        history = self._history()
        planned = f"/{history.started.steps:,}" if history.started else ""
        known: dict[str, float | None] = {**self.metrics}
        return (
            f"{self._id or self.path}: {self.status}, step {history.step:,}{planned}"
            + describe_metrics(known).replace(": ", ", ", 1)
        )

    def _repr_html_(self) -> str | None:
        from brim.runs.picture import as_html

        history = self._history()
        return as_html(history, self._said()) if history.started else None

    def _repr_svg_(self) -> str | None:
        from brim.runs.picture import as_svg

        history = self._history()
        return as_svg(history) if history.started else None


def _check_no_servers(ps: int | None) -> None:
    if ps is not None:
        need = "a run without a scheduler: a job has the servers that it was submitted with"
        raise SpecError("ps=", got=str(ps), need=need)


def _range_of(workers: int | str | None) -> WorkerRange | None:
    if workers is None:
        return None
    with in_python():
        return WorkerRange.parse(str(workers))
