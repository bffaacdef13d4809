"""Ask a scheduler about its jobs, or a run that is alive."""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec
from brim.domain.course import Change
from brim.domain.job import WorkerRange
from brim.domain.kept_run import KeptFile
from brim.errors import EnvironmentFault, SpecError
from brim.host.account import home
from brim.host.clock import monotonic, sleep
from brim.storage.contact import is_alive, read_contact, read_scheduler_contact, read_token
from brim.wire.cluster import (
    ClusterView,
    Down,
    Effect,
    Forecast,
    Forgotten,
    Input,
    JobView,
    Logs,
    News,
    NodeView,
    Problem,
    Proposal,
    Range,
    Submit,
    TenantView,
    TerminalNews,
    Token,
    UsageView,
    Window,
    WorkerStack,
)
from brim.wire.https import (
    connection_to,
    fault_of,
    hang_up,
    hint_of,
    namespace_in,
    scheduler_url,
)
from brim.wire.listening import joined_address

_TIMEOUT = 30.0
_KEPT_IDLE = 2.0  # seconds for which a connection is kept: the scheduler closes it after 5
_NEWS_BYTES = 1 << 16  # of a terminal, read at once
_PAGE = 500  # jobs that are asked for at once
_POLL = 50.0  # seconds that one request waits for a job; then it is asked again
_SCHEDULER_TIMEOUT = 3600.0  # seconds: enough to start a host again, and to notice that nobody did
_TO_HEAR = 60.0  # seconds for an answer that was lost: a person waits for it at a terminal
_CALL_INTERVAL = 0.2  # seconds between two calls of one who waits
_NOTICE_TIMES = (
    0.0,
    10.0,
    60.0,
    600.0,
    1800.0,
)  # seconds after which it is said that one waits for a scheduler
_FILE = "file"  # the field of the error for a file that is not there
T = TypeVar("T")


class _AnswerLost(EnvironmentFault):
    """The request's answer is lost: the scheduler may or may not have carried it out."""


class _NotNow(EnvironmentFault):
    """The scheduler answers that it cannot do this now."""


class TokenRefused(EnvironmentFault):
    """The scheduler does not know the token, or knows it no more."""


def default_state_dir() -> Path:
    """Return the directory of a scheduler's state: `$BRIM_HOME`, else below the user's home.

    Raises:
        SpecError: there is neither.
    """
    named = os.environ.get("BRIM_HOME")
    return Path(named) if named else home(field="BRIM_HOME") / ".local" / "state" / "brim"


SERVER = "BRIM_SERVER"  # names a scheduler of another host or account; `brim --server` sets it


def named_scheduler() -> str:
    """Return the URL of the scheduler that `$BRIM_SERVER` names; empty where it names none.

    Raises:
        SpecError: it is no address of one.
    """
    return scheduler_url(os.environ.get(SERVER, ""), field=SERVER)


def jobs_dir(state_dir: Path | None = None) -> Path:
    """Return the directory that has the run directories of a scheduler's jobs."""
    return (state_dir or default_state_dir()) / "jobs"


@dataclass(frozen=True, slots=True)
class _SchedulerAddress:
    """The address of a scheduler, and the credentials to call it.

    Args:
        url: of its API.
        token: to show.
        authority: of its certificate, PEM; empty: that whose fingerprint is in the token.
    """

    url: str
    token: str
    authority: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def connection(self, *, timeout: float) -> http.client.HTTPConnection:
        return connection_to(self.url, token=self.token, authority=self.authority, timeout=timeout)


class Client:
    """Talks to a scheduler over HTTP; blocking.

    Calls that wait (`wait`, `logs` with `follow`) continue if the scheduler dies, ends or is
    restarted, even on another port. If the answer to a change is lost, the change is requested
    again; that never makes a second job or change.

    Args:
        state_dir: state directory of a scheduler on this host; None means what `$BRIM_SERVER`
            says, or else `default_state_dir()`.
        address: `https://HOST:PORT` of a scheduler of another host, or `http://HOST:PORT` of one
            of another account of this host; the scheme may be left out.
        token: to show to a scheduler at an address; empty means the content of the file that
            `$BRIM_TOKEN_FILE` names, or else `$BRIM_TOKEN`. By https it is sent only to a server
            that has shown a certificate of the authority whose fingerprint is in it, or of one
            that this host trusts where it has none.
        patience: how many seconds to wait for a scheduler that does not answer.
        notice: called with a sentence when a wait for the scheduler begins, and when it answers
            again; None logs warnings to the logger `brim.client`.

    Raises:
        EnvironmentFault: no scheduler runs there. All methods raise it too, if the scheduler does
            not answer or cannot carry out the request. They raise SpecError if the request is
            invalid.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        address: str = "",
        token: str = "",
        patience: float = _SCHEDULER_TIMEOUT,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if state_dir is None:
            address = scheduler_url(address, field="address") or named_scheduler()
        if namespace_in(address) is not None and state_dir is None:
            raise SpecError(
                SERVER,
                got=address,
                need="a scheduler of brim up: this asks none of Kubernetes",
                hint="brim jobs, status, explain, logs, submit, resize, suspend, resume, cancel do",
            )
        self._state_dir = state_dir or default_state_dir()
        self._fixed = (
            _SchedulerAddress(address, token or read_token(os.environ)) if address else None
        )
        self._patience = patience
        self._notice = notice or logging.getLogger(__name__).warning
        self._reach()

    @property
    def address(self) -> str:
        """The URL of the scheduler, as it is now."""
        return self._reach().url

    @property
    def namespace(self) -> str | None:
        """The namespace of Kubernetes whose jobs these are; None: a scheduler has them."""
        return None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the scheduler is another host's or account's, and its files with it."""
        return self._fixed is not None

    def submit(self, request: Submit) -> JobView:
        """Submit the job that `request` describes; returns before its deadline was judged.

        The same key with the same request is the same job, however often you submit it. Without a
        key, one is made.
        """
        if not request.key:
            request = msgspec.structs.replace(request, key=uuid.uuid4().hex)
        try:
            return self._change("POST", "/v1/jobs", JobView, request)
        except _AnswerLost as lost:
            unknown_note = "whether it took the job in is not known, and brim jobs will tell"
            key_hint = f"submitted again with --key {request.key} it is the same job"
            raise EnvironmentFault(f"{lost}: {unknown_note}; {key_hint}") from lost

    def forecast(self, request: Submit) -> Forecast:
        """Predict the course of a job if it were submitted now."""
        return self._call("POST", "/v1/forecast", Forecast, request)

    def consequences(self, wish: Proposal) -> list[Effect]:
        """Foresee the consequences of a change for each job; nothing is changed."""
        return self._call("POST", "/v1/consequences", list[Effect], wish)

    def jobs(self, *, unfinished: bool = False) -> list[JobView]:
        """List all jobs in the order of their submission.

        Args:
            unfinished: leave out those that have ended.
        """
        found: list[JobView] = []
        query = {"limit": _PAGE, "unfinished": "true" if unfinished else "false"}
        while True:
            page_query = {"after": found[-1].job} if found else {}
            try:
                page = self._call("GET", f"/v1/jobs?{urlencode(query | page_query)}", list[JobView])
            except SpecError:
                if not found:
                    raise
                found = []  # the last of the page before was forgotten meanwhile
                continue
            found += page
            if len(page) < _PAGE:
                return found

    def job(self, job: str) -> JobView:
        """Return the current state of a job."""
        return self._call("GET", f"{_path(job)}", JobView)

    def wait(self, job: str, *, until: str = "ended", timeout: float = float("inf")) -> JobView:
        """Wait until a job has `ended` or was `judged`, or for `timeout` seconds.

        The wait survives the scheduler's death.
        """
        end = monotonic() + timeout
        while True:
            seconds = max(0.0, min(end - monotonic(), _POLL))
            path = f"{_path(job)}?wait={seconds}&until={until}"
            view = self._patiently("GET", path, JobView, deadline=end, longer=seconds)
            if view.has_ended or (until == "judged" and view.judged) or monotonic() >= end:
                return view
            sleep(_CALL_INTERVAL)  # a scheduler that is ending answers at once

    def logs(
        self, job: str, *, worker: str = "", follow: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Yield the output of a job's processes, as (worker, line).

        Args:
                        worker: only the lines of this worker, such as `w1`.
            follow: continue until the job has ended; survives the scheduler's death.
        """
        places_after, has_more = "", True
        while has_more or follow:
            wait = _POLL if follow and not has_more else 0.0
            question = urlencode({"worker": worker, "after": places_after, "wait": wait})
            path = f"{_path(job)}/logs?{question}"
            logs = self._patiently(
                "GET", path, Logs, deadline=float("inf") if follow else 0.0, longer=wait
            )
            yield from logs.lines
            if logs.ended:
                return
            places_after, has_more = logs.after, bool(logs.lines)
            if follow and not has_more:
                sleep(_CALL_INTERVAL)

    def log_lines(self, job: str, *, worker: str = "", place: str = "", wait: float = 0.0) -> Logs:
        """Return lines that a job's processes printed since an earlier answer.

        Args:
            worker: only the lines of this worker, such as `w1`.
            place: `after` of that answer; empty: from the beginning.
            wait: seconds to wait for lines, where there are none.
        """
        question = urlencode({"worker": worker, "after": place, "wait": wait})
        return self._call("GET", f"{_path(job)}/logs?{question}", Logs, longer=wait)

    def attach(self, job: str, *, rows: int, columns: int) -> AttachedTerminal:
        """Attach a terminal to an interactive job, which ends with it.

        Args:
            rows, columns: of its window, in characters.
        """
        return AttachedTerminal(self, job, Window(rows=rows, columns=columns))

    def explain(self, job: str) -> list[Change]:
        """List what happened to a job, with the reasons."""
        return self._call("GET", f"{_path(job)}/explain", list[Change])

    def files(self, job: str) -> list[KeptFile]:
        """List the files of a job's records and checkpoints."""
        return self._call("GET", f"{_path(job)}/files", list[KeptFile])

    def read_file(self, job: str, name: str, start: int = 0) -> bytes:
        """Return bytes of one of a job's files.

        Args:
            name: as `files` lists it.
            start: bytes before the first one.

        Returns:
            Some bytes from there on; none where there are no more.

        Raises:
            FileNotFoundError: it is gone.
        """
        path = f"{_path(job)}/files/{quote(name)}?{urlencode({'start': start})}"
        try:
            return self._call("GET", path, bytes)
        except SpecError as error:
            if error.field != _FILE:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error

    def resize(self, job: str, workers: WorkerRange) -> JobView:
        """Change how many workers a job may have."""
        body = Range(minimum=workers.minimum, maximum=workers.maximum)
        return self._change("POST", f"{_path(job)}/resize", JobView, body)

    def suspend(self, job: str) -> JobView:
        """Pause a job: write a checkpoint and release its workers, until it is resumed."""
        return self._change("POST", f"{_path(job)}/suspend", JobView)

    def resume(self, job: str) -> JobView:
        """Let a suspended job have workers again."""
        return self._change("POST", f"{_path(job)}/resume", JobView)

    def restart(self, job: str) -> JobView:
        """Have each replica of a service replaced, one after the other, once its successor is ready."""
        return self._change("POST", f"{_path(job)}/restart", JobView)

    def stacks(self, job: str) -> list[WorkerStack]:
        """Return where the Python code of each worker of a job is now.

        Raises:
            EnvironmentFault: the job does not run, or runs a command of its own.
        """
        return self._call("GET", f"{_path(job)}/stacks", list[WorkerStack])

    def any_kind(self, job: str) -> JobView:
        """Let an exact job that waits for nodes of the kind on which it began go on on any.

        Its weights depend on these nodes then.
        """
        return self._change("POST", f"{_path(job)}/any-kind", JobView)

    def cancel(self, job: str) -> JobView:
        """End a job for good."""
        return self._change("POST", f"{_path(job)}/cancel", JobView)

    def forget(self, job: str) -> Forgotten:
        """Remove a job that has ended, with its history and its run directory.

        The record, the logs and the checkpoints go. What was exported, or written to other
        directories, stays.
        """
        try:
            return self._call("DELETE", _path(job), Forgotten)
        except _AnswerLost:
            with contextlib.suppress(SpecError):  # it is gone: that was the answer
                return self._patiently(
                    "DELETE", _path(job), Forgotten, deadline=monotonic() + _TO_HEAR
                )
            return Forgotten(job=job, bytes=0)

    def cluster(self) -> ClusterView:
        """Describe the nodes, the devices in use and the policy."""
        return self._call("GET", "/v1/cluster", ClusterView)

    def news(self, place: str = "", *, wait: float = 0.0) -> News:
        """Return the changes since an earlier answer.

        Args:
            place: as that answer has it; empty: there was none, and all jobs are to be listed once.
            wait: seconds to wait for news, where there are none.
        """
        query = urlencode({"after": place, "wait": wait})
        return self._call("GET", f"/v1/news?{query}", News, longer=wait)

    def plan(self) -> list[Change]:
        """List the changes of workers that are expected next, if nothing new happens."""
        return self._call("GET", "/v1/plan", list[Change])

    def nodes(self) -> list[NodeView]:
        """List the nodes, and how they are."""
        return self._call("GET", "/v1/nodes", list[NodeView])

    def drain(self, node: str, *, undo: bool = False) -> list[NodeView]:
        """Have nothing run on a node any more: its workers leave at a step boundary.

        Args:
            undo: let jobs run there again instead.
        """
        path = f"/v1/nodes/{quote(node, safe='')}/{'undrain' if undo else 'drain'}"
        return self._change("POST", path, list[NodeView], None)

    def tenants(self) -> list[TenantView]:
        """List each tenant's quota, its devices and its loans."""
        return self._call("GET", "/v1/tenants", list[TenantView])

    def usage(self, month: str = "", *, group_by: str = "tenant") -> UsageView:
        """Show for how long jobs held devices in a month; a tenant sees its own usage.

        Args:
            month: such as `2026-11`, in UTC; empty: the present one.
            group_by: `tenant`, `user` (the account of a job's processes) or `job`.
        """
        query = urlencode({"month": month, "group_by": group_by})
        return self._call("GET", f"/v1/usage?{query}", UsageView)

    def give_token(self, tenant: str) -> str:
        """Make a token for a tenant, and revoke the tenant's last one.

        The token cannot be asked for again.
        """
        # Not asked again where the answer is lost: it would be another token.
        return self._call("POST", f"{_path_of_token(tenant)}", Token).token

    def revoke_token(self, tenant: str) -> None:
        """Refuse a tenant's token from now on."""
        self._change("DELETE", f"{_path_of_token(tenant)}", Token)

    def apply(self, spec: ClusterSpec) -> ClusterView:
        """Change the description of the cluster; running jobs are not stopped for it."""
        return self._change("PUT", "/v1/cluster", ClusterView, spec)

    def down(self, *, kill: bool = False) -> None:
        """Suspend every job and end the scheduler; returns at once."""
        self._call("POST", "/v1/down", ClusterView, Down(kill=kill))

    def _reach(self) -> _SchedulerAddress:
        """Return its address as it is now: the next scheduler may be elsewhere."""
        if self._fixed:
            return self._fixed
        contact = read_scheduler_contact(self._state_dir)
        if contact is None or not contact.is_alive:
            raise EnvironmentFault(
                f"no scheduler runs in {self._state_dir} (--state or BRIM_HOME names another "
                "directory): brim up starts one",
                retryable=True,
            )
        scheme = "https" if contact.authority else "http"
        url = f"{scheme}://{joined_address(contact.host, contact.port)}"
        return _SchedulerAddress(url, contact.token, contact.authority)

    def _change(self, method: str, path: str, gives: type[T], body: object = None) -> T:
        """Call as `_call` does; ask again where the answer was lost.

        Asking twice changes nothing.
        """
        try:
            return self._call(method, path, gives, body)
        except _AnswerLost as lost:
            try:
                return self._patiently(method, path, gives, body, deadline=monotonic() + _TO_HEAR)
            except EnvironmentFault as error:
                raise _AnswerLost(str(lost)) if error.retryable else error from lost

    def _patiently(
        self,
        method: str,
        path: str,
        gives: type[T],
        body: object = None,
        *,
        deadline: float,
        longer: float = 0.0,
    ) -> T:
        """The answer of a scheduler that may be away for a while.

        Args:
            deadline: by the monotonic clock; no longer than the client's patience in any case.
            longer: seconds that it was asked to wait before it answers.
        """
        silent_since, said_at = 0.0, 0
        while True:
            try:
                answer = self._call(method, path, gives, body, longer=longer)
            except EnvironmentFault as error:
                now = monotonic()
                silent_since = silent_since or now
                if not error.retryable or now + _CALL_INTERVAL > deadline:
                    raise
                if now - silent_since > self._patience:
                    raise EnvironmentFault(
                        f"{error} (no answer for {now - silent_since:.0f} s)"
                    ) from error
                if said_at < len(_NOTICE_TIMES) and now - silent_since >= _NOTICE_TIMES[said_at]:
                    self._notice(self._absence_note(error, now - silent_since))
                    said_at += 1
                sleep(_CALL_INTERVAL)
            else:
                if said_at:
                    self._notice("the scheduler answers again")
                return answer

    def _absence_note(self, error: EnvironmentFault, seconds: float) -> str:
        """Return the notice for a waiting user while the scheduler is away, or refuses."""
        if isinstance(error, _NotNow):
            return f"{error}; waiting"
        contact = None if self._fixed else read_scheduler_contact(self._state_dir)
        if self._fixed or (contact and contact.is_alive):
            problem = str(error)
        elif contact:
            problem = "the scheduler was killed; its jobs train on"
        else:
            problem = "the scheduler was ended, and brim down suspends its jobs"
        silence_note = f" (no answer for {seconds:.0f} s)" if seconds >= 1 else ""
        return f"{problem}{silence_note}; waiting for brim up"

    def _call(
        self, method: str, path: str, gives: type[T], body: object = None, *, longer: float = 0.0
    ) -> T:
        content = msgspec.json.encode(body) if body is not None else None
        place = self._reach()
        url = place.url
        connection, fault = None, EnvironmentFault
        try:
            # One for each call: one that is kept may belong to a scheduler that is gone.
            connection = self._connected(place, timeout=_TIMEOUT + longer)
            fault = _AnswerLost
            connection.request(method, path, content, place.headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if answered_fault := fault_of(error, url, token=place.token):
                raise answered_fault from error
            hint = hint_of(error, url) if self._fixed else ""
            raise fault(
                f"the scheduler at {url} does not answer: {error}{hint}", retryable=True
            ) from error
        finally:
            if connection is not None:
                connection.close()
        try:
            if answer.status == http.HTTPStatus.OK and gives is bytes:
                return cast(T, data)
            if answer.status == http.HTTPStatus.OK:
                return msgspec.json.decode(data, type=gives)
            problem = msgspec.json.decode(data, type=Problem)
        except UNDECODABLE as error:
            raise _other_version(url, error) from error
        raise _refusal(problem, answer.status)

    def _connected(self, place: _SchedulerAddress, *, timeout: float) -> http.client.HTTPConnection:
        """Return an open connection to the scheduler that is still at this place. Raises OSError."""
        connection = place.connection(timeout=timeout)
        try:
            connection.connect()
            if self._reach() != place:  # it has died: what listens there now may be anything
                raise ConnectionResetError("another scheduler has taken its place")
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(
        self, path: str, body: object
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, _SchedulerAddress]:
        """Call, and return the answer before it has come to its end, with its connection.

        Raises as `_call` does.
        """
        place = self._reach()
        try:
            connection = self._connected(place, timeout=_TIMEOUT)
            connection.request("POST", path, msgspec.json.encode(body), place.headers)
            answer = connection.getresponse()
            data = b"" if answer.status == http.HTTPStatus.OK else answer.read()
        except (OSError, http.client.HTTPException) as error:
            if answered_fault := fault_of(error, place.url, token=place.token):
                raise answered_fault from error
            raise EnvironmentFault(
                f"the scheduler at {place.url} does not answer: {error}"
            ) from error
        if answer.status != http.HTTPStatus.OK:
            connection.close()
            try:
                problem = msgspec.json.decode(data, type=Problem)
            except UNDECODABLE as error:
                raise _other_version(place.url, error) from error
            raise _refusal(problem, answer.status)
        return connection, answer, place


class AttachedTerminal:
    """A terminal that is attached to a job: both end when `close` is called.

    `news` is for one thread, `type` for another. Each raises EnvironmentFault where the connection
    has broken, and the job ends.
    """

    def __init__(self, client: Client, job: str, window: Window) -> None:
        path = f"{_path(job)}/terminal"
        self._client, self._path = client, path
        self._connection, self._answer, self._place = client._begin(path, window)
        self._typing: http.client.HTTPConnection | None = None
        self._typed_at = 0.0

    def news(self) -> Iterator[TerminalNews]:
        """Yield all that the scheduler tells, to the end of the job."""
        rest = b""
        try:
            while data := self._answer.read1(_NEWS_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for news in (msgspec.json.decode(line, type=TerminalNews) for line in lines):
                    if news.terminal:
                        self._path += f"/{quote(news.terminal, safe='')}"
                    yield news
                    if news.ended:
                        return
        except UNDECODABLE as error:
            raise _other_version(self._place.url, error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EnvironmentFault(f"the connection to the scheduler broke: {error}") from error
        raise EnvironmentFault("the connection to the scheduler broke")

    def type(self, typed: Input) -> None:
        """Send input, once the first news has come."""
        try:
            # Kept from one to the next: a connection for each key would be slow to a far host. The
            # scheduler closes one that was idle.
            if self._typing is not None and monotonic() - self._typed_at > _KEPT_IDLE:
                self._typing.close()
                self._typing = None
            if self._typing is None:
                self._typing = self._client._connected(self._place, timeout=_TIMEOUT)
            body = msgspec.json.encode(typed)
            self._typing.request("POST", self._path, body, self._place.headers)
            answer = self._typing.getresponse()
            answer.read()
            self._typed_at = monotonic()
        except (OSError, http.client.HTTPException) as error:
            raise EnvironmentFault(f"the connection to the scheduler broke: {error}") from error
        if answer.status != http.HTTPStatus.OK:
            raise EnvironmentFault("the scheduler does not know this terminal any more")

    def hang_up(self) -> None:
        """Have `news` end, from any thread."""
        hang_up(self._connection)

    def close(self) -> None:
        """Leave the terminal: the scheduler ends its job, if that has not ended."""
        for connection in (self._connection, self._typing):
            if connection is not None:
                connection.close()
        self._answer.close()


def _other_version(url: str, error: Exception) -> EnvironmentFault:
    return EnvironmentFault(f"{url} does not answer as a scheduler of this version: {error}")


def _refusal(problem: Problem, status: int) -> Exception:
    """Return the error that a scheduler has answered with."""
    if problem.field:
        return SpecError(problem.field, got=problem.got, need=problem.need, hint=problem.hint)
    if status == http.HTTPStatus.UNAUTHORIZED:
        return TokenRefused(problem.detail)
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        return _NotNow(problem.detail, retryable=True)
    return EnvironmentFault(problem.detail)


def _path_of_token(tenant: str) -> str:
    return f"/v1/tenants/{quote(tenant, safe='')}/token"


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
    question = Ask(verb=verb, **fields)
    try:
        answer: Answer = ask(contact.address, token=contact.token, question=question)
    except EnvironmentFault:
        if read_contact(run_dir) is None:
            raise EnvironmentFault(f"{run_dir} has ended meanwhile") from None
        raise
    if not answer.ok:
        raise EnvironmentFault(answer.detail)
    return answer.status


def status(run_dir: Path) -> dict[str, Any]:
    """Return the master's knowledge of a run beyond its records.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    return _ask(run_dir, "status")


def resize(
    run_dir: Path,
    workers: int,
    *,
    places: Mapping[str, int] | None = None,
    servers: int | None = None,
) -> None:
    """Ask for so many workers; returns at once.

    Args:
        workers: 0 for as many as before.
        places: so many of them on each agent; None where it does not matter on which they are.
        servers: beside them; None for as many as before.

    Raises:
        EnvironmentFault: the run is not alive, or cannot have so many.
    """
    _ask(run_dir, "resize", workers=workers, places=dict(places or {}), servers=servers)


def lose(run_dir: Path, agent: str, *, reason: str) -> None:
    """Have a run go on without an agent of ended workers, before it notices itself.

    Raises:
        EnvironmentFault: the run is not alive, or too old to know the question.
    """
    _ask(run_dir, "lose", agent=agent, reason=reason)


def renew(run_dir: Path) -> None:
    """Have each replica of a service replaced, one after the other; returns at once.

    Raises:
        EnvironmentFault: the run is not alive, or no service.
    """
    _ask(run_dir, "renew")


def stacks(run_dir: Path) -> dict[str, str]:
    """Return where the Python code of each worker is now, as in a traceback, by the worker's name.

    Empty for one that did not answer. Of each process, the main thread is shown. Questions within
    a second get one answer.

    Raises:
        EnvironmentFault: the run is not alive, or runs a command of its own.
    """
    return {str(name): str(text) for name, text in _ask(run_dir, "stacks").items()}


def suspend(run_dir: Path) -> None:
    """Ask a run to go to no workers at its next step boundary, with a checkpoint; returns at once.

    Raises:
        EnvironmentFault: the run is not alive.
    """
    _ask(run_dir, "suspend")
