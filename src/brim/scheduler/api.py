"""The scheduler over HTTP: decode, handle, encode.

Its OpenAPI document is made from the same table as its routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import brim
from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec
from brim.domain.course import Change
from brim.domain.job import WorkerRange
from brim.domain.kept_run import KeptFile, is_kept
from brim.domain.lifecycle import Happening
from brim.domain.rights import RIGHTS, Caller, Holder, Right
from brim.domain.submission import NO_TENANT, Submission
from brim.errors import BrimError, EnvironmentFault, SpecError, StorageFault
from brim.host.account import acting_as
from brim.scheduler.audit import Audit
from brim.scheduler.keys import Keys
from brim.scheduler.lives import Lives
from brim.scheduler.loop import NO_SUCH_JOB, check_bundle, no_such_job
from brim.scheduler.metrics import metrics_of
from brim.scheduler.terminals import Terminals
from brim.scheduler.turns import RETRY_AFTER, NoThread, TenantThreads, TenantTurns
from brim.scheduler.views import USAGE_BY
from brim.storage.kept_runs import files_of, read_file
from brim.telemetry.logs import Tail
from brim.telemetry.prometheus import exposition
from brim.wire.bodies import Bodies, BodyTooLarge, NoRoom
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
    Sent,
    Submit,
    TenantView,
    TerminalNews,
    Token,
    UsageView,
    Window,
    WorkerStack,
)
from brim.wire.door import Door

_LONGEST_PAGE = 500  # jobs: nobody else is answered while one is made
_LONGEST_WAIT = 60.0  # seconds that one request may wait
_LARGEST_BODY = 12 << 20  # bytes: the code of a job is a third larger as text
_LARGEST_SUBMISSION = 1 << 20  # bytes of it without the code
_BODIES_OF_TENANT = 16 << 20  # bytes: one of the largest, and some small ones
_BODIES_IN_ALL = 48 << 20  # bytes
_TO_SEND_BODY = 30.0  # seconds
_LARGEST_FILE = 1 << 60
_MOST_LINES = 2_000  # of stories in one answer: the newest
_LONGEST_PLACE = 40  # characters of two numbers
_NOT_YOURS = "token"  # the field of the error that says so
_NO_SUCH_FILE = "file"  # and of that of a file which is not there
_T = TypeVar("_T")
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class _Call:
    """One route.

    Args:
        takes: type of the body, or None.
        gives: type of the answer.
        handle: (lives, request, body) -> answer; `request.state` has the caller and the keys.
        right: what the caller needs.
        asks: what may be asked in the query: name -> its JSON schema.
    """

    method: str
    path: str
    summary: str
    takes: Any
    gives: Any
    handle: Callable[[Lives, Request, Any], Awaitable[Any]]
    right: Right
    asks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _caller(request: Request) -> Caller:
    """Return the caller whose token came with the request."""
    caller: Caller = request.state.caller
    return caller


def _turn(request: Request) -> contextlib.AbstractAsyncContextManager[None]:
    """Return the turn for an answer that takes long to make; the administrator needs none."""
    caller = _caller(request)
    if caller.tenant is None:
        return contextlib.nullcontext()
    turns: TenantTurns = request.state.turns
    return turns.turn_of(caller.name)


async def _at_master(request: Request, work: Callable[[], _T]) -> _T:
    """Do work that waits for a job's master in one of the caller's threads for it."""
    threads: TenantThreads = request.state.threads_of_masters
    return await threads.run(_caller(request).name, work)


async def _at_files(request: Request, work: Callable[[], _T]) -> _T:
    """Read files of a job's account in one of the caller's threads for it, whatever masters do."""
    threads: TenantThreads = request.state.threads_of_files
    return await threads.run(_caller(request).name, work)


def _wish(happening: Happening) -> Callable[[Lives, Request, Any], Awaitable[JobView]]:
    async def handle(lives: Lives, request: Request, _: Any) -> JobView:
        return lives.to_change.wish(
            request.path_params["job"], happening, actor=str(_caller(request))
        )

    return handle


async def _submit(lives: Lives, request: Request, body: Submit) -> JobView:
    caller = _caller(request)
    owned_request = _as_theirs(body, caller)
    await asyncio.to_thread(check_bundle, owned_request)
    return lives.to_change.submit(owned_request, by=str(caller))


def _as_theirs(body: Submit, caller: Caller) -> Submit:
    """A tenant's token names the job's tenant, and keys are each tenant's own.

    Raises:
        SpecError: it is to be another tenant's.
    """
    if caller.tenant is None:
        return body
    submission = body.submission
    if submission.tenant == NO_TENANT:
        submission = replace(submission, tenant=caller.tenant)
    if not caller.may(Right.SUBMIT, of=submission.tenant):
        raise _refusal(caller, Right.SUBMIT)
    key = f"{caller.tenant}: {body.key}" if body.key else ""
    return msgspec.structs.replace(body, submission=submission, key=key)


async def _forecast(lives: Lives, request: Request, body: Submit) -> Forecast:
    """Forecast a job; of jobs that the caller may not see, only the number of workers is told."""
    caller = _caller(request)
    forecast = await lives.now.forecast(_as_theirs(body, caller))
    takes = Counter[str]()
    for job, workers in forecast.takes.items():
        owner = lives.now.owner_of(job)
        if owner is None:
            continue  # it ended meanwhile, and was forgotten
        takes[job if caller.may(Right.SEE_JOB, of=owner) else f"tenant {owner}"] += workers
    return msgspec.structs.replace(forecast, takes=dict(takes))


async def _consequences(lives: Lives, request: Request, body: Proposal) -> list[Effect]:
    """Return the consequences of a change for each job; other tenants' jobs are summed up by tenant."""
    caller = _caller(request)
    if body.job:
        if not caller.may(Right.SEE_JOB, of=lives.now.owner_of(body.job)):
            raise no_such_job(body.job, lives.now.ids_of(caller.tenant))
        lives.now.job(body.job)  # or there is none
    elif not caller.may(Right.APPLY):
        raise _refusal(caller, Right.APPLY)
    effects = await lives.now.consequences(body)
    visible = [effect for effect in effects if _may_see(lives, caller, effect.job)]
    hidden: dict[str, Effect] = {}
    for effect in effects:
        owner = lives.now.owner_of(effect.job)
        if owner is not None and not _may_see(lives, caller, effect.job):
            name = f"tenant {owner}"
            start = Effect(job=name, workers=0, workers_after=0, finish=None, finish_after=None)
            total = hidden.get(name, start)
            hidden[name] = msgspec.structs.replace(
                total,
                workers=total.workers + effect.workers,
                workers_after=total.workers_after + effect.workers_after,
            )
    return [*visible, *hidden.values()]


async def _jobs(lives: Lives, request: Request, _: Any) -> list[JobView]:
    query = request.query_params
    try:
        limit = int(query.get("limit") or _LONGEST_PAGE)
    except ValueError:
        limit = 0
    if not 1 <= limit <= _LONGEST_PAGE:
        raise SpecError(
            "limit", got=repr(query["limit"]), need=f"a whole number from 1 to {_LONGEST_PAGE}"
        )
    unfinished = query.get("unfinished") or "false"
    if unfinished not in ("true", "false"):
        raise SpecError("unfinished", got=repr(unfinished), need="true or false")
    caller, after_job = _caller(request), query.get("after", "")
    if after_job and not caller.may(Right.SEE_JOB, of=lives.now.owner_of(after_job)):
        raise no_such_job(after_job, [])
    async with _turn(request):
        return lives.now.jobs(
            after_job=after_job, limit=limit, unfinished=unfinished == "true", tenant=caller.tenant
        )


async def _job(lives: Lives, request: Request, _: Any) -> JobView:
    """Return a job; with `wait` seconds and `until` (`ended`, `judged`), not before that.

    The end of these seconds, or that of the scheduler, ends the wait as well.
    """
    job = request.path_params["job"]
    reached = {
        "ended": lambda view: view.has_ended,
        "judged": lambda view: view.judged or view.has_ended,
    }
    condition = request.query_params.get("until") or "ended"
    if condition not in reached:
        raise SpecError("until", got=repr(condition), need="ended or judged")
    end = _end_of_wait(request)
    view = lives.now.job(job)
    while (
        not (reached[condition](view) or lives.is_over) and asyncio.get_running_loop().time() < end
    ):
        await lives.waiting.news(job, deadline=end)
        view = lives.now.job(job)
    return view


def _end_of_wait(request: Request) -> float:
    """Return the end of a request's wait for its answer, by the clock of the event loop."""
    text = request.query_params.get("wait") or "0"
    try:
        return asyncio.get_running_loop().time() + max(0.0, min(float(text), _LONGEST_WAIT))
    except ValueError:
        raise SpecError("wait", got=repr(text), need="seconds") from None


async def _logs(lives: Lives, request: Request, _: Any) -> Logs:
    """Return log lines of a job; with `wait` seconds, not before there is a line.

    The end of the job, of these seconds or of the scheduler ends the wait as well.
    """
    job, query = request.path_params["job"], request.query_params
    end = _end_of_wait(request)
    try:
        places = msgspec.json.decode(query.get("after") or "{}", type=dict[str, _Bytes])
    except UNDECODABLE:
        raise SpecError(
            "after", got=repr(query["after"]), need="the value from the last answer"
        ) from None
    folder = Path(lives.now.job(job).run)
    user = lives.now.user_of(job)

    def begin() -> Tail:
        with acting_as(user):
            return Tail(folder, query.get("worker", ""), places)

    tail = await _reading(request, begin)

    def fresh() -> list[tuple[str, str]]:
        try:
            with acting_as(user):
                return tail.fresh()
        except OSError as error:  # whatever its account has made of them
            raise EnvironmentFault(f"the logs of {job} cannot be read: {error.strerror}") from error

    while True:
        ended = lives.now.job(
            job
        ).has_ended  # asked first: what it printed at its very end is read as well
        lines = await _at_files(request, fresh)
        if lines or ended or lives.is_over or asyncio.get_running_loop().time() >= end:
            position = msgspec.json.encode(tail.places).decode()
            return Logs(lines=lines, after=position, ended=ended and not lines)
        await lives.waiting.lines(job, folder / "logs", deadline=end)


async def _files(lives: Lives, request: Request, _: Any) -> list[KeptFile]:
    job = request.path_params["job"]
    run_dir, user = Path(lives.now.job(job).run), lives.now.user_of(job)

    def list_them() -> list[KeptFile]:
        with acting_as(user):
            return files_of(run_dir, checkpoints=True)

    return await _reading(request, list_them)


async def _file(lives: Lives, request: Request, _: Any) -> bytes:
    """Return bytes of a file of a job's run directory; none where there are no more."""
    job, name = request.path_params["job"], request.path_params["name"]
    text = request.query_params.get("start") or "0"
    if not (text.isascii() and text.isdigit() and int(text) <= _LARGEST_FILE):
        raise SpecError("start", got=repr(text), need="a number of bytes")
    if not is_kept(name, checkpoints=True):
        raise SpecError(_NO_SUCH_FILE, got=repr(name), need="a file that /files lists")
    run_dir, user = Path(lives.now.job(job).run), lives.now.user_of(job)

    def read() -> bytes:
        with acting_as(user):
            return read_file(run_dir, name, int(text))

    try:
        return await _reading(request, read)
    except FileNotFoundError:
        raise SpecError(_NO_SUCH_FILE, got=repr(name), need="a file that /files lists") from None


async def _reading(request: Request, read: Callable[[], _T]) -> _T:
    """Read files of a job in a thread, with the rights of its account alone."""
    try:
        return await _at_files(request, read)
    except FileNotFoundError:
        raise
    except OSError as error:  # whatever its account has made of them
        job = request.path_params["job"]
        raise EnvironmentFault(f"the records of {job} cannot be read: {error.strerror}") from error


async def _explain(lives: Lives, request: Request, _: Any) -> list[Change]:
    return lives.now.story(request.path_params["job"])


async def _resize(lives: Lives, request: Request, body: Range) -> JobView:
    workers = WorkerRange(minimum=body.minimum, maximum=body.maximum)
    return lives.to_change.resize(request.path_params["job"], workers, actor=str(_caller(request)))


async def _renew(lives: Lives, request: Request, _: Any) -> JobView:
    at_master = functools.partial(_at_master, request)
    job, actor = request.path_params["job"], str(_caller(request))
    return await lives.to_change.renew(job, at_master, actor=actor)


async def _stacks(lives: Lives, request: Request, _: Any) -> list[WorkerStack]:
    return await lives.now.stacks(
        request.path_params["job"], functools.partial(_at_master, request)
    )


async def _any_kind(lives: Lives, request: Request, _: Any) -> JobView:
    return lives.to_change.any_kind(request.path_params["job"], actor=str(_caller(request)))


async def _attach(_: Lives, request: Request, body: Window) -> Response:
    terminals: Terminals = request.state.terminals
    return terminals.attach(request.path_params["job"], body, _caller(request))


async def _type(_: Lives, request: Request, body: Input) -> TerminalNews:
    terminals: Terminals = request.state.terminals
    return await terminals.type(request.path_params["job"], request.path_params["terminal"], body)


async def _forget(lives: Lives, request: Request, _: Any) -> Forgotten:
    job = request.path_params["job"]
    return Forgotten(job=job, bytes=await lives.to_change.forget(job))


async def _news(lives: Lives, request: Request, _: Any) -> News:
    """Return the changes; with `wait` seconds, not before there are some, or these are over.

    A caller without a place begins here: it lists all jobs once, and follows them from here on.
    """
    caller, waiting = _caller(request), lives.waiting
    end = _end_of_wait(request)
    count, line = _place_in(request.query_params.get("after", ""), waiting.name)
    if count == waiting.count and not lives.is_over:
        await waiting.any_news(deadline=end)
    async with _turn(request):
        ids, last = waiting.rung_after(waiting.count if count is None else count, _LONGEST_PAGE)
        jobs, forgotten, timestamp = lives.now.news_of(ids, tenant=caller.tenant)
        lines = lives.now.story_after(line, _MOST_LINES)
        may_see = functools.cache(lambda job: _may_see(lives, caller, job))
        return News(
            place=f"{waiting.name}.{last}.{lines[-1][0] if lines else line}",
            complete=count is not None and not (forgotten and caller.tenant),  # ids of others
            jobs=jobs,
            forgotten=forgotten if caller.tenant is None else [],
            changes=[change for _, change in lines if may_see(change.job)],
            cluster=lives.cluster(),
            nodes=lives.now.nodes(),
            tenants=lives.now.tenants(),
            tenant=caller.tenant,
            timestamp=timestamp,
        )


async def _plan(lives: Lives, request: Request, _: Any) -> list[Change]:
    may_see = functools.cache(lambda job: _may_see(lives, _caller(request), job))
    return [change for change in lives.now.plan() if may_see(change.job)]


def _place_in(text: str, name: str) -> tuple[int | None, int]:
    """Return the count of rings and the number of the last line that a place names.

    None: it is a place of another scheduler's life, whose lines still count.

    >>> _place_in("ab.7.12", "ab"), _place_in("cd.7.12", "ab"), _place_in("", "ab")
    ((7, 12), (None, 12), (None, 0))
    """
    life, _, rest = text.partition(".")
    count, _, line = rest.partition(".")
    if not (count.isdecimal() and line.isdecimal() and len(rest) < _LONGEST_PLACE):
        return None, 0
    return (int(count) if life == name else None), int(line)


def _may_see(lives: Lives, caller: Caller, job: str) -> bool:
    """Return whether a caller may see a job; those of the cluster itself have no name."""
    if caller.tenant is None:
        return True
    return bool(job) and caller.may(Right.SEE_JOB, of=lives.now.owner_of(job))


async def _cluster(lives: Lives, _: Request, __: Any) -> ClusterView:
    return lives.cluster()


async def _tenants(lives: Lives, _: Request, __: Any) -> list[TenantView]:
    return lives.now.tenants()


async def _usage(lives: Lives, request: Request, _: Any) -> UsageView:
    query, tenant = request.query_params, _caller(request).tenant
    return lives.now.usage(query.get("month", ""), query.get("group_by") or "tenant", tenant=tenant)


async def _nodes(lives: Lives, _: Request, __: Any) -> list[NodeView]:
    return lives.now.nodes()


def _draining(*, undo: bool) -> Callable[[Lives, Request, Any], Awaitable[list[NodeView]]]:
    async def drain(lives: Lives, request: Request, _: Any) -> list[NodeView]:
        name = request.path_params["node"]
        return lives.to_change.drain(name, undo=undo, actor=str(_caller(request)))

    return drain


async def _apply(lives: Lives, request: Request, body: ClusterSpec) -> ClusterView:
    return lives.to_change.reconfigure(body, actor=str(_caller(request)))


async def _down(lives: Lives, request: Request, body: Down) -> ClusterView:
    lives.down(kill=body.kill, actor=str(_caller(request)))
    return lives.cluster()


async def _give_token(_: Lives, request: Request, __: Any) -> Token:
    keys: Keys = request.state.keys
    return Token(token=keys.give(request.path_params["tenant"]))


async def _revoke_token(_: Lives, request: Request, __: Any) -> Token:
    keys: Keys = request.state.keys
    keys.revoke(request.path_params["tenant"])
    return Token(token="")


_WAIT: dict[str, Any] = {
    "type": "number",
    "minimum": 0,
    "description": f"Seconds, {_LONGEST_WAIT:.0f} at most.",
}
_WAIT_PARAMETERS: dict[str, dict[str, Any]] = {
    "wait": _WAIT,
    "until": {"enum": ["ended", "judged"], "description": "What to wait for; default: `ended`."},
}
_WHICH_LINES: dict[str, dict[str, Any]] = {
    "wait": _WAIT,
    "worker": {"type": "string", "description": "Only the lines of this worker, such as `w1`."},
    "after": {"type": "string", "description": "The value of `after` in the last answer."},
}
_RANGE_PARAMETERS: dict[str, dict[str, Any]] = {
    "start": {"type": "integer", "minimum": 0, "description": "Bytes before the first one."},
}
_WHICH_NEWS: dict[str, dict[str, Any]] = {
    "wait": _WAIT,
    "after": {"type": "string", "description": "The value of `place` in the last answer."},
}
_WHICH_JOBS: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "description": "The id of the last job of the page before."},
    "limit": {"type": "integer", "minimum": 1, "maximum": _LONGEST_PAGE, "default": _LONGEST_PAGE},
    "unfinished": {"type": "boolean", "description": "Only jobs that have not ended."},
}
_WHICH_USAGE: dict[str, dict[str, Any]] = {
    "month": {"type": "string", "description": "As `2026-11`, in UTC; default: the present one."},
    "group_by": {"enum": list(USAGE_BY), "default": "tenant"},
}
_FILE = "/v1/jobs/{job}/files/{name:path}"
_JOB, _NODE, _TOKEN = "/v1/jobs/{job}", "/v1/nodes/{node}", "/v1/tenants/{tenant}/token"
_CALLS = (
    _Call("GET", "/v1/cluster", "Show the cluster", None, ClusterView, _cluster, Right.SEE_CLUSTER),
    _Call("PUT", "/v1/cluster", "Replace the description of the cluster",
          ClusterSpec, ClusterView, _apply, Right.APPLY),
    _Call("GET", "/v1/news", "Show what has changed, at once or later", None, News, _news, Right.SEE_CLUSTER,
          _WHICH_NEWS),
    _Call("GET", "/v1/plan", "List the changes of workers that are expected next",
          None, list[Change], _plan, Right.SEE_CLUSTER),
    _Call("GET", "/v1/tenants", "List tenants, what they own and hold",
          None, list[TenantView], _tenants, Right.SEE_CLUSTER),
    _Call("GET", "/v1/usage", "Show the usage of a month", None, UsageView, _usage, Right.SEE_JOB, _WHICH_USAGE),
    _Call("GET", "/v1/nodes", "List nodes, and how they are", None, list[NodeView], _nodes, Right.SEE_CLUSTER),
    _Call("POST", f"{_NODE}/drain", "Have nothing run on a node any more",
          None, list[NodeView], _draining(undo=False), Right.APPLY),
    _Call("POST", f"{_NODE}/undrain", "Let jobs run on a drained node again",
          None, list[NodeView], _draining(undo=True), Right.APPLY),
    _Call("POST", _TOKEN, "Give a token, and revoke the last one", None, Token, _give_token, Right.GIVE_TOKENS),
    _Call("DELETE", _TOKEN, "Revoke the token", None, Token, _revoke_token, Right.GIVE_TOKENS),
    _Call("GET", "/v1/jobs", "List jobs in order of submission",
          None, list[JobView], _jobs, Right.SEE_JOB, _WHICH_JOBS),
    _Call("POST", "/v1/jobs", "Submit a job", Submit, JobView, _submit, Right.SUBMIT),
    _Call("POST", "/v1/forecast", "Forecast a job without submitting it", Submit, Forecast, _forecast, Right.SUBMIT),
    _Call("POST", "/v1/consequences", "Foresee what a change would mean for each job",
          Proposal, list[Effect], _consequences, Right.SEE_CLUSTER),
    _Call("GET", _JOB, "Show a job, at once or later", None, JobView, _job, Right.SEE_JOB, _WAIT_PARAMETERS),
    _Call("GET", f"{_JOB}/explain", "List what happened to a job, and why",
          None, list[Change], _explain, Right.SEE_JOB),
    _Call("GET", f"{_JOB}/logs", "Read what a job printed", None, Logs, _logs, Right.READ_LOGS, _WHICH_LINES),
    _Call("GET", f"{_JOB}/stacks", "Show where the Python code of each worker is now",
          None, list[WorkerStack], _stacks, Right.READ_LOGS),
    _Call("GET", f"{_JOB}/files", "List the files of a job's records and checkpoints",
          None, list[KeptFile], _files, Right.READ_RECORDS),
    _Call("GET", _FILE, "Read a part of one of these files", None, bytes, _file, Right.READ_RECORDS, _RANGE_PARAMETERS),
    _Call("POST", f"{_JOB}/terminal", "Attach a terminal to an interactive job: a line of JSON for each news",
          Window, TerminalNews, _attach, Right.USE_TERMINAL),
    _Call("POST", f"{_JOB}/terminal/{{terminal}}", "Type at a terminal, or change its window",
          Input, TerminalNews, _type, Right.USE_TERMINAL),
    _Call("POST", f"{_JOB}/resize", "Change a job's range of workers", Range, JobView, _resize, Right.RESIZE),
    _Call("POST", f"{_JOB}/suspend", "Suspend a job", None, JobView, _wish(Happening.HOLD), Right.HOLD),
    _Call("POST", f"{_JOB}/resume", "Let a suspended job run again",
          None, JobView, _wish(Happening.RELEASE), Right.HOLD),
    _Call("POST", f"{_JOB}/restart", "Replace each replica of a service, one after the other",
          None, JobView, _renew, Right.HOLD),
    _Call("POST", f"{_JOB}/any-kind", "Let an exact job go on on another kind of nodes than it began on",
          None, JobView, _any_kind, Right.HOLD),
    _Call("POST", f"{_JOB}/cancel", "End a job for good", None, JobView, _wish(Happening.CANCEL), Right.CANCEL),
    _Call("DELETE", _JOB, "Delete an ended job with its directory", None, Forgotten, _forget, Right.FORGET),
    _Call("POST", "/v1/down", "Suspend all jobs and end the scheduler", Down, ClusterView, _down, Right.END_SCHEDULER),
)  # fmt: skip


def application(lives: Lives, *, keys: Keys, audit: Audit, door: Door) -> Starlette:
    """The ASGI application.

    Args:
        keys: what every caller must present one of, also on this host: others may have accounts on
            it, and browsers carry out what pages from anywhere ask of it.
        audit: where changes and refusals are noted.
        door: which connections this is served on.
    """

    bodies = Bodies(
        largest=_LARGEST_BODY,
        of_caller=_BODIES_OF_TENANT,
        in_all=_BODIES_IN_ALL,
        to_send=_TO_SEND_BODY,
    )
    turns, terminals = TenantTurns(), Terminals(lives)
    threads_of_masters = TenantThreads("answers of their jobs")
    threads_of_files = TenantThreads("files of their jobs")

    def endpoint(call: _Call) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            origin = _origin_of(request)
            deed = f"{request.method} {request.url.path}"
            try:
                caller = keys.caller(request.headers.get("authorization", ""), origin=origin)
            except StorageFault as fault:  # nobody knows yet which tenants there are
                return _json(*_problem(fault), _CLOSE)
            if caller is None:
                audit.note_stranger(origin, deed)
                return _json(Problem(detail=_WHO_IS_THIS), 401, _CLOSE)
            all_room = caller.tenant is None
            if not door.admit(_client_of(request), caller.name, all_room=all_room):
                return _json(*_BUSY)
            request.state.caller, request.state.keys = caller, keys
            request.state.turns, request.state.terminals = turns, terminals
            request.state.threads_of_masters = threads_of_masters
            request.state.threads_of_files = threads_of_files
            response = await _answer(call, lives, request, bodies)
            is_refused = response.status_code >= http.HTTPStatus.BAD_REQUEST
            if is_refused or (request.method != "GET" and call.handle is not _type):
                changes = call.handle not in (_forecast, _consequences)
                audit.note(caller, deed, response.status_code, changes=changes)
            return response

        return answer

    async def document(_: Request) -> Response:
        return _json(openapi(), headers=_CLOSE)

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_CLOSE)

    async def ready(_: Request) -> Response:
        # Anybody may ask, so it does not say why.
        if lives.problem:
            return PlainTextResponse(
                "it decides nothing for now: brim jobs says why\n", 503, _CLOSE
            )
        return PlainTextResponse("ok\n", headers=_CLOSE)

    async def metrics(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if not keys.may_read_metrics(authorization):
            return _refused_metrics(authorization, _origin_of(request))
        if not door.admit(_client_of(request), _MONITOR, all_room=True):
            return _json(*_BUSY)
        figures = None
        with contextlib.suppress(StorageFault):  # nothing can be read: it holds
            figures = lives.now.figures()
        families = metrics_of(figures, holds=bool(lives.problem))
        kind, text = exposition(families, request.headers.get("accept", ""))
        return Response(text, headers={**_CLOSE, "Content-Type": kind, "Vary": "Accept"})

    def _refused_metrics(authorization: str, origin: str) -> Response:
        try:
            caller = keys.caller(authorization, origin=origin)
        except StorageFault:  # nobody knows yet which tenants there are
            caller = None
        if caller is None:
            audit.note_stranger(origin, "GET /metrics")
            return _json(Problem(detail=_WHO_IS_THIS), 401, _CLOSE)
        audit.note(caller, "GET /metrics", 403, changes=False)
        detail = f"tenant {caller.name} may not read metrics: brim jobs has its own jobs"
        return _json(Problem(detail=detail, field=_NOT_YOURS), 403, _CLOSE)

    async def no_page(request: Request, error: Exception) -> Response:
        status, headers = (
            (error.status_code, error.headers) if isinstance(error, HTTPException) else (404, None)
        )
        detail = f"there is no {request.method} {request.url.path}"
        return _json(Problem(detail=detail), status, {**(headers or {}), **_CLOSE})

    routes = [Route(call.path, endpoint(call), methods=[call.method]) for call in _CALLS]
    return Starlette(
        routes=[
            Route("/openapi.json", document),
            Route("/healthz", healthy),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            *routes,
        ],
        exception_handlers={404: no_page, 405: no_page},
    )


_MAPPED = "::ffff:"  # in front of IPv4 addresses, where `[::]` listens for both
_CLOSE = {"Connection": "close"}  # a stranger asks once for each connection
_BUSY = Problem(detail="too many requests are being served: ask again"), 503, _CLOSE
_MONITOR = "/metrics"  # a caller's name that no tenant has
_BYTES = "application/octet-stream"
_WHO_IS_THIS = (
    "wrong or missing token: on the scheduler's host take --state, elsewhere set BRIM_TOKEN_FILE"
)


def _origin_of(request: Request) -> str:
    return request.client.host.removeprefix(_MAPPED) if request.client else ""


def _client_of(request: Request) -> tuple[str, int] | None:
    return (request.client.host, request.client.port) if request.client else None


async def _answer(call: _Call, lives: Lives, request: Request, bodies: Bodies) -> Response:
    try:
        _check_right(call, lives, request)  # before there is any work with what it sends
        if call.takes is None:
            return await _answer_to(call, lives, request, None)
        caller = _caller(request)
        all_room = caller.tenant is None
        async with (
            bodies.read(request, caller.name, all_room=all_room) as content,
            _turn(request),
        ):
            return await _answer_to(call, lives, request, _decoded(call.takes, content))
    except NoThread as fault:
        return _json(Problem(detail=str(fault)), 503, {"Retry-After": str(RETRY_AFTER)})
    except BrimError as error:  # a spec inside a body checks itself
        return _json(*_problem(error))
    except UNDECODABLE as error:
        return _json(Problem(detail=str(error)), 400)
    except ClientDisconnect:
        return _json(Problem(detail="the body did not come to its end"), 400, _CLOSE)
    except TimeoutError:
        return _json(Problem(detail=f"the body did not come in {_TO_SEND_BODY:.0f} s"), 408, _CLOSE)
    except BodyTooLarge:
        return _json(Problem(detail=f"the body is larger than {_LARGEST_BODY} bytes"), 413, _CLOSE)
    except NoRoom:
        return _json(
            Problem(detail="too many large requests are being served: ask again"), 503, _CLOSE
        )


async def _answer_to(call: _Call, lives: Lives, request: Request, body: Any) -> Response:
    answer = await call.handle(lives, request, body)
    if isinstance(answer, Response):
        return answer
    return Response(answer, media_type=_BYTES) if call.gives is bytes else _json(answer)


class _Envelope(Sent, frozen=True, kw_only=True):
    """A `Submit` of which nothing but the code may be large."""

    submission: msgspec.Raw


def _decoded(kind: Any, content: bytearray) -> Any:
    """Decode a body, refusing too many parts early."""
    if kind is not Submit:
        return msgspec.json.decode(content, type=kind)
    sent = msgspec.json.decode(content, type=_Envelope)
    size = len(memoryview(sent.submission))
    if size > _LARGEST_SUBMISSION:
        raise SpecError(
            "submission",
            got=f"{size >> 10:,} KiB of JSON",
            need=f"at most {_LARGEST_SUBMISSION >> 10:,} KiB",
            hint="put long values into a file",
        )
    submission = msgspec.json.decode(sent.submission, type=Submission)
    return Submit(**{**msgspec.structs.asdict(sent), "submission": submission})


def _check_right(call: _Call, lives: Lives, request: Request) -> None:
    """Raises SpecError where the caller may not do this; another's job is not there for it."""
    caller, job = _caller(request), request.path_params.get("job")
    if job is not None:
        if caller.may(call.right, of=lives.now.owner_of(job)):
            return
        raise no_such_job(job, lives.now.ids_of(caller.tenant))
    if RIGHTS[call.right] is Holder.ADMINISTRATOR and not caller.may(call.right):
        raise _refusal(caller, call.right)


def _refusal(caller: Caller, right: Right) -> SpecError:
    return SpecError(
        _NOT_YOURS,
        got=f"that of tenant {caller.name}, which may not {right.value}",
        need="the administrator's"
        if RIGHTS[right] is Holder.ADMINISTRATOR
        else "that of this tenant",
    )


def _problem(error: BrimError) -> tuple[Problem, int]:
    match error:
        case SpecError(field=field, got=actual, need=need, hint=hint):
            status = {NO_SUCH_JOB: 404, _NO_SUCH_FILE: 404, _NOT_YOURS: 403}.get(field, 422)
            return Problem(detail=str(error), field=field, got=actual, need=need, hint=hint), status
        case StorageFault():
            return Problem(detail=str(error)), 503
        case EnvironmentFault():
            return Problem(detail=str(error)), 409
        case _:
            return Problem(detail=str(error)), 500


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document of this API."""
    types = [
        *(
            kind
            for call in _CALLS
            for kind in (call.takes, call.gives)
            if kind not in (None, bytes)
        ),
        Problem,
    ]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    named = iter(schemas)
    paths: dict[str, Any] = {}
    operation: dict[str, Any]
    for call in _CALLS:
        body = _content(next(named)) | {"required": True} if call.takes else None
        content = _content_of_file() if call.gives is bytes else _content(next(named))
        answers = {
            "200": {"description": call.summary, **content},
            "default": _REFUSAL,
        }
        operation = {"summary": call.summary, "responses": answers} | (
            {"requestBody": body} if body else {}
        )
        named_in_path = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in ("job", "tenant", "name", "terminal")
            if f"{{{name}" in call.path
        ]
        asks = [
            {"name": name, "in": "query", "schema": schema} for name, schema in call.asks.items()
        ]
        operation["parameters"] = [*named_in_path, *asks]
        paths.setdefault(call.path.replace(":path", ""), {})[call.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "brim scheduler", "version": brim.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _content_of_file() -> dict[str, Any]:
    return {"content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}


_REFUSAL = {"description": "Why not", **_content({"$ref": "#/components/schemas/Problem"})}
