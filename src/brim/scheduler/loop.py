"""The scheduler: the cluster loop with a policy and a journal, and people's requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import Protocol

import msgspec

from brim import client
from brim.coordination.cluster.reconcile import force_begins
from brim.coordination.cluster.scheduled_jobs import (
    Event,
    KindFreed,
    RangeChanged,
    ScheduledJobs,
    Submitted,
    Wished,
)
from brim.domain.channels import check_subscriptions
from brim.domain.cluster import ClusterSpec
from brim.domain.conditions import ARRAY_INDEX, Predecessor, check_array
from brim.domain.course import Change
from brim.domain.job import WorkerRange
from brim.domain.lifecycle import Happening, Phase
from brim.domain.names import check_name
from brim.domain.quantities import counted, format_bytes, format_duration
from brim.domain.schedule import Decision, Snapshot
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import (
    FARTHEST_DEADLINE,
    MOST_BYTES,
    NO_TENANT,
    Submission,
    as_service,
    by_tenant,
    check_conditions,
    check_spec,
    check_terminal,
)
from brim.domain.tenancy import Quota, Tenant
from brim.domain.usage import bounds_of, parse_month
from brim.errors import EnvironmentFault, SpecError, StorageFault, did_you_mean
from brim.host.account import check_account, check_python
from brim.host.log import LogLine
from brim.interfaces import Backend, Clock
from brim.loop import run_cluster
from brim.policies.cycle import CycleMemory, cycle
from brim.policies.kinds import ask_within
from brim.policies.placement import on_nodes
from brim.policies.what_if import what_if
from brim.scheduler.consequences import effects_of, with_proposal
from brim.scheduler.cycles import decode_memory, encode_cycle, encode_memory
from brim.scheduler.foretelling import Foretelling
from brim.scheduler.forgetting import Forgetting
from brim.scheduler.front_certificate import check_certificate
from brim.scheduler.metrics import MOST_JOBS, JobSeries, SchedulerFigures, is_at_risk
from brim.scheduler.notifying import Notifying, check_channels
from brim.scheduler.services import Services
from brim.scheduler.views import (
    USAGE_BY,
    by_the_hosts_clock,
    forecast_of,
    node_view,
    times_of,
    usage_rows,
    view_of,
    with_recent_use,
)
from brim.storage.book import Book
from brim.storage.bundles import read_bundle
from brim.storage.database import CycleRow, Database
from brim.telemetry.prometheus import Histogram
from brim.user_code.own_code import is_in, word_after, word_of
from brim.user_code.policies import POLICIES
from brim.wire.cluster import (
    ClusterView,
    Effect,
    Forecast,
    JobView,
    NodeView,
    Proposal,
    Submit,
    TenantView,
    UsageView,
    WorkerStack,
)

CLUSTER = "cluster"  # the name of a setting in the database
NO_SUCH_JOB = "JOB"  # the field of the error that says so
NO_SUCH_NODE = "NODE"
_log = logging.getLogger(__name__)
# jobs above which it is decided in a thread, for that may take longer than a question may wait
_MAX_INLINE_JOBS = 200
_LONGEST_KEY = 200
_RESUMED = "?"  # the id of a held job while it is foreseen how it would go on


class LiveCluster(Backend, Protocol):
    """A backend as a live scheduler needs it, beyond the loop: see `brim.backends.live`."""

    jobs: ScheduledJobs
    memory: object
    cycles: deque[float]
    looks: deque[float]
    cycle_seconds: Histogram
    look_seconds: Histogram

    @property
    def spec(self) -> ClusterSpec: ...

    @property
    def problem(self) -> str: ...

    def handle(self, event: Event) -> object:
        """Take in an event; its consequences are on disk when it returns."""
        ...

    def close(self) -> None: ...

    async def decide_meanwhile(self, deciding: Awaitable[Decision]) -> Decision:
        """Wait for a decision that takes long; until then, give jobs their lost workers back."""
        ...

    def reconfigure(self, spec: ClusterSpec) -> None: ...

    def drain(self, *, kill: bool) -> None: ...


def decide(snapshot: Snapshot, policy: str, *, left_by: str, ahead: bool = False) -> Decision:
    """One cycle of a live cluster.

    Args:
        policy: its name.
        left_by: the policy that left the snapshot's memory: another has no use for what it
            remembers.
        ahead: it is only looked ahead: places of workers do not matter.
    """
    if policy != left_by and isinstance(snapshot.memory, CycleMemory):
        snapshot = replace(snapshot, memory=CycleMemory(blocks=snapshot.memory.blocks))
    # Which devices of a node they use is its agents' business.
    ask = partial(cycle, policy=POLICIES[policy], placed=False)
    return ask_within(snapshot, ask, _as_given if ahead else on_nodes)


def _as_given(_: Snapshot, decision: Decision) -> Decision:
    return decision


def check_accounts(spec: ClusterSpec) -> None:
    """Raises SpecError where jobs cannot be run as the accounts of a cluster's tenants."""
    fields = {f"tenant {tenant.id}: user": tenant.user for tenant in spec.tenants if tenant.user}
    for check in (check_account, check_python):
        for field, user in fields.items():
            check(user, field=field)


def no_such_job(id: str, ids: Collection[str], *, field: str = NO_SUCH_JOB) -> SpecError:
    """Return the error for a job that is not there.

    Args:
        ids: the ids of those that are, as far as the caller may know them.
        field: where it was named.
    """
    recent = list(ids)[-20:]
    hint = did_you_mean(id, recent) if recent else "there is none yet: brim submit FILE.py"
    return SpecError(field, got=repr(id), need="the id of a job", hint=hint)


def _line_of(snapshot: Snapshot, decision: Decision, policy: str) -> LogLine:
    """A cycle in a line."""
    workers_before = {state.job.id: state.workers for state in snapshot.jobs}
    return LogLine(
        "cycle",
        policy=policy,
        jobs=len(workers_before),
        arrived=len(snapshot.arrived),
        devices=snapshot.capacity,
        workers=sum(decision.workers.values()),
        changed=sum(decision.workers.get(job, 0) != count for job, count in workers_before.items()),
        wakes_in=None if decision.wake is None else round(decision.wake - snapshot.now, 3),
    )


def _check_deadline(submission: Submission, now: float) -> None:
    """Raises SpecError where a new job could only be late; one that is there may well be."""
    if submission.deadline is not None and submission.deadline <= now:
        raise SpecError(
            "--deadline",
            got="a time that has passed",
            need="a time in the future",
            hint="--deadline 2h",
        )
    if submission.deadline is not None and submission.deadline > now + FARTHEST_DEADLINE:
        actual = f"a time in {(submission.deadline - now) / 3600.0:.3g} hours"
        raise SpecError(
            "--deadline", got=actual, need="a time within 10 years", hint="leave it out for none"
        )


def _check_size(request: Submit) -> None:
    """Raises SpecError where a request is too large.

    Either no node could be told of it, or only its key would be shown.
    """
    if len(request.key) > _LONGEST_KEY:
        actual, need = f"{len(request.key):,} characters", f"at most {_LONGEST_KEY} characters"
        raise SpecError("--key", got=actual, need=need, hint="--key nightly-2026-11-21")
    size = len(msgspec.msgpack.encode(request.submission))
    if size > MOST_BYTES:
        actual, need = f"{size >> 10:,} KiB", f"at most {MOST_BYTES >> 10} KiB"
        raise SpecError(
            "--set and --env", got=actual, need=need, hint="put long values into a file"
        )


def check_bundle(request: Submit) -> None:
    """Raises SpecError where the code that came is not that of the job.

    This takes long for much code, so it is no part of `Scheduler.submit`, and done in a thread.
    """
    spec = request.submission.spec
    if not (spec.bundle or request.bundle):
        return
    try:
        files = read_bundle(request.bundle, spec.bundle)
    except EnvironmentFault as fault:
        raise SpecError(
            "bundle", got=str(fault), need="the code, as brim submit packs it"
        ) from None
    if not is_in(files, spec):
        actual = f"code without {PurePath(word_of(spec) or word_after('-m', spec.command)).name!r}"
        raise SpecError("bundle", got=actual, need="the file that the job runs")


def _check_same(earlier: ScheduledJob, request: Submit, array: Sequence[int]) -> None:
    """Raises SpecError where a key is that of another job, or of an array of other indices.

    The workers of the job may have been changed since.
    """
    submission = request.submission
    as_submitted = earlier.submission.with_range_of(submission)
    if submission.spec.service is not None:
        submission = as_service(submission)
    # Its deadline too may say "in 2 h" and mean another moment by now.
    as_submitted = replace(
        as_submitted,
        deadline=submission.deadline,
        conditions=submission.conditions,
    )
    # The latter: an earlier version took it in.
    same_jobs = [as_submitted, by_tenant(submission), submission]
    if array:
        same_jobs = [_without_index(job) for job in same_jobs]
    is_same = same_jobs[0] in same_jobs[1:]
    if not is_same or tuple(array) != request.array:
        raise SpecError(
            "--key",
            got=f"{request.key!r}, with which {earlier.id} was submitted",
            need="the same job again, or another key",
            hint="leave --key out: every submission then gets its own key",
        )


def _without_index(submission: Submission) -> Submission:
    env = {name: value for name, value in submission.spec.env.items() if name != ARRAY_INDEX}
    return replace(submission, spec=replace(submission.spec, env=env))


def _in_array(submission: Submission, array: str, index: int) -> Submission:
    """Return the job of an array with this index, which it finds in its environment."""
    spec = submission.spec
    env = {**spec.env, ARRAY_INDEX: str(index)}
    conditions = replace(submission.conditions, array=array, index=index)
    return replace(submission, conditions=conditions, spec=replace(spec, env=env))


def _actor_sentence(actor: str, action: str = "") -> str:
    """A sentence for a story.

    >>> _actor_sentence("ads from 10.0.0.3", "may have 2 workers"), _actor_sentence("")
    ('may have 2 workers, by ads from 10.0.0.3', '')
    """
    return ", ".join(part for part in (action, f"by {actor}" if actor else "") if part)


class Scheduler:
    """One cluster's scheduler, which goes on where the last cycle of an earlier life ended.

    Args:
        database: has the journal of cycles, and the cluster as it was last described.
        jobs_folder: has the run directories; beside it are folders of services.
        address: of this host, on which the fronts of services listen.
    """

    def __init__(
        self,
        book: Book,
        database: Database,
        backend: LiveCluster,
        *,
        jobs_folder: Path,
        clock: Clock,
        address: str = "127.0.0.1",
    ) -> None:
        self._book, self._database, self._backend = book, database, backend
        self._folder, self._clock = jobs_folder, clock
        self._ended_by = ""
        self._foretelling = Foretelling(backend.handle, clock=clock)
        self._forgetting = Forgetting(
            book, jobs_folder=jobs_folder, clock=clock, keep=lambda: backend.spec.keep_ended
        )
        self._notifying = Notifying(book, channels=lambda: backend.spec.channels, clock=clock)
        self._services = Services(
            backend.jobs,
            handle=backend.handle,
            rules=lambda: backend.spec.services,
            folder=jobs_folder.parent / "services",
            address=address,
            clock=clock,
        )
        self._forecasting = asyncio.Lock()  # one at a time: cycles need threads as well
        last = database.last_cycle()
        self._policy = backend.spec.policy  # that decides now
        self._last_policy = last.policy if last else backend.spec.policy
        self._unreadable = list(book.unreadable)
        if last is not None:
            self._remember(last)

    def _remember(self, last: CycleRow) -> None:
        """Go on with the plans of the last cycle.

        The promises are in the records: plans can be made again from scratch.
        """
        try:
            self._backend.memory = decode_memory(last.memory, policy=last.policy)
        except EnvironmentFault as fault:
            self._unreadable.append(f"{fault}; promises stand, and plans are made again")

    async def run(self, held_note: str = "") -> None:
        """Decide and act, until it is told to end.

        Args:
            held_note: why and for how long this process decided nothing before; empty where it has just
                come up.
        """
        background = [
            asyncio.create_task(self._foretelling.run()),
            asyncio.create_task(self._forgetting.run()),
            asyncio.create_task(self._notifying.run()),
            asyncio.create_task(self._services.run()),
        ]
        for task in background:
            task.add_done_callback(_tell_of_fault)
        if held_note:
            self._note("went on", held_note)
        else:
            self._note("up", self._described())
        for text in self._unreadable:
            self._note("went on without", text)
        try:
            await run_cluster(self._backend, self._decide, self._journal)
            await self._services.end()
            self._note("down", _actor_sentence(self._ended_by))
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    @property
    def damage(self) -> str:
        """The parts of the book that cannot be read, and could be decided about only wrongly.

        The words are empty where there is no such part.
        """
        damaged = [
            f"the record of {job} cannot be decoded ({problem})"
            for job, problem in self._book.damaged.items()
        ]
        rest = f"; and of {counted(len(damaged) - 1, 'other job')}" if len(damaged) > 1 else ""
        return f"{damaged[0]}{rest}" if damaged else ""

    def tell(self, hear: Callable[[str], None]) -> None:
        """Have `hear` called with the id of each job of which there is news."""
        self._book.tell = hear

    def prove(self) -> None:
        """Raises StorageFault where it could not write anything down."""
        self._database.prove()

    def close(self) -> None:
        """End the life of this scheduler: it writes nothing more."""
        self._backend.close()
        self._forgetting.close()
        self._database.close()

    def _decide(self, snapshot: Snapshot) -> Decision | Awaitable[Decision]:
        """Decide the next cycle; where jobs are many, in a thread.

        Questions are answered meanwhile, and lost workers of a job come back.
        """
        self._policy = self._backend.spec.policy
        ask = partial(decide, snapshot, self._policy, left_by=self._last_policy)
        if len(snapshot.jobs) <= _MAX_INLINE_JOBS:
            return ask()
        return self._backend.decide_meanwhile(asyncio.to_thread(ask))

    def _journal(self, snapshot: Snapshot, decision: Decision) -> None:
        self._last_policy = policy = self._policy  # another may have been applied meanwhile
        memory = encode_memory(decision.memory, policy=policy)
        self._database.add_cycle(snapshot.now, policy, encode_cycle(snapshot, decision), memory)
        if _log.isEnabledFor(logging.INFO):
            _log.info(_line_of(snapshot, decision, policy))
        if self._backend.jobs.has_measured:  # nobody hears of the others
            self._foretelling.tell(
                snapshot, decision, partial(decide, policy=policy, left_by=policy, ahead=True)
            )

    # Jobs -----------------------------------------------------------------------------------------

    def submit(self, request: Submit, *, by: str = "") -> JobView:
        """Take a job in, or show the one that was taken in with the same key.

        Its code was checked by `check_bundle`. Of an array all jobs are taken in, or none, and the
        first is shown.

        Args:
            by: the person who wants it, and from where, for its story; so in all of these.

        Raises:
            SpecError: it can never run here, or the key is that of another.
        """
        earlier = self._book.keyed(request.key)
        if earlier is not None:  # asked first: by now its deadline may have passed
            in_array = earlier.submission.conditions.array
            members = self._array_of(in_array) if in_array else []
            indices = [member.submission.conditions.index for member in members]
            _check_same(earlier, request, indices)
            return self._view(earlier)
        check_name(request.name, field="name", hint="the name of the training file")
        check_spec(request.submission.spec)
        _check_size(request)
        now, submission = self._clock.wall(), by_tenant(self._by_own_clock(request.submission))
        submission = as_service(submission)
        self._check(submission)
        self._services.check(submission, has_tenants=bool(self.declared))
        _check_deadline(submission, now)
        check_conditions(submission)
        self._check_subscriptions(submission)
        check_array(request.array)
        check_terminal(submission, request.array)
        submission = self._with_predecessors(submission)
        self._check_room(submission, request)
        if request.bundle:  # first: a job that is recorded can be started
            self._book.keep_bundle(request.bundle, submission.spec.bundle)
        with self._book.transaction():
            jobs = self._take_in(request, submission, now=now, by=by)
        self._services.begin(jobs[0])
        return self._view(jobs[0])

    def _take_in(
        self, request: Submit, submission: Submission, *, now: float, by: str
    ) -> list[ScheduledJob]:
        """Record the job of a request, or those of its array, of which the first has the key."""
        user = self._user_of(submission.tenant)
        jobs: list[ScheduledJob] = []
        for index in request.array or (None,):
            key = "" if jobs else request.key
            job = self._book.new_job(submission, name=request.name, now=now, key=key, user=user)
            if index is not None:
                first = jobs[0] if jobs else job
                job.submission = _in_array(submission, first.id, index)
            self._backend.handle(Submitted(job, _actor_sentence(by)))
            jobs.append(job)
        return jobs

    def _with_predecessors(self, submission: Submission) -> Submission:
        """Return a submission with those that it waits for; a job of an array stands for all of it.

        Raises:
            SpecError: its tenant has no such job, or one has ended that can never be done.
        """
        pending: dict[str, Predecessor] = {}
        for predecessor in submission.conditions.predecessors:
            record = self._book.jobs.get(predecessor.job)
            if record is None or record.submission.tenant != submission.tenant:
                ids = self.ids_of(submission.tenant)
                raise no_such_job(predecessor.job, ids, field="--after")
            id = record.submission.conditions.array or record.id
            if id not in pending or predecessor.success:
                pending[id] = replace(predecessor, job=id)
        remaining = [each for each in pending.values() if self._is_pending(each)]
        conditions = replace(submission.conditions, predecessors=tuple(remaining))
        return replace(submission, conditions=conditions)

    def _is_pending(self, predecessor: Predecessor) -> bool:
        """Return whether a job, or an array, has not ended yet.

        Raises:
            SpecError: it was to be done, and cannot be any more.
        """
        members = self._array_of(predecessor.job)
        for member in members if predecessor.success else ():
            if member.life.ended and member.life.phase is not Phase.DONE:
                actual = f"{member.id}, which is {member.life.phase.value}"
                need = "a job that is done, or can be"
                hint = f"--after {predecessor.job}"
                raise SpecError("--after", got=actual, need=need, hint=hint)
        return not all(member.life.ended for member in members)

    def _array_of(self, id: str) -> list[ScheduledJob]:
        """List all jobs of the array of this id, as far as they are known, or the one job."""

        def is_member(record: ScheduledJob) -> bool:
            return record.submission.conditions.array == id

        first = self._book.jobs.get(id)
        if first is None:  # it was forgotten
            return [record for record in self._book.unfinished() if is_member(record)]
        return [first, *takewhile(is_member, self._book.jobs.records_after(id))]

    async def forecast(self, request: Submit) -> Forecast:
        """Return the forecast for a job, which is not taken in.

        The answer is worked out in a thread, for it takes many cycles.

        Raises:
            SpecError: it can never run here.
        """
        submission = as_service(by_tenant(self._by_own_clock(request.submission)))
        check_spec(submission.spec)
        self._check(submission)
        self._services.check(submission, has_tenants=bool(self.declared))
        _check_deadline(submission, self._clock.wall())
        check_conditions(submission)
        self._check_subscriptions(submission)
        check_array(request.array)
        self._with_predecessors(submission)
        async with self._forecasting:
            now = self._clock.wall()
            newcomer = ScheduledJob(
                number=0, id=f"{request.name}-?", submission=submission, submitted=now
            )
            jobs = self._backend.jobs
            has_lessons = jobs.is_known(newcomer) and bool(self._book.steps_of(submission))
            snapshot = jobs.snapshot(now, memory=self._backend.memory, newcomer=newcomer)
            policy = self._backend.spec.policy
            ask = partial(decide, policy=policy, left_by=self._last_policy, ahead=True)
            forecast = await asyncio.to_thread(what_if, snapshot, newcomer.id, ask)
        return forecast_of(forecast, has_lessons=has_lessons, set_by=self._clock.set_by())

    async def consequences(self, proposal: Proposal) -> list[Effect]:
        """Return the consequences of a change for each job, as far as they can be foreseen.

        The answer is worked out in a thread, as forecasts are.

        Raises:
            SpecError: there is no such node, or the range is none.
        """
        present = self._backend.jobs.present.cluster
        if proposal.action in ("drain", "undrain") and proposal.node not in {
            node.id for node in present.nodes
        }:
            raise SpecError(NO_SUCH_NODE, got=repr(proposal.node), need="a node of this cluster")
        if proposal.minimum > proposal.maximum:
            raise SpecError(
                "minimum", got=str(proposal.minimum), need=f"at most {proposal.maximum}"
            )
        async with self._forecasting:
            now, jobs, offset = self._clock.wall(), self._backend.jobs, self._clock.set_by()
            memory = self._backend.memory
            snapshot = jobs.snapshot(now, memory=memory)
            changed = with_proposal(snapshot, proposal, nodes=present)
            if proposal.action == "resume":
                resumed = replace(self._find(proposal.job), id=_RESUMED)
                changed = jobs.snapshot(now, memory=memory, newcomer=resumed)
            policy = self._backend.spec.policy
            ask = partial(decide, policy=policy, left_by=self._last_policy, ahead=True)
            effects = await asyncio.to_thread(effects_of, snapshot, changed, ask)
        return [
            msgspec.structs.replace(
                effect,
                job=proposal.job if effect.job == _RESUMED else effect.job,
                finish=effect.finish + offset if effect.finish is not None else None,
                finish_after=effect.finish_after + offset
                if effect.finish_after is not None
                else None,
            )
            for effect in effects
        ]

    def _by_own_clock(self, submission: Submission) -> Submission:
        """Translate the times of a submission into our own clock.

        A user who submits goes by the host's clock, which somebody may have set; promises go by our
        own.
        """
        offset = self._clock.set_by()
        if not offset:
            return submission
        deadline, conditions = submission.deadline, submission.conditions
        if deadline is not None:
            deadline -= offset
        if conditions.earliest:
            conditions = replace(conditions, earliest=conditions.earliest - offset)
        return replace(submission, deadline=deadline, conditions=conditions)

    def _check(self, submission: Submission) -> None:
        """Raises SpecError where it can never run here."""
        spec, capacity = self._backend.spec, self._backend.jobs.present.capacity
        is_service = submission.spec.service is not None  # whose file has its options
        # Where most devices come with nodes that join, more may yet come.
        if submission.spec.workers.minimum > capacity and not spec.is_open:
            raise SpecError(
                "replicas" if is_service else "--workers",
                got=str(submission.spec.workers),
                need=f"at least one number that this cluster has: 1 to {capacity}",
                hint=f"{'replicas:' if is_service else '--workers'} 1:{capacity}",
            )
        longest = force_begins(spec.grace)
        if is_service:
            longest /= 2.0  # so long for requests in flight, and so long from SIGTERM on
        if submission.spec.restart and submission.spec.grace > longest:
            raise SpecError(
                "grace" if is_service else "--grace",
                got=format_duration(submission.spec.grace),
                need=f"at most {format_duration(longest)}: after {format_duration(spec.grace)} this "
                "cluster takes devices by force",
                hint=f"{'grace:' if is_service else '--grace'} {format_duration(longest)}, or a longer "
                "grace: in cluster.yaml",
            )
        check_name(submission.tenant, field="--tenant")
        tenants_declared = [tenant.id for tenant in spec.tenants]
        if tenants_declared and submission.tenant not in tenants_declared:
            hint = did_you_mean(submission.tenant, tenants_declared)
            is_default = submission.tenant == NO_TENANT
            raise SpecError(
                "--tenant",
                got="none, which is required here" if is_default else repr(submission.tenant),
                need=f"a tenant of this cluster: {' or '.join(sorted(tenants_declared))}",
                hint=f"--tenant {tenants_declared[0]}" if is_default else hint,
            )

    def _check_subscriptions(self, submission: Submission) -> None:
        channels = self._backend.spec.channels
        check_subscriptions(submission.notify, channels, tenant=submission.tenant)

    def _check_room(self, submission: Submission, request: Submit) -> None:
        """Raises SpecError where a tenant has as many jobs, or bytes, as it may have."""
        id = submission.tenant
        tenants = [tenant for tenant in self._backend.spec.tenants if tenant.id == id]
        tenant = tenants[0] if tenants else Tenant(id=id)
        count = sum(record.submission.tenant == id for record in self._book.unfinished())
        new = max(1, len(request.array))
        if count + new > tenant.jobs:
            raise SpecError(
                f"tenant {id}",
                got=counted(count, "unfinished job"),
                need=f"at most {max(0, tenant.jobs - new):,} to submit {new:,} more",
                hint="brim cancel JOB ends one; jobs: in cluster.yaml allows more",
            )
        stored_bytes = self._book.bytes_of(id) + new * len(msgspec.msgpack.encode(submission))
        if not self._book.has_code(id, submission.spec.bundle):
            stored_bytes += len(request.bundle)
        if stored_bytes > tenant.code:
            raise SpecError(
                f"tenant {id}",
                got=f"{format_bytes(stored_bytes)} of code and records of its jobs, with this one",
                need=f"at most {format_bytes(tenant.code)}",
                hint="brim forget JOB gives room back; code: in cluster.yaml allows more",
            )

    def jobs(
        self,
        *,
        after_job: str = "",
        limit: int | None = None,
        unfinished: bool = False,
        tenant: str | None = None,
    ) -> list[JobView]:
        """Jobs by order of submission.

        Args:
            after_job: the id of the job behind which they begin; empty: with the first.
            limit: at most so many; None: all.
            unfinished: without those that have ended.
            tenant: only those of this one; None: of all.

        Raises:
            SpecError: there is no such job.
        """
        number = self._find(after_job).number if after_job else 0
        if unfinished:
            records = iter([record for record in self._book.unfinished() if record.number > number])
        else:
            records = (
                self._book.jobs.records_after(after_job)
                if after_job
                else iter(self._book.jobs.values())
            )
        of_tenant = (record for record in records if tenant in (None, record.submission.tenant))
        return [self._view(record) for record in islice(of_tenant, limit)]

    def job(self, id: str) -> JobView:
        """Raises SpecError where there is no such job."""
        return self._view(self._find(id))

    def story(self, id: str) -> list[Change]:
        """Return the history of a job, with the reasons.

        Raises SpecError where there is no such job.
        """
        by = self._clock.set_by()
        return [replace(change, at=change.at + by) for change in self._book.story(self._find(id))]

    def story_after(self, number: int, limit: int) -> list[tuple[int, Change]]:
        """Return the newest lines of all stories behind a number, each with its own, in order."""
        offset = self._clock.set_by()
        lines = self._book.story_after(number, limit)
        return [(place, replace(change, at=change.at + offset)) for place, change in lines]

    def plan(self) -> list[Change]:
        """Return the changes of workers that are expected next, if nothing new happens."""
        offset = self._clock.set_by()
        return [replace(change, at=change.at + offset) for change in self._foretelling.plan]

    def news_of(
        self, ids: Iterable[str], *, tenant: str | None
    ) -> tuple[list[JobView], list[str], float]:
        """Return these jobs and all that run, the ids that are forgotten, and the time.

        Args:
            tenant: only the jobs of this one; None: of all.
        """
        running = [record.id for record in self._book.unfinished() if record.running]
        records = {id: self._book.jobs.get(id) for id in [*ids, *running]}
        views = [
            self._view(record)
            for record in records.values()
            if record is not None and tenant in (None, record.submission.tenant)
        ]
        forgotten = [id for id, record in records.items() if record is None]
        return views, forgotten, self._clock.wall() + self._clock.set_by()

    def _user_of(self, tenant: str) -> str:
        return next((owner.user for owner in self._backend.spec.tenants if owner.id == tenant), "")

    def user_of(self, id: str) -> str:
        """The account that owns the directory of a job; empty: the scheduler's.

        Raises SpecError as `job` does.
        """
        return self._find(id).user

    def is_interactive(self, id: str) -> bool:
        """Return whether a job has a terminal. Raises SpecError as `job` does."""
        return self._find(id).submission.spec.tty

    def ids_of(self, tenant: str | None) -> list[str]:
        """The jobs of a tenant, by order of submission."""
        return [id for id, record in self._book.jobs.items() if record.submission.tenant == tenant]

    def owner_of(self, id: str) -> str | None:
        """The tenant of a job; None where there is no such job."""
        record = self._book.jobs.get(id)
        return record.submission.tenant if record else None

    def _find(self, id: str) -> ScheduledJob:
        record = self._book.jobs.get(id)
        if record is None:
            raise no_such_job(id, self._book.jobs)
        return record

    def _view(self, record: ScheduledJob) -> JobView:
        now = self._clock.wall()
        state = self._backend.jobs.state(record, now) if record.running else None
        waits = self._backend.jobs.waits_for(record)
        view = view_of(record, state, run_dir=self._folder / record.id, waits=waits, now=now)
        view = msgspec.structs.replace(view, service=self._services.view(record))
        return by_the_hosts_clock(view, self._clock.set_by())

    def wish(self, id: str, happening: Happening, *, actor: str = "") -> JobView:
        """Hold, release or cancel a job; once is as good as twice.

        Raises:
            SpecError: there is no such job.
            EnvironmentFault: it has ended.
        """
        record = self._find(id)
        asked_again = happening is Happening.CANCEL and record.life.phase is Phase.CANCELLED
        if record.life.ended and not asked_again:
            raise EnvironmentFault(f"{id} is {record.life.phase.value}")
        self._backend.handle(Wished(id, happening, _actor_sentence(actor)))
        return self._view(record)

    def resize(self, id: str, workers: WorkerRange, *, actor: str = "") -> JobView:
        """Let a job have so many workers, within the limits of its micro-batches.

        Raises:
            SpecError: there is no such job, or it cannot have so many.
            EnvironmentFault: it has ended.
        """
        record = self._find(id)
        if record.life.ended:
            raise EnvironmentFault(f"{id} is {record.life.phase.value}")
        self._services.check_range(record, workers)
        submission = record.submission.with_workers(workers)
        if submission != record.submission:
            self._check(submission)
        detail = _actor_sentence(actor, f"may have {workers.words}")
        self._backend.handle(RangeChanged(id, workers, detail))
        return self._view(record)

    async def renew(
        self,
        id: str,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
        *,
        actor: str = "",
    ) -> JobView:
        """Have each replica of a service replaced, one after the other.

        Args:
            in_thread: does the caller's work in a thread: its master may hang.

        Raises:
            SpecError: there is no such job, or it is no service.
            EnvironmentFault: it does not run, or does not answer.
        """
        record = self._find(id)
        if record.submission.spec.service is None:
            need = "a service: other jobs go on from their checkpoints"
            hint = f"brim suspend {id}; brim resume {id}"
            raise SpecError("SERVICE", got=f"{id}, which is none", need=need, hint=hint)
        if not record.running:
            raise EnvironmentFault(f"{id} is {record.life.phase.value}: it has no replicas")
        run_dir = self._folder / record.id
        await in_thread(partial(client.renew, run_dir))
        detail = _actor_sentence(actor, "each replica is replaced, one after the other")
        self._book.note(Change(self._clock.wall(), record.id, "restarted", detail=detail))
        return self._view(record)

    async def stacks(
        self,
        id: str,
        in_thread: Callable[[Callable[[], dict[str, str]]], Awaitable[dict[str, str]]],
    ) -> list[WorkerStack]:
        """Return where the Python code of each worker of a job is now.

        Args:
            in_thread: does the caller's work in a thread: its master may hang.

        Raises:
            SpecError: there is no such job.
            EnvironmentFault: it does not run, or does not answer, or too many are asked at once.
        """
        record = self._find(id)
        if not record.running:
            raise EnvironmentFault(f"{id} is {record.life.phase.value}: it has no workers")
        found = await in_thread(partial(client.stacks, self._folder / record.id))
        return [WorkerStack(worker=worker, stack=stack) for worker, stack in found.items()]

    def any_kind(self, id: str, *, actor: str = "") -> JobView:
        """Let a job that waits for nodes of the kind on which it began go on on any.

        Raises:
            SpecError: there is no such job, or it may be on any.
            EnvironmentFault: it runs, or has ended.
        """
        record = self._find(id)
        if not record.submission.spec.exact:
            actual = f"{id}, which is not exact"
            need = "an exact job: others may be on any node"
            raise SpecError("--any-kind", got=actual, need=need, hint="leave out --any-kind")
        if record.running:
            raise EnvironmentFault(
                f"{id} is running; --any-kind applies only while a job waits for matching nodes"
            )
        if record.life.ended:
            raise EnvironmentFault(f"{id} is {record.life.phase.value}")
        detail = _actor_sentence(actor, "its weights depend on the nodes on which it goes on")
        self._backend.handle(KindFreed(id, detail))
        return self._view(record)

    async def forget(self, id: str) -> int:
        """Know nothing any more of a job that has ended; the bytes of the disk that came back.

        Raises:
            SpecError: there is no such job.
            EnvironmentFault: it has not ended, or its directory cannot be removed now.
        """
        record = self._find(id)
        if not record.life.ended:
            hint = f"brim cancel {id} ends it"
            raise EnvironmentFault(
                f"{id} is {record.life.phase.value}, and cannot be forgotten: {hint}"
            )
        return await self._forgetting.forget(record)

    @property
    def declared(self) -> list[str]:
        """The tenants of the cluster, by name."""
        return [tenant.id for tenant in self._backend.spec.tenants]

    # The cluster ----------------------------------------------------------------------------------

    def cluster(self) -> ClusterView:
        spec = self._backend.jobs.present
        unfinished = self._book.unfinished()
        return ClusterView(
            policy=spec.policy,
            devices=spec.cluster.devices,
            headroom=spec.headroom,
            held=sum(record.target for record in unfinished if record.running),
            nodes={node.id: node.devices for node in spec.cluster.nodes},
            unfinished=len(unfinished),
            cycles=times_of(self._backend.cycles),
            looks=times_of(self._backend.looks),
            problem="; ".join([*self._unreadable, *filter(None, [self._backend.problem])]),
        )

    def usage(self, month: str, group_by: str, *, tenant: str | None = None) -> UsageView:
        """Usage of a month.

        Args:
            month: as `2026-11`; empty: the present one.
            group_by: `tenant`, `user` or `job`.
            tenant: only its own; None: that of all.

        Raises:
            SpecError: there is no such month yet, or no such rows.
        """
        now = self._clock.wall() + self._clock.set_by()
        month = parse_month(month, now=now, field="--month")
        if group_by not in USAGE_BY:
            hint = did_you_mean(group_by, USAGE_BY)
            raise SpecError("--by", got=repr(group_by[:40]), need=" or ".join(USAGE_BY), hint=hint)
        start, end = bounds_of(month)
        used, shares = self._database.usage(month), self._database.shares(month)
        if tenant is not None:
            used = [row for row in used if row[0] == tenant]
            shares = {name: share for name, share in shares.items() if name == tenant}
        rows, recent = usage_rows(used, shares, group_by), self._backend.jobs.recent
        if recent is not None and group_by == "tenant" and now < end:
            rows = with_recent_use(rows, recent, self._backend.spec.tenants)
        return UsageView(
            month=month,
            group_by=group_by,
            start=start,
            end=end,
            until=min(end, now),
            first_month=self._database.first_month(),
            rows=rows,
        )

    def figures(self) -> SchedulerFigures:
        """The figures of the cluster, its tenants and its jobs, for monitors."""
        backend, unfinished = self._backend, self._book.unfinished()
        shown = sorted(unfinished, key=lambda record: not record.running)[:MOST_JOBS]
        states = Counter((job.submission.tenant, job.life.phase.value) for job in unfinished)
        unmeasured = (None, None)
        return SchedulerFigures(
            cluster=self.cluster(),
            tenants=self.tenants(),
            nodes=self.nodes(),
            states=states,
            at_risk=Counter(job.submission.tenant for job in unfinished if is_at_risk(job)),
            ended=backend.jobs.ended,
            jobs=[
                JobSeries(
                    self._view(job), *(backend.jobs.speed(job) if job.running else unmeasured)
                )
                for job in shown
            ],
            jobs_left_out=len(unfinished) - len(shown),
            cycles=backend.cycle_seconds,
            looks=backend.look_seconds,
            notifications=self._notifying.outcomes,
            waiting=self._book.waiting,
            used=self._database.used_in_all(),
        )

    def nodes(self) -> list[NodeView]:
        """Every node that was described, or has joined."""
        jobs = self._backend.jobs
        workers_on = Counter[str]()
        for record in self._book.unfinished():
            workers_on.update(record.held if record.running else {})
        unlike = jobs.nodes.unlike(jobs.present.cluster)
        return [
            node_view(
                node,
                jobs.nodes.seen.get(node.id),
                drained=jobs.spec.drained,
                workers_on=workers_on,
                unlike=unlike.get(node.id, ""),
            )
            for node in jobs.present.cluster.nodes
        ]

    def drain(self, name: str, *, undo: bool = False, actor: str = "") -> list[NodeView]:
        """Have nothing run on a node any more, or, with `undo`, again.

        Raises:
            SpecError: there is no such node.
        """
        spec = self._backend.spec
        names = [node.id for node in self._backend.jobs.present.cluster.nodes]
        if name not in (spec.drained if undo else names):
            need = "a drained node" if undo else "a node of this cluster"
            hint = did_you_mean(name, sorted(spec.drained if undo else names)) or "brim nodes"
            raise SpecError(NO_SUCH_NODE, got=repr(name), need=need, hint=hint)
        drained = spec.drained - {name} if undo else spec.drained | {name}
        with self._book.transaction():
            self._describe(replace(spec, drained=drained))
            self._note("node opened" if undo else "node drained", _actor_sentence(actor, name))
        return self.nodes()

    def _describe(self, spec: ClusterSpec) -> None:
        self._database.put(CLUSTER, msgspec.json.encode(spec))
        self._backend.reconfigure(spec)

    def tenants(self) -> list[TenantView]:
        """Every tenant that was declared, or has a job."""
        spec = self._backend.spec
        jobs_by_tenant: dict[str, list[ScheduledJob]] = {tenant.id: [] for tenant in spec.tenants}
        for record in self._book.unfinished():
            jobs_by_tenant.setdefault(record.submission.tenant, []).append(record)
        owners = {tenant.id: tenant for tenant in spec.tenants}
        recent = self._backend.jobs.recent
        views = []
        for name, records in sorted(jobs_by_tenant.items()):
            holds = sum(record.target for record in records if record.running)
            owner = owners.get(name) or Quota()
            views.append(
                TenantView(
                    tenant=name,
                    **{right: getattr(owner, right) for right in Quota.__struct_fields__},
                    holds=holds,
                    # Where no tenants are declared nobody owns devices, and so nobody borrows.
                    borrows=max(0, holds - owner.guaranteed) if owners else 0,
                    jobs=len(records),
                    lately=recent.borrowed.get(name, 0.0) if recent else None,
                    lately_share=recent.share_of(name) if recent else None,
                )
            )
        return views

    def reconfigure(self, spec: ClusterSpec, *, actor: str = "") -> ClusterView:
        """Another description of the cluster, from the next cycle on.

        Raises:
            SpecError: jobs cannot be run as an account that it names, or a channel has a file
                that cannot be read.
        """
        check_accounts(spec)
        check_channels(spec.channels)
        check_certificate(spec.services)
        with self._book.transaction():
            self._describe(replace(spec, drained=self._backend.spec.drained))
            self._note("apply", _actor_sentence(actor, self._described()))
        return self.cluster()

    def _note(self, event: str, detail: str = "") -> None:
        self._book.note(Change(self._clock.wall(), event=event, detail=detail))

    def _described(self) -> str:
        spec = self._backend.spec
        return f"{counted(spec.cluster.devices, 'device')}, policy {spec.policy}"

    def down(self, *, kill: bool, actor: str = "") -> None:
        """Suspend every job and end; with `kill`, do not wait for their next step."""
        self._ended_by = actor
        self._backend.drain(kill=kill)


def _tell_of_fault(task: asyncio.Task[None]) -> None:
    """Say at once that a task beside the cycles has ended, which goes on until it is cancelled."""
    if not task.cancelled() and not isinstance(error := task.exception(), StorageFault):
        _log.error("a task beside the cycles ended by itself", exc_info=error)
