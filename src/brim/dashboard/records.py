"""The records of one job as far as they can be read here: loss, throughput, rounds and events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brim.client import Client
from brim.dashboard.series import StepCurves, course_of_steps
from brim.runs.copies import copy_of_job
from brim.telemetry.history import RunReader, describe_event

_MOST_EVENTS = 300


class JobRecordReader:
    """The records of a job, followed.

    Args:
        client: its scheduler's; where that is another host's, its records are copied here.
    """

    def __init__(self, client: Client, job: str) -> None:
        self._client, self._job = client, job
        self._reader: RunReader | None = None
        self.course = StepCurves([], [], [], [])
        self.events: Sequence[tuple[float, str]] = ()
        self.throughput = ""
        self.loss = ""
        self.time_parts: dict[str, float] = {}
        self.options: dict[str, object] = {}
        self.metrics: dict[str, str] = {}

    def look(self) -> bool:
        """Read the new records; false where there are none. It blocks.

        Raises:
            BrimError: the scheduler does not answer.
        """
        if self._client.is_elsewhere:
            folder = copy_of_job(self._client, self._job)
        else:
            folder = Path(self._client.job(self._job).run)
        if self._reader is None:
            self._reader = RunReader(folder)
        try:
            fresh = self._reader.poll()
        except OSError:  # they are another account's
            return False
        if not fresh:
            return False
        history = self._reader.history
        self.course = course_of_steps(history.steps)
        last = history.steps[-1] if history.steps else None
        self.loss = f"{last.loss:.4f}" if last is not None and last.loss is not None else ""
        self.time_parts = history.time_parts() if history.steps else {}
        self.options = history.spec
        epoch = history.epochs[max(history.epochs)] if history.epochs else None
        self.metrics = {
            f"Test {name}": f"{value:.4f}"
            for name, value in (epoch.metrics if epoch else {}).items()
            if value is not None
        }
        rate = history.samples_per_second()
        self.throughput = f"{rate:,.0f} samples/s" if rate else ""
        lines = [(event.at, describe_event(event, history)) for event in history.events]
        self.events = [line for line in lines if line[1]][-_MOST_EVENTS:]
        return True
