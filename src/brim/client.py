"""Ask a scheduler about its jobs, or a run that is alive."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec
from brim.domain.job import WorkerRange
from brim.errors import EnvironmentFault, SpecError
from brim.storage.contact import is_alive, read_contact, read_scheduler_contact
from brim.wire.cluster import (
    ChangeView,
    ClusterView,
    Down,
    Forecast,
    JobView,
    Logs,
    Problem,
    Range,
    Submit,
    TenantView,
)

__all__ = ["Client", "default_state_dir", "jobs_dir", "resize", "status", "suspend"]

_TIMEOUT = 30.0
_POLL = 20.0  # seconds that one request waits for a job; then it is asked again
T = TypeVar("T")


def default_state_dir() -> Path:
    """Where a scheduler keeps its state: `$BRIM_HOME`, else below the user's home."""
    return Path(os.environ.get("BRIM_HOME") or Path.home() / ".local" / "state" / "brim")


def jobs_dir(state_dir: Path | None = None) -> Path:
    """Has the run directories of a scheduler's jobs."""
    return (state_dir or default_state_dir()) / "jobs"


class Client:
    """Talks to a scheduler over HTTP; blocking.

    Args:
        state_dir: of a scheduler on this host; None: `default_state_dir()`.
        address: `HOST:PORT` of a scheduler on another one, with its `token`.

    Raises:
        EnvironmentFault: no scheduler runs there. Its methods raise it too where it does not answer, or cannot do what
            it was asked; and SpecError where they were asked for something that cannot be.
    """

    def __init__(self, state_dir: Path | None = None, *, address: str = "", token: str = "") -> None:
        if not address:
            folder = state_dir or default_state_dir()
            contact = read_scheduler_contact(folder)
            if contact is None or not is_alive(contact.pid):
                raise EnvironmentFault(f"no scheduler runs in {folder}: brim up starts one")
            address, token = f"{contact.host}:{contact.port}", contact.token
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def submit(self, request: Submit) -> JobView:
        """Take a job in, which `request` describes; returns before it was judged."""
        return self._call("POST", "/v1/jobs", JobView, request)

    def forecast(self, request: Submit) -> Forecast:
        """What would happen to a job if it were submitted now."""
        return self._call("POST", "/v1/forecast", Forecast, request)

    def jobs(self) -> list[JobView]:
        return self._call("GET", "/v1/jobs", list[JobView])

    def job(self, job: str) -> JobView:
        return self._call("GET", f"{_path(job)}", JobView)

    def wait(self, job: str, *, until: str = "ended", timeout: float = float("inf")) -> JobView:
        """The job once it has `ended` or was `judged`, or after so many seconds."""
        left = timeout
        while True:
            seconds = min(left, _POLL)
            view = self._call("GET", f"{_path(job)}?wait={seconds}&until={until}", JobView)
            left -= seconds
            if view.has_ended or (until == "judged" and view.judged) or left <= 0:
                return view

    def logs(self, job: str, *, worker: str = "", follow: bool = False) -> Iterator[tuple[str, str]]:
        """What the processes of a job printed, as (worker, line).

        Args:
            worker: of this one alone, such as `w1`.
            follow: go on until the job has ended.
        """
        after, more = "", True
        while more or follow:
            wait = _POLL if follow and not more else 0.0
            question = urlencode({"worker": worker, "after": after, "wait": wait})
            logs = self._call("GET", f"{_path(job)}/logs?{question}", Logs)
            yield from logs.lines
            if logs.ended:
                return
            after, more = logs.after, bool(logs.lines)

    def explain(self, job: str) -> list[ChangeView]:
        """What happened to a job, with the reasons."""
        return self._call("GET", f"{_path(job)}/explain", list[ChangeView])

    def resize(self, job: str, workers: WorkerRange) -> JobView:
        """Let a job have so many workers."""
        body = Range(minimum=workers.minimum, maximum=workers.maximum)
        return self._call("POST", f"{_path(job)}/resize", JobView, body)

    def suspend(self, job: str) -> JobView:
        """Take its workers until it is resumed."""
        return self._call("POST", f"{_path(job)}/suspend", JobView)

    def resume(self, job: str) -> JobView:
        return self._call("POST", f"{_path(job)}/resume", JobView)

    def cancel(self, job: str) -> JobView:
        """End it for good."""
        return self._call("POST", f"{_path(job)}/cancel", JobView)

    def cluster(self) -> ClusterView:
        return self._call("GET", "/v1/cluster", ClusterView)

    def tenants(self) -> list[TenantView]:
        return self._call("GET", "/v1/tenants", list[TenantView])

    def apply(self, spec: ClusterSpec) -> ClusterView:
        """Describe the cluster anew; jobs that run are not stopped for it."""
        return self._call("PUT", "/v1/cluster", ClusterView, spec)

    def down(self, *, kill: bool = False) -> None:
        """Suspend every job and end the scheduler; returns at once."""
        self._call("POST", "/v1/down", ClusterView, Down(kill=kill))

    def _call(self, method: str, path: str, gives: type[T], body: object = None) -> T:
        content = msgspec.json.encode(body) if body is not None else None
        # A connection for each call: one that is kept may belong to a scheduler that is gone.
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT)
        try:
            connection.request(method, path, content, self._headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EnvironmentFault(f"the scheduler at {self._address} does not answer: {error}") from error
        finally:
            connection.close()
        try:
            if answer.status == http.HTTPStatus.OK:
                return msgspec.json.decode(data, type=gives)
            problem = msgspec.json.decode(data, type=Problem)
        except UNDECODABLE as error:
            raise EnvironmentFault(f"{self._address} is no scheduler of this version: {error}") from error
        if problem.field:
            raise SpecError(problem.field, got=problem.got, need=problem.need, hint=problem.hint)
        raise EnvironmentFault(problem.detail)


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def _ask(run_dir: Path, verb: str, **fields: Any) -> dict[str, Any]:
    # gRPC takes longer to import than a scheduler to answer.
    from brim.wire.control import ask
    from brim.wire.messages import Answer, Ask

    contact = read_contact(run_dir)
    if contact is None:
        raise EnvironmentFault(f"{run_dir} is not running")
    if not is_alive(contact.keeper):
        raise EnvironmentFault(f"{run_dir} is not running: its processes were killed")
    answer: Answer = ask(contact.address, token=contact.token, question=Ask(verb=verb, **fields))
    if not answer.ok:
        raise EnvironmentFault(answer.detail)
    return answer.status


def status(run_dir: Path) -> dict[str, Any]:
    """What the master of a run knows beyond its records.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    return _ask(run_dir, "status")


def resize(run_dir: Path, workers: int) -> dict[str, Any]:
    """Ask for so many workers; returns at once.

    Raises:
        EnvironmentFault: the run is not alive, or cannot have so many.
    """
    return _ask(run_dir, "resize", workers=workers)


def suspend(run_dir: Path) -> dict[str, Any]:
    """Ask a run to go to no workers at its next step boundary, with a checkpoint; returns at once.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    return _ask(run_dir, "suspend")
