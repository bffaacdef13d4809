"""`brim.Run`: a run, or a job of the scheduler, as an object of Python."""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.domain.job import WorkerRange
from brim.domain.step_records import lasting
from brim.errors import SpecError
from brim.runs.directories import LATEST, not_begun
from brim.runs.handle import ResumeOptions, handle_of
from brim.runs.keywords import in_python
from brim.runs.outcome import summary_of, write_report
from brim.telemetry.events import RoundFormed
from brim.telemetry.history import describe_metrics

if TYPE_CHECKING:
    from brim.telemetry.history import RunHistory
    from brim.wire.cluster import JobView


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
        with in_python():
            self._handle = handle_of(os.fspath(name), state_dir)

    @property
    def path(self) -> Path:
        """The run's directory: records, logs, checkpoints and the report.

        Its files are described in docs/reference/run-directory.md.
        """
        return self._handle.run_dir

    @property
    def job(self) -> JobView | None:
        """The scheduler's view of the job: deadline, promise, reason …; None without a scheduler.

        Raises:
            EnvironmentFault: the scheduler does not answer.
        """
        return self._handle.job()

    @property
    def status(self) -> str:
        """The state of the run or job, in one word.

        Of a run: `starting`, `running`, `done`, `suspended`, `failed`, or `died` if it was killed
        from outside.

        For a job: `submitted`, `admitted`, `running`, `suspended`, `done`, `failed`, `cancelled` or
        `refused`.
        """
        return self._handle.state()

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the test split at the end of the last epoch; empty before that."""
        return {name: value for name, value in self.summary["metrics"].items() if value is not None}

    @property
    def summary(self) -> dict[str, Any]:
        """The fields of `brim train --json`, as far as they are known.

        They are described in docs/reference/summary.md.
        """
        return summary_of(self._history(), self.path)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Every step that counts, as a dict each.

        It has `step` and `epoch` from 1, `loss`, `samples`, `workers`, and `at` (seconds since
        1970).

        `lr` is the learning rate, or a tuple with one for each parameter group where they differ;
        None in records of earlier versions. Also its seconds, averaged over the workers: `data`,
        `compute`, `reduce`, `wait` and `apply`.
        """
        history = self._history()
        sizes = {
            event.round: event.world_size
            for event in history.events
            if isinstance(event, RoundFormed)
        }
        return [
            {
                "step": step.step,
                "epoch": step.epoch + 1,
                "loss": step.loss,
                "samples": step.samples,
                "workers": sizes.get(step.round),
                "at": step.at,
                "lr": step.lr,
                **step.seconds,
            }
            for step in lasting(history.steps, history.restores)
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
        """Return the output of its processes, each line with its worker's name.

        The lines are those of `brim logs`.

        Args:
            worker: only the lines of this worker, such as `w1`.

        Raises:
            SpecError: that worker has no log.
        """
        with in_python():
            lines = [f"{name} | {text}" for name, text in self._handle.logs(worker=worker)]
        return "\n".join(lines)

    def model(self, *, device: str = "cpu") -> Any:
        """Return the trained model, with the weights of the newest intact checkpoint.

        The training file builds it.

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
        from brim.runs.trained import find_trained, wanted_of

        found = find_trained(str(self.path), warn=lambda text: warnings.warn(text, stacklevel=3))
        inference = wanted_of(found, "predict")
        spec = replace(found.spec, inference=inference, device=device, servers=0, faults=())
        from brim.train.inference.weights import model_of

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
        error = self._handle.wait(timeout).error
        if error is not None:
            raise error
        return self

    def suspend(self) -> None:
        """Pause it: write a checkpoint at the next step and release its workers; returns at once.

        Raises:
            EnvironmentFault: it is not running.
        """
        self._handle.suspend()

    def resume(self, *, workers: int | str | None = None, ps: int | None = None) -> Run:
        """Continue from its last checkpoint.

        For a run, this blocks until the end; for a job, it returns at once.

        Args:
            workers: how many from now on, as `brim.train` takes them; None: as before.
            ps: how many servers a run has from now on; None: as before.

        Raises: as `brim.train` does.
        """
        with in_python():
            ready = self._handle.resume(ResumeOptions(workers=_range_of(workers), servers=ps))
        if ready is not None:
            from brim.runs.following import follow_to_a_good_end

            for note in ready.notes:
                warnings.warn(note, stacklevel=2)
            follow_to_a_good_end(ready)
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
        with in_python():
            self._handle.resize(_range_of(workers), servers=ps)

    def cancel(self) -> None:
        """End a job for good; its directory and its last checkpoint stay.

        Raises:
            SpecError: it is not a job of a scheduler.
        """
        with in_python():
            self._handle.cancel()

    def report(self) -> Path:
        """Write its `report.html` again and return the path.

        Raises:
            SpecError: it has not begun.
            EnvironmentFault: it cannot be written.
        """
        if self._history().started is None:
            raise not_begun(self.path)
        return write_report(self._history(), self.path)

    def _history(self) -> RunHistory:
        return self._handle.history()

    def __repr__(self) -> str:
        return f"<brim.Run {self._summary()}>"

    def _summary(self) -> str:
        """Describe the run in a line: its name, its state, its steps and its metrics."""
        history = self._history()
        planned = f"/{history.planned:,}" if history.planned else ""
        values: dict[str, float | None] = {**self.metrics}
        return (
            f"{self._handle.name}: {self.status}, step {history.step:,}{planned}"
            + describe_metrics(values).replace(": ", ", ", 1)
        )

    def _repr_html_(self) -> str | None:
        from brim.runs.picture import as_html

        history = self._history()
        return as_html(history, self._summary()) if history.started else None

    def _repr_svg_(self) -> str | None:
        from brim.runs.picture import as_svg

        history = self._history()
        return as_svg(history) if history.started else None


def _range_of(workers: int | str | None) -> WorkerRange | None:
    return None if workers is None else WorkerRange.parse(str(workers))
