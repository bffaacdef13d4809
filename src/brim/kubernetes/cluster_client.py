"""The jobs of a namespace of Kubernetes, as a client of a scheduler sees and changes them.

Objects are read and written, and no operator is asked: so the rights are those that the API server
gives the caller, and what is wished for is in the object, where an operator that is away finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

from brim.client import Client
from brim.domain.course import Change
from brim.domain.job import WorkerRange
from brim.domain.kept_run import KeptFile
from brim.domain.lifecycle import Phase, Wish
from brim.domain.submission import NO_TENANT
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.host.clock import monotonic, sleep, wall
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.client.refusals import AlreadyExists, NotFound
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.client.times import read_time
from brim.kubernetes.namespace_news import NamespaceNews, cluster_of
from brim.kubernetes.objects.identities import GROUP, JOB, KIND, MANAGED_BY, OPERATOR, VERSION
from brim.kubernetes.objects.record_text import unpack_record
from brim.kubernetes.objects.written_jobs import (
    PodChoices,
    code_map,
    elastic_job,
    name_of_key,
    stem_of,
)
from brim.kubernetes.pods.pod_requests import CONFIG_MAPS, PODS
from brim.kubernetes.record import ELASTIC_JOBS
from brim.scheduler.views import view_of
from brim.wire.cluster import ClusterView, Forecast, Forgotten, JobView, Logs, News, Submit

T = TypeVar("T")
# By pod, the time of its last line that was read, and how many lines of that time were: CRI-O gives
# all lines of one write one time.
_Seen: TypeAlias = dict[str, tuple[str, int]]
_POLL_INTERVAL = 1.0  # seconds between two looks at a job that somebody waits for
_MOST_NUMBERS = 100_000  # jobs of one name
_LINE = re.compile(
    r"(?P<what>workers (?P<before>\d+) -> (?P<after>\d+)|[^(]*?)(?: \((?P<why>.*)\))?"
)
_NO_JOB = "JOB"


class KubeJobs(Client):
    """The jobs of one namespace; blocking.

    Args:
        namespace: empty: that of the kubeconfig.
        notice: is told news for a waiting user.

    Attributes:
        choices: about the pods of jobs that are submitted.

    Raises:
        SpecError: no kubeconfig names an API server.
    """

    choices = PodChoices()

    def __init__(self, namespace: str = "", *, notice: Callable[[str], None]) -> None:
        self._access = find_access(os.environ)
        self._namespace = namespace or self._access.namespace
        self._notice = notice
        self._news = NamespaceNews()

    @property
    def address(self) -> str:
        return f"kubernetes://{self._namespace}"

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def is_elsewhere(self) -> bool:
        return True

    def _ask(self, question: Callable[[ApiServer], Awaitable[T]]) -> T:
        async def work() -> T:
            async with ApiServer(self._access) as server:
                return await question(server)

        return asyncio.run(work())

    # Looking --------------------------------------------------------------------------------------

    def _objects(self) -> list[PlainObject]:
        async def work(server: ApiServer) -> list[PlainObject]:
            return (await server.list(ELASTIC_JOBS, namespace=self._namespace)).items

        try:
            return sorted(self._ask(work), key=_age)
        except NotFound as missing:
            raise EnvironmentFault(
                f"the cluster of {self._access.source} has no ElasticJobs: brim is not installed there"
                "\n  hint: brim install --image IMAGE"
            ) from missing

    def _object(self, job: str) -> PlainObject:
        async def work(server: ApiServer) -> PlainObject:
            return await server.get(ELASTIC_JOBS, job, namespace=self._namespace)

        try:
            return self._ask(work)
        except NotFound:
            raise self._no_such_job(job) from None

    def _no_such_job(self, job: str) -> SpecError:
        names = [item["metadata"]["name"] for item in self._objects()][-20:]
        place = f"in namespace {self._namespace}"
        hint = did_you_mean(job, names) if names else f"there is none {place}: brim submit FILE.py"
        return SpecError(_NO_JOB, got=repr(job), need=f"the id of a job {place}", hint=hint)

    def jobs(self, *, unfinished: bool = False) -> list[JobView]:
        views = [_view(item) for item in self._objects()]
        return [view for view in views if not (unfinished and view.has_ended)]

    def job(self, job: str) -> JobView:
        return _view(self._object(job))

    def wait(self, job: str, *, until: str = "ended", timeout: float = float("inf")) -> JobView:
        end = monotonic() + timeout
        while True:
            view = self.job(job)
            reached = view.has_ended or (until == "judged" and view.judged)
            if reached or monotonic() >= end:
                return view
            sleep(min(_POLL_INTERVAL, max(0.0, end - monotonic())))

    def explain(self, job: str) -> list[Change]:
        return list(_story(self._object(job)))

    def news(self, place: str = "", *, wait: float = 0.0) -> News:
        end = monotonic() + wait
        while True:
            things = {thing["metadata"]["name"]: thing for thing in self._objects()}
            news = self._news.since(
                place,
                {name: _view(thing) for name, thing in things.items()},
                {name: _story(thing) for name, thing in things.items()},
                timestamp=wall(),
            )
            left = end - monotonic()
            if news.jobs or news.forgotten or not news.complete or left <= 0:
                return news
            place = news.place
            sleep(min(_POLL_INTERVAL, left))

    def plan(self) -> list[Change]:
        """Return nothing: what an operator plans is in no object."""
        return []

    def files(self, job: str) -> list[KeptFile]:
        """Return none: a job's records are in its master's pod and with the operator."""
        return []

    def logs(
        self, job: str, *, worker: str = "", follow: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Yield the output of a job's pods, each by its name's part behind the job's."""
        place = ""
        while True:
            logs = self.log_lines(job, worker=worker, place=place)
            yield from logs.lines
            if logs.ended or not (follow or logs.lines):
                return
            place = logs.after
            if not logs.lines:
                sleep(_POLL_INTERVAL)

    def log_lines(self, job: str, *, worker: str = "", place: str = "", wait: float = 0.0) -> Logs:
        ended = self.job(job).has_ended
        seen = msgspec.json.decode(place, type=_Seen) if place else {}
        lines = list(self._fresh_lines(job, worker, seen))
        after = msgspec.json.encode(seen).decode()
        return Logs(lines=lines, after=after, ended=ended and not lines)

    def _fresh_lines(self, job: str, worker: str, seen: _Seen) -> Iterator[tuple[str, str]]:
        async def read(server: ApiServer) -> list[tuple[str, bytes]]:
            labels = f"{MANAGED_BY}={OPERATOR},{JOB}={job}"
            pods = (await server.list(PODS, namespace=self._namespace, labels=labels)).items
            found: list[tuple[str, bytes]] = []
            for pod in sorted(pod.metadata.name for pod in pods if _has_begun(pod)):
                container = "master" if pod == f"{job}-master" else "worker"
                name = pod.removeprefix(f"{job}-")
                if worker not in ("", name):
                    continue
                with contextlib.suppress(NotFound):  # it has ended meanwhile
                    text = await server.stamped_logs(
                        pod,
                        namespace=self._namespace,
                        container=container,
                        since=seen[name][0] if name in seen else "",
                    )
                    found.append((name, text))
            return found

        for name, text in self._ask(read):
            last, known = seen.get(name, ("", 0))
            for line in text.rpartition(b"\n")[0].decode(errors="replace").split("\n"):
                stamp, _, words = line.partition(" ")
                if not stamp or stamp < last:  # a server begins at the second
                    continue
                if stamp == last and known:
                    known -= 1
                    continue
                time_before, count = seen.get(name, ("", 0))
                seen[name] = stamp, count + 1 if stamp == time_before else 1
                yield name, words

    def cluster(self) -> ClusterView:
        """Describe the devices of the namespace's jobs; other devices are not visible."""
        return cluster_of({view.job: view for view in self.jobs(unfinished=True)})

    # Changing -------------------------------------------------------------------------------------

    def submit(self, request: Submit) -> JobView:
        async def work(server: ApiServer) -> PlainObject:
            stem = stem_of(request.name)
            if request.key:
                return await self._create(server, request, name_of_key(stem, request.key))
            for number in range(await self._next_number(server, stem), _MOST_NUMBERS):
                with contextlib.suppress(AlreadyExists):
                    return await self._create(server, request, f"{stem}-{number}")
            raise SpecError("--key", got="nothing", need=f"another name than {stem}")

        try:
            return _view(self._ask(work))
        except AlreadyExists:
            return self.job(name_of_key(stem_of(request.name), request.key))
        except NotFound as missing:
            raise EnvironmentFault(
                f"{missing}\n  hint: brim install --image IMAGE, and kubectl create namespace "
                f"{self._namespace}"
            ) from missing

    async def _next_number(self, server: ApiServer, stem: str) -> int:
        things = (await server.list(ELASTIC_JOBS, namespace=self._namespace)).items
        tails = [thing["metadata"]["name"].removeprefix(f"{stem}-") for thing in things]
        return 1 + max(
            (int(tail) for tail in tails if tail.isascii() and tail.isdecimal()), default=0
        )

    async def _create(self, server: ApiServer, request: Submit, name: str) -> PlainObject:
        """Make the object of a job, and behind it that of its code, which goes with it.

        The operator waits for the code.
        """
        code, job = self._written(request, name)
        created = await server.create(ELASTIC_JOBS, job, namespace=self._namespace)
        if code is not None:
            meta = code["metadata"]
            meta["ownerReferences"] = [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": name,
                    "uid": created["metadata"]["uid"],
                }
            ]
            await server.apply(CONFIG_MAPS, meta["name"], code, namespace=self._namespace)
        return created

    def _written(self, request: Submit, name: str) -> tuple[PlainObject | None, PlainObject]:
        _refuse_conditions(request)
        code = code_map(name, self._namespace, request.bundle) if request.bundle else None
        return code, elastic_job(name, self._namespace, request.submission, self.choices)

    def written(self, request: Submit) -> list[PlainObject]:
        """Return the objects that `submit` would make, the code first; the first job has this name."""
        stem = stem_of(request.name)
        code, job = self._written(request, name_of_key(stem, request.key) if request.key else stem)
        return [job] if code is None else [code, job]

    def _patch(self, job: str, **fields: Any) -> JobView:
        view_before = self.job(job)
        if view_before.has_ended:
            actual = f"{job}, which is {view_before.state}"
            raise SpecError(_NO_JOB, got=actual, need="a job that has not ended")

        async def work(server: ApiServer) -> PlainObject:
            body = {"spec": fields}
            return await server.merge_patch(ELASTIC_JOBS, job, body, namespace=self._namespace)

        return _view(self._ask(work))

    def resize(self, job: str, workers: WorkerRange) -> JobView:
        return self._patch(job, workers={"min": workers.minimum, "max": workers.maximum})

    def suspend(self, job: str) -> JobView:
        return self._patch(job, suspend=True)

    def resume(self, job: str) -> JobView:
        return self._patch(job, suspend=False)

    def cancel(self, job: str) -> JobView:
        """End a job for good, and delete its object."""
        thing = self._object(job)
        self._delete(thing)
        return _view(thing)

    def forget(self, job: str) -> Forgotten:
        thing = self._object(job)
        if not _view(thing).has_ended:
            actual, hint = f"{job}, which has not ended", f"brim cancel {job}"
            raise SpecError(_NO_JOB, got=actual, need="a job that has ended", hint=hint)
        self._delete(thing)
        return Forgotten(job=job, bytes=0)

    def _delete(self, thing: PlainObject) -> None:
        meta = thing["metadata"]

        async def work(server: ApiServer) -> None:
            with contextlib.suppress(NotFound):
                await server.delete(
                    ELASTIC_JOBS,
                    meta["name"],
                    namespace=self._namespace,
                    uid=meta["uid"],
                    propagation="Background",
                )

        self._ask(work)

    # What objects do not say ----------------------------------------------------------------------

    def forecast(self, request: Submit) -> Forecast:
        self._refuse()

    def _call(self, *_: Any, **__: Any) -> Any:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SpecError(
            "--server",
            got=self.address,
            need="a scheduler of brim up: in Kubernetes this is for kubectl",
            hint="kubectl get tenants,elasticjobs,nodes",
        )


def read_line(line: str) -> Change:
    """Return a line of the story in a job's status as an event.

    >>> read_line("2026-11-24T17:00:00Z workers 1 -> 3 (surplus: 2 are free)").after
    3
    """
    time_text, _, sentence = line.partition(" ")
    found = _LINE.fullmatch(sentence)
    parts = found.groupdict() if found else {"what": sentence}
    resized = parts.get("before") is not None
    reason, _, detail = (parts.get("why") or "").partition(": ")
    timestamp = 0.0
    with contextlib.suppress(SpecError):
        timestamp = read_time(time_text, field="story")
    return Change(
        at=timestamp,
        event="workers" if resized else parts["what"] or sentence,
        before=int(parts["before"] or 0) if resized else 0,
        after=int(parts["after"] or 0) if resized else 0,
        reason=reason,
        detail=detail,
    )


def _refuse_conditions(request: Submit) -> None:
    """Raises SpecError for what only a scheduler of `brim up` does."""
    conditions = request.submission.conditions
    chosen = {
        "--after": conditions.predecessors,
        "--at": conditions.earliest,
        "--array": request.array,
        "--retries": request.submission.retries,
        "--notify": request.submission.notify,
    }
    for option, value in chosen.items():
        if value:
            need = "none: the operator starts each ElasticJob as soon as there is room"
            hint = f"leave {option} out, or a scheduler of brim up"
            raise SpecError(option, got="the option", need=need, hint=hint)


def _age(thing: PlainObject) -> tuple[str, str]:
    return thing["metadata"].get("creationTimestamp", ""), thing["metadata"]["name"]


def _has_begun(pod: KubePod) -> bool:
    return pod.status.phase != "Pending"


def _story(thing: PlainObject) -> tuple[Change, ...]:
    """Return the last lines of a job's story."""
    job, lines = thing["metadata"]["name"], (thing.get("status") or {}).get("story") or []
    return tuple(replace(read_line(line), job=job) for line in lines)


def _view(thing: PlainObject) -> JobView:
    """Return a job by the record in its status; by its spec, where there is none that can be read."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    run = f"kubernetes://{meta['namespace']}/{meta['name']}"
    message = status.get("message", "") if status.get("phase") == "Invalid" else ""
    if not status.get("record"):
        return _unrecorded(thing, run, message)
    try:
        record = unpack_record(status["record"], uid=meta["uid"])
    except EnvironmentFault as fault:  # it says nothing about other jobs
        return _unrecorded(thing, run, message or str(fault))
    view = view_of(record, None, run_dir=Path(run), waits="", now=wall())
    wish = Wish.HOLD.value if spec.get("suspend") and not record.life.ended else view.wish
    return msgspec.structs.replace(view, job=meta["name"], run=run, wish=wish)


def _unrecorded(thing: PlainObject, run: str, message: str) -> JobView:
    meta, spec = thing["metadata"], thing.get("spec") or {}
    workers = spec.get("workers") or {}
    deadline = None
    with contextlib.suppress(SpecError):  # the operator says what is wrong with it
        deadline = read_time(spec.get("deadline"), field="spec.deadline")
    return JobView(
        job=meta["name"],
        state=Phase.SUBMITTED.value,
        wish=(Wish.HOLD if spec.get("suspend") else Wish.RUN).value,
        run=run,
        tenant=spec.get("tenant") or NO_TENANT,
        priority=spec.get("priority") or "",
        minimum=workers.get("min", 1),
        maximum=workers.get("max", 1),
        nodes={},
        workers=0,
        planned=0,
        step=0,
        steps=None,
        submitted=read_time(meta["creationTimestamp"], field="metadata.creationTimestamp"),
        started=None,
        ended=None,
        deadline=deadline,
        promised=False,
        judged=False,
        reason="",
        detail="",
        earliest=None,
        estimate=None,
        finish=None,
        first_estimate=None,
        half_estimate=None,
        attained_seconds=0.0,
        launches=0,
        problem=message,
        summary={},
    )
