"""MLflow: one MLflow run for a run, found again by a tag.

Only newer values of each metric are sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from brim.loggers.protocol import Entry, LoggedRun, Newest

_TAG = "brim.run"
_METRICS_PER_REQUEST = 1000  # metrics that the server takes in one request
_STATUS = {"done": "FINISHED", "suspended": "KILLED", "failed": "FAILED"}


class MLflow:
    """Logs to the server of `MLFLOW_TRACKING_URI`.

    The experiment is `MLFLOW_EXPERIMENT_NAME` (else: brim).

    MLflow takes nothing back. So steps that the run did again keep the values of the first time,
    which in exact training are the same.
    """

    def begin(self, run: LoggedRun) -> int | None:
        self._client = MlflowClient()
        self._run = self._find(run) or self._create(run)
        self._newest = Newest(self._newest_steps())
        self._pending: list[Metric] = []
        self._client.update_run(self._run, status="RUNNING")
        return None

    def _find(self, run: LoggedRun) -> str | None:
        found = self._client.search_runs(
            [self._experiment()], f"tags.`{_TAG}` = '{run.id}'", max_results=1
        )
        return found[0].info.run_id if found else None

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "brim")
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def _create(self, run: LoggedRun) -> str:
        tags = {_TAG: run.id, "brim.directory": str(run.directory)}
        created = self._client.create_run(self._experiment(), tags=tags, run_name=run.name)
        identity: str = created.info.run_id
        params = [Param(name, text) for name, text in _params(run.spec).items()]
        self._client.log_batch(identity, params=params[:100])
        return identity

    def _newest_steps(self) -> dict[str, int]:
        names = self._client.get_run(self._run).data.metrics
        history = {name: self._client.get_metric_history(self._run, name) for name in names}
        return {
            name: max(metric.step for metric in metrics)
            for name, metrics in history.items()
            if metrics
        }

    def rewind(self, step: int) -> None:
        pass  # see the docstring

    def log(self, entry: Entry) -> None:
        timestamp_ms = int(entry.at * 1000)
        new = self._newest.only_new(entry)
        self._pending += [
            Metric(name, value, timestamp_ms, entry.step) for name, value in new.items()
        ]

    def flush(self) -> None:
        while self._pending:
            self._client.log_batch(self._run, metrics=self._pending[:_METRICS_PER_REQUEST])
            del self._pending[:_METRICS_PER_REQUEST]

    def end(self, exit: str) -> None:
        if exit in _STATUS:
            self._client.set_terminated(self._run, _STATUS[exit])


def _params(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the job's parameters as texts.

    Those of `--set` have their own names.
    """
    flat = {**spec, **spec.get("parameters", {})}
    plain = {
        name: value
        for name, value in flat.items()
        if isinstance(value, (str, int, float)) and value != ""
    }
    return {name: str(value)[:500] for name, value in sorted(plain.items())}
