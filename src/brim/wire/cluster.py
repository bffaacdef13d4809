"""Messages between a scheduler and its clients: HTTP and JSON.

The names are a public contract.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from brim.domain.conditions import MOST_OF_ARRAY
from brim.domain.course import Change
from brim.domain.submission import Submission
from brim.domain.tenancy import Quota

MOST_TYPED = 16 << 10  # bytes of one request
MOST_CHARACTERS = 0xFFFF  # of a side of a window


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that come with a submission.

    Args:
        name: what its id begins with.
        key: made once for each submission: who submits the same again, because an answer was lost,
            gets the same job. Empty: every submission is another job.
        bundle: the code, of which the submission's spec has the sha256; none where its file is to
            be run where it is.
        array: the index of each job, where an array of jobs is submitted at once.
    """

    name: str = "job"
    key: str = ""
    bundle: bytes = b""
    array: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_OF_ARRAY)] = ()


class Submit(Sent, frozen=True, kw_only=True):
    """A job to be run, or an array of them."""

    submission: Submission


class EstimateView(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a job's end; times are seconds since 1970.

    Args:
        at: when that was expected, with `step` done.
        error_seconds: by how much later it ended; None while it has not.
        error: that, as a part of the time from `at` to its end.
    """

    at: float
    finish: float
    step: int
    error_seconds: float | None
    error: float | None


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of a service, which is `ready` or `leaving`."""

    replica: str
    address: str
    state: str


class WorkerStack(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a worker's Python code, as in a traceback; empty: it did not answer."""

    worker: str
    stack: str


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """An online service.

    Args:
        address: of its front.
        tls: its front speaks HTTPS.
        load: what is measured: `requests`, `cpu`, or a URL.
        per_replica: the load that one replica takes.
        minimum, maximum: replicas.
        current: its load now; None: not measured yet.
        foreseen: the most that is expected until another replica could be ready.
        notice: seconds that one takes, as it was seen to, with the time for which others give way.
        wanted: replicas that it is to have.
        ready: replicas that take requests; None: this scheduler has not looked yet.
        requests, retries, errors: that its front has counted since it began: all requests, tries of
            another replica, and answers with a status from 500.
        problem: what is in the way of its front, or of its load.
    """

    address: str
    load: str
    per_replica: float
    minimum: int
    maximum: int
    current: float | None
    foreseen: float | None
    notice: float
    wanted: int
    ready: int | None
    replicas: list[ReplicaView]
    requests: int = 0
    retries: int = 0
    errors: int = 0
    problem: str = ""
    tls: bool = False

    @property
    def url(self) -> str:
        """Return the address as people type it, with the scheme where that is not HTTP."""
        return f"https://{self.address}" if self.tls else self.address


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job; times are seconds since 1970, and None where there is none yet.

    Args:
        state: a phase of `brim.domain.lifecycle`.
        wish: what its owner wants: run, hold or cancel.
        run: its run directory.
        nodes: the workers that it holds now, by node, the one that keeps its master first.
        workers: that it holds in all; `planned` is what the last cycle gives it.
        deadline: by when it was asked to be done; `promised` where the policy said yes.
        judged: the policy has said yes or no; a job with a deadline is measured first.
        reason, detail: why.
        earliest: the earliest deadline that could have been promised, where the policy knows.
        estimate: when the plan of its promise was done.
        finish: when it is expected to end, if nothing new happens.
        first_estimate, half_estimate: what was expected first, and once half of its steps were
            done.
        attained_seconds: worker-seconds that it has had.
        problem: why its processes ended last, where that was one.
        waits: why it has no workers: others hold the devices, and when it is expected to begin; or it
            is exact, and free devices are of another kind, or of too many; or others are to end
            first, a moment is to come, or it is not its turn in its array; empty otherwise.
        array: the id of the first job of its array; empty where it belongs to none.
        index: its own in the array.
        retries: starts after a failure, of those that its owner allows.
        summary: the fields of `brim train --json`, once it has ended.
        service: where it is one.
    """

    job: str
    state: str
    wish: str
    run: str
    tenant: str
    priority: str
    minimum: int
    maximum: int
    nodes: dict[str, int]
    workers: int
    planned: int
    step: int
    steps: int | None
    submitted: float
    started: float | None
    ended: float | None
    deadline: float | None
    promised: bool
    judged: bool
    reason: str
    detail: str
    earliest: float | None
    estimate: float | None
    finish: float | None
    first_estimate: EstimateView | None
    half_estimate: EstimateView | None
    attained_seconds: float
    launches: int
    problem: str
    summary: dict[str, Any]
    waits: str = ""
    array: str = ""
    index: int = 0
    retries: int = 0
    service: ServiceView | None = None

    @property
    def has_ended(self) -> bool:
        return self.ended is not None

    @property
    def was_refused(self) -> bool:
        """The policy said no to its deadline, or to the job."""
        return self.judged and not self.promised and self.deadline is not None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a job if it were submitted now.

    Args:
        known: such a job was measured before; nothing can be said of promises otherwise.
        admitted: its deadline would be promised; None where it has none, or nothing is known.
        workers: that it would have at once.
        takes: workers that others would have less, by job.
        finish: the expected finish; None where nobody can say.
        earliest: the earliest deadline that would be promised.
    """

    known: bool
    admitted: bool | None
    reason: str
    detail: str
    workers: int
    takes: dict[str, int]
    finish: float | None
    earliest: float | None


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that processes of a job printed.

    Args:
        lines: (worker, text).
        after: the place to ask for the following ones.
        ended: there will be no more.
    """

    lines: list[tuple[str, str]]
    after: str
    ended: bool


class TenantView(Quota, frozen=True, kw_only=True):
    """The quota of a tenant, and what it holds now, of which some may be borrowed.

    Args:
        lately: devices that it has borrowed lately, on average over the half-life of the cluster's
            description; None where that has none.
        lately_share: of what all tenants have borrowed lately, from 0 to 1; None as above.
    """

    tenant: str
    holds: int
    borrows: int
    jobs: int
    lately: float | None = None
    lately_share: float | None = None


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in a month of a tenant, an account, or a job, in device-seconds.

    Args:
        name: of a tenant; an account, empty: that of the scheduler; or the id of a job, empty: of all
            jobs that were forgotten.
        tenant: empty where an account's jobs are counted.
        used_seconds: for which its jobs held devices.
        owned_seconds, borrowed_seconds, lent_seconds: of a tenant: its quota, what it held beyond
            that, and what others held of it; None for others.
        lately, lately_share: of a tenant in the present month: see `TenantView`; None for others.
        weight: of a tenant, where `lately` is there.
    """

    name: str
    tenant: str
    used_seconds: float
    owned_seconds: float | None = None
    borrowed_seconds: float | None = None
    lent_seconds: float | None = None
    lately: float | None = None
    lately_share: float | None = None
    weight: float | None = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a month; times are seconds since 1970, months are those of UTC.

    Args:
        month: as `2026-11`.
        group_by: `tenant`, `user` or `job`.
        start, end: of the month.
        until: its end, or the present where it is not over.
        first_month: the first with usage; empty: nothing was ever counted.
    """

    month: str
    group_by: str
    start: float
    end: float
    until: float
    first_month: str
    rows: list[UsageRow]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster.

    Args:
        devices: that it has.
        held: of these, by workers of jobs.
        switch: the one that it is below.
        address: of its host, where it has joined from another.
        state: `up`, `leaving` (it gives way), `away` (it starts, or was not heard for a moment), or
            `lost`.
        drained: nothing is to run on it.
        problem: why it is not up, or how it differs from most nodes, so that no exact job is on both.
    """

    node: str
    devices: int
    held: int
    switch: int
    address: str
    state: str
    drained: bool
    problem: str


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the last so many calls, in milliseconds."""

    count: int
    median_ms: float
    p99_ms: float


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster now.

    Args:
        unfinished: jobs.
        cycles: of the scheduler, from what it saw to what it did about it.
        looks: at the jobs' processes.
        problem: what is wrong: why no job can be started now, or what was forgotten; or empty.
        holds: the scheduler decides nothing, since it cannot read or write its database; its jobs
            train on.
    """

    policy: str
    devices: int
    headroom: int
    held: int
    nodes: dict[str, int]
    unfinished: int
    cycles: Times
    looks: Times
    problem: str = ""
    holds: bool = False


class News(msgspec.Struct, frozen=True, kw_only=True):
    """Changes since an earlier answer, as far as the caller may see them.

    Args:
        place: to ask for the following news.
        complete: false where the place asked for is none of this scheduler's life: list all jobs
            again.
        jobs: those that have changed, and all that run.
        forgotten: ids of jobs that are there no more.
        changes: lines of the stories of jobs, for the administrator of the cluster's too, in order.
        tenant: whose token the caller has; None: the administrator's.
        timestamp: the time of the answer.
    """

    place: str
    complete: bool
    jobs: list[JobView]
    forgotten: list[str]
    changes: list[Change]
    cluster: ClusterView
    nodes: list[NodeView]
    tenants: list[TenantView]
    tenant: str | None
    timestamp: float


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that is not made: of a job, or of a node.

    Args:
        minimum, maximum: the workers that a job may have, where it is resized.
    """

    action: Literal["suspend", "resume", "cancel", "resize", "drain", "undrain"]
    job: str = ""
    node: str = ""
    minimum: Annotated[int, msgspec.Meta(ge=1)] = 1
    maximum: Annotated[int, msgspec.Meta(ge=1)] = 1


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The consequence of a change for a job.

    Args:
        job: its id; of a job that the caller may not see, `tenant` and the name of its tenant.
        workers, workers_after: at once, without the change and with it.
        finish, finish_after: its expected end, seconds since 1970; None where unknown.
    """

    job: str
    workers: int
    workers_after: int
    finish: float | None
    finish_after: float | None


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers that a job may have."""

    minimum: int
    maximum: int


class Down(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End the scheduler; `kill` ends the jobs' processes at once instead of at their next step."""

    kill: bool = False


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a terminal's window, in characters."""

    rows: Annotated[int, msgspec.Meta(ge=0, le=MOST_CHARACTERS)]
    columns: Annotated[int, msgspec.Meta(ge=0, le=MOST_CHARACTERS)]


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes that were typed at a terminal, and its window where that has changed.

    Empty, it says that the person is still there.
    """

    data: Annotated[bytes, msgspec.Meta(max_length=MOST_TYPED)] = b""
    window: Window | None = None


class TerminalNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the answer to a terminal that was attached; an empty one is a sign of life.

    Args:
        terminal: its name, for what is typed; the first line has it.
        note: what it waits for, in a sentence; with `ended`, how the job ended.
        opened: the program begins.
        shown: bytes that the program has printed.
        status: the program has ended with it; negative: by this signal.
        ended: the job has ended; the last line says so.
    """

    terminal: str = ""
    note: str = ""
    opened: bool = False
    shown: bytes = b""
    status: int | None = None
    ended: bool = False


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is there no more, and how many bytes of the disk came back."""

    job: str
    bytes: int


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's new token; empty: the tenant has none.

    It is kept nowhere, and cannot be asked for again.
    """

    token: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error: a SpecError's four parts, or only `detail`."""

    detail: str
    field: str = ""
    got: str = ""
    need: str = ""
    hint: str = ""
