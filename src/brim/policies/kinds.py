"""Jobs that cannot be on all nodes: which can have how much where, and a policy asked so. Pure.

Nodes of different kinds compute different bits, so an exact job is on nodes of one kind: once it has
computed, on those of the kind on which it began (`Job.kinds`). And an owner may have chosen nodes for
a job (`Job.nodes`). A policy counts devices, and knows nothing of either. So it is asked with each such
job limited to what it could have (`ask_within`): first to the devices of its nodes of the largest kind,
and then, where its workers do not fit beside those of others, to as many as do; it is asked again until
no job is given devices that it cannot use. A job that cannot have its minimum is left out for this
cycle: it takes nothing from others, and nothing is idle for it.

What fits (`on_some_nodes`): first each exact job has its base: its minimum, and where its deadline is
promised as much of all that it was given as there is room for. Those that hold devices come first,
whose minima nobody takes, then higher priorities, promised ones, and the rest in the order of
submission. Then each has what it holds beyond that, and what it is to have more, where there is
room. Jobs that are not exact make room, unless they are pinned: there is always enough elsewhere for
those who leave, since an exact job that is given n devices leaves n to others, wherever it goes. So
an exact job that is given workers waits for nothing but pinned jobs and the bases of other exact
ones, on every kind that it may have. A job whose owner has chosen nodes is placed as an exact one is,
on those nodes; where two such jobs want the same, the one with fewer to choose from comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from brim.domain.cluster import Cluster
from brim.domain.quantities import counted
from brim.domain.schedule import (
    Admitted,
    Decision,
    JobState,
    Policy,
    Reason,
    Rejected,
    Snapshot,
    Standing,
    Verdict,
)
from brim.domain.workload import Job
from brim.policies.free_devices import FreeDevices, Nodes

_MOST_ASKS = 8  # of the policy in a cycle; what still does not fit then is idle until the next

ByNode = Mapping[str, int]


def ask_within(
    snapshot: Snapshot, policy: Policy, place: Callable[[Snapshot, Decision], Decision]
) -> Decision:
    """Ask a policy for the usable devices of jobs that cannot be on all nodes.

    Args:
        place: puts the workers of a decision on nodes, or gives fewer where they do not fit.
    """
    limits, asks = _most_workers(snapshot), 0
    promised = {state.job.id for state in snapshot.jobs if _is_promised(state)}
    judged: dict[str, Verdict] | None = None  # where no promised job had to do with less
    while True:
        seen = _limited(snapshot, limits)
        decision_within = policy(seen)
        decision = place(seen, decision_within)
        reduced = {
            job: decision.workers.get(job, 0)
            for job, count in decision_within.workers.items()
            if decision.workers.get(job, 0) < count
        }
        limits |= reduced
        asks += 1
        if not reduced or asks == _MOST_ASKS:
            if judged is not None:
                verdicts = _without_new_promises(decision.verdicts, judged)
                decision = replace(decision, verdicts=tuple(verdicts))
            return _explained(snapshot, decision, limits)
        if judged is None and promised & reduced.keys():
            judged = {verdict.job: verdict for verdict in decision_within.verdicts}


def _without_new_promises(
    verdicts: Iterable[Verdict], judged: Mapping[str, Verdict]
) -> Iterator[Verdict]:
    """Yield verdicts, and no promise that was not made before.

    It would be of devices that promised jobs cannot use now, and will need later.
    """
    for verdict in verdicts:
        previous = judged.get(verdict.job)
        if (
            not isinstance(verdict, Admitted)
            or not verdict.promises
            or isinstance(previous, Admitted)
        ):
            yield verdict
        elif previous is not None:
            yield previous


def _is_promised(state: JobState) -> bool:
    return state.standing is Standing.ADMITTED and state.job.deadline is not None


def _by_kind(cluster: Cluster, names: Collection[str] | None = None) -> dict[str, int]:
    """The devices of each kind that has any.

    Args:
        names: nodes that count; None: all.
    """
    found: dict[str, int] = {}
    for node in cluster.nodes:
        if node.devices and (names is None or node.id in names):
            found[node.kind] = found.get(node.kind, 0) + node.devices
    return found


def _may_be_on(job: Job, kind: str) -> bool:
    return job.kinds is None or kind in job.kinds


class _Rooms:
    """The devices that jobs could have if they were alone, counted once for each choice of nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: dict[tuple[str, ...] | None, dict[str, int]] = {}

    def by_kind(self, job: Job) -> dict[str, int]:
        if job.nodes not in self._found:
            names = None if job.nodes is None else frozenset(job.nodes)
            self._found[job.nodes] = _by_kind(self._cluster, names)
        return self._found[job.nodes]

    def nodes(self, job: Job) -> Iterator[str]:
        """Yield the ids of the nodes with devices that an owner has chosen."""
        chosen = frozenset(job.nodes or ())
        return (node.id for node in self._cluster.nodes if node.devices and node.id in chosen)

    def largest_kind(self, job: Job) -> int:
        """Return the devices of the largest kind that a job may be on."""
        kinds = self.by_kind(job).items()
        return max((count for kind, count in kinds if _may_be_on(job, kind)), default=0)


def _most_workers(snapshot: Snapshot) -> dict[str, int]:
    """Return the most workers of each job that could else be given more than it can have."""
    rooms = _Rooms(snapshot.cluster)
    whole = sum(_by_kind(snapshot.cluster).values())
    if not whole:
        return {}
    restricted = (s.job for s in snapshot.jobs if s.job.exact or s.job.nodes is not None)
    found = {job.id: (job, rooms.largest_kind(job)) for job in restricted}
    return {
        id: room
        for id, (job, room) in found.items()
        if room < whole and room < max(job.ceiling, job.requested, job.minimum)
    }


def _left_out(job: Job, limit: int | None) -> bool:
    return limit is not None and limit < max(1, job.minimum)


def _limited(snapshot: Snapshot, limits: Mapping[str, int]) -> Snapshot:
    """The snapshot as a policy may see it: no job can be given more than its limit."""
    if not limits:
        return snapshot
    jobs = tuple(
        state._replace(job=_with_at_most(state.job, limits.get(state.job.id)))
        for state in snapshot.jobs
        if not _left_out(state.job, limits.get(state.job.id))
    )
    ids = {state.job.id for state in jobs}
    return replace(
        snapshot, jobs=jobs, arrived=tuple(job for job in snapshot.arrived if job in ids)
    )


def _with_at_most(job: Job, limit: int | None) -> Job:
    if limit is None:
        return job
    requested = min(job.requested, limit)
    maximum = limit if job.maximum is None else min(job.maximum, limit)
    duration = job.work / job.curve.best[min(requested, len(job.curve.best) - 1)]
    return replace(job, maximum=maximum, requested=requested, duration=duration)


def _explained(snapshot: Snapshot, decision: Decision, limits: Mapping[str, int]) -> Decision:
    """The decision with a reason for each job that has no more because of its nodes, and a verdict."""
    if not limits:
        return decision
    rooms = _Rooms(snapshot.cluster)
    reasons, verdicts = dict(decision.reasons), list(decision.verdicts)
    for state in snapshot.jobs:
        job = state.job
        limit = limits.get(job.id)
        if limit is None:
            continue
        if _left_out(job, limit):
            reason, detail = _why_nothing(job, rooms)
            reasons[job.id] = reason, detail
            if job.id in snapshot.arrived:
                verdicts.append(_verdict_without(job, reason, detail))
        elif limit == decision.workers.get(job.id, 0) < job.ceiling:
            reasons[job.id] = _why_no_more(job, limit)
    return replace(decision, reasons=reasons, verdicts=tuple(verdicts))


def _verdict_without(job: Job, reason: Reason, detail: str) -> Verdict:
    """Return the verdict on a job about which no policy was asked."""
    if job.deadline is None:
        return Admitted(job=job.id, reason=reason, detail=detail, promises=False)
    return Rejected(job=job.id, reason=reason, detail=detail, runs=True)


def _why_no_more(job: Job, limit: int) -> tuple[Reason, str]:
    workers = counted(limit, "worker")
    if job.nodes is not None:
        return Reason.ITS_NODES, f"{workers}: no more fit on the nodes that its template allows"
    text = f"{workers}: no more fit on nodes that are alike (brim nodes says how others differ)"
    return Reason.ONE_KIND, text


def _why_nothing(job: Job, rooms: _Rooms) -> tuple[Reason, str]:
    if job.nodes is None:
        return Reason.ONE_KIND, _why_on_no_kind(job, rooms)
    room = sum(rooms.by_kind(job).values())
    need = f"it needs {counted(max(1, job.minimum), 'device')} on nodes that its template allows"
    if room < max(1, job.minimum):
        names = list(islice(rooms.nodes(job), 4))
        names_note = (
            f"; these are {', '.join(names[:3])}{' …' if names[3:] else ''}" if names else ""
        )
        return Reason.ITS_NODES, f"{need}, which have {room}{names_note}"
    return Reason.ITS_NODES, f"{need}, and other jobs leave fewer there"


def _why_on_no_kind(job: Job, rooms: _Rooms) -> str:
    devices = rooms.by_kind(job)
    if not any(_may_be_on(job, kind) for kind in devices):
        return (
            "no node with devices is of the kind on which it began, and any other would compute "
            f"other bits; brim resume {job.id} --any-kind lets it go on there"
        )
    room = rooms.largest_kind(job)
    need = (
        "nodes are not alike (brim nodes says how), and an exact job is on those that are: it needs "
        f"{counted(max(1, job.minimum), 'device')} there"
    )
    if room < job.minimum:
        return f"{need}, and no more than {room} are; with --no-exact it could be on any"
    return f"{need}, and other exact jobs leave fewer"


# Places -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Claim:
    """The workers that a job is given that cannot be on all nodes, and those that fit.

    Args:
        promised: it has all of that, as far as there is room, before others have more than a base.
        base: workers that it has before anybody has more.
        kind: that it is to be on; None: it has to wait.
        count: workers that it has there.
    """

    state: JobState
    wanted: int
    promised: bool
    base: int
    held: ByNode
    kind: str | None = None
    count: int = 0
    nodes: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> Nodes:
        """The nodes on which it can be."""
        return self.kind, self.state.job.nodes


def on_some_nodes(
    snapshot: Snapshot,
    workers: Mapping[str, int],
    kept_nodes: Mapping[str, ByNode],
    *,
    pinned: Iterable[str],
) -> dict[str, dict[str, int]]:
    """Return the workers by node of every job that is to have some and cannot be on all nodes.

    They are all on one kind. A job has fewer than it was given where no more fit, and none where its
    minimum does not.

    Args:
        workers: that jobs were given.
        kept_nodes: by job that holds devices, the workers that can stay where they are.
        pinned: jobs that must not be moved.
    """
    claims = _claims(snapshot, workers, kept_nodes)
    if not claims:
        return {}
    claimed = {claim.state.job.id for claim in claims}
    stays = {node.id: 0 for node in snapshot.cluster.nodes}  # devices of jobs that nobody moves
    moves = dict(stays)  # of those that may be
    fixed = frozenset(pinned)
    for job, nodes in kept_nodes.items():
        if job not in claimed:
            for node in nodes.keys() & stays.keys():  # the others are gone
                (stays if job in fixed else moves)[node] += nodes[node]
    _Sharing(snapshot.cluster, stays, moves).share(claims)
    _settle(claims, snapshot.cluster, stays, moves)
    return {claim.state.job.id: claim.nodes for claim in claims}


def _claims(
    snapshot: Snapshot, workers: Mapping[str, int], kept_nodes: Mapping[str, ByNode]
) -> list[_Claim]:
    """The claims of jobs that cannot be on all nodes, in the order in which they are heard."""
    found: list[tuple[tuple[bool, int, bool, int], _Claim]] = []
    kinds, rooms = _by_kind(snapshot.cluster), _Rooms(snapshot.cluster)
    alike = len(kinds) < 2 and all(
        _may_be_on(state.job, kind)
        for state in snapshot.jobs
        for kind in kinds
        if state.job.exact and workers.get(state.job.id)
    )
    for state in snapshot.jobs:
        job, count_wished = state.job, workers.get(state.job.id, 0)
        if count_wished and (job.nodes is not None or (job.exact and not alike)):
            promised, base = _is_promised(state), min(max(1, job.minimum), count_wished)
            kinds_possible = rooms.largest_kind(job) if job.nodes is not None else 0
            order = (job.id not in kept_nodes, -job.priority, not promised, kinds_possible)
            found.append(
                (order, _Claim(state, count_wished, promised, base, kept_nodes.get(job.id, {})))
            )
    return [claim for _, claim in sorted(found, key=lambda entry: entry[0])]


class _Sharing:
    """Devices of each kind, as exact jobs share them."""

    def __init__(
        self, cluster: Cluster, stays: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        self.kind_of = {node.id: node.kind for node in cluster.nodes if node.devices}
        self.room = dict.fromkeys(self.kind_of.values(), 0)  # that bases leave
        self.calm = dict(self.room)  # of it, what nobody holds
        self.soft = dict(self.room)  # of it, what exact jobs hold beyond their base
        for node in cluster.nodes:
            if node.devices:
                room = max(0, node.devices - stays[node.id])
                self.room[node.kind] += room
                self.calm[node.kind] += max(0, room - moves[node.id])

    def share(self, claims: Sequence[_Claim]) -> None:
        """Say on which kind each is, and with how many workers."""
        holding = [claim for claim in claims if claim.held]
        for claim in holding:
            self._choose(claim)
        for claim in holding:
            self._grow(claim, claim.wanted if claim.promised else 0)
        for claim in claims:
            if not claim.held:
                self._choose(claim)
                self._grow(claim, claim.wanted if claim.promised else 0)
        for claim in claims:
            self._grow(claim, self._count_held(claim))
        for claim in claims:
            self._grow(claim, claim.wanted)

    def _grow(self, claim: _Claim, limit: int) -> None:
        if claim.kind is not None:
            additional = max(0, min(limit - claim.count, self.room[claim.kind]))
            claim.count += additional
            self.room[claim.kind] -= additional

    def _count_held(self, claim: _Claim, kind: str | None = None) -> int:
        kind = claim.kind if kind is None else kind
        count_there = sum(n for node, n in claim.held.items() if self.kind_of.get(node) == kind)
        return min(count_there, claim.wanted)

    def _choose(self, claim: _Claim) -> None:
        ranked = [
            (self._rank(claim, kind), kind)
            for kind, room in self.room.items()
            if room >= claim.base and _may_be_on(claim.state.job, kind)
        ]
        if not ranked:
            return
        _, kind = max(ranked, key=lambda entry: entry[0])
        device_count = self._count_held(claim, kind)
        self.soft[kind] += 0 if claim.promised else max(0, device_count - claim.base)
        self.calm[kind] -= max(device_count, self._fitting(claim, kind, claim.wanted))
        self.room[kind] -= claim.base
        claim.kind, claim.count = kind, claim.base

    def _fitting(self, claim: _Claim, kind: str, limit: int) -> int:
        soft = 0 if claim.promised else self.soft[kind]
        return max(claim.base, min(limit, self.room[kind] - soft))

    def _rank(self, claim: _Claim, kind: str) -> tuple[int, int, int, int, int]:
        """Say how good a kind is for a job: the first that is as good as any is taken.

        It stays where it is. Else it goes where it has most now, then where it could have most
        later, since it cannot go elsewhere then, then where the fewest have to give way for it,
        and then where it leaves the least over.
        """
        fitting = self._fitting(claim, kind, claim.wanted)
        fitting_later = self._fitting(claim, kind, max(claim.wanted, claim.state.job.requested))
        disturbed = max(0, fitting - max(0, self.calm[kind]))
        return self._count_held(claim, kind), fitting, fitting_later, -disturbed, -self.room[kind]


def _settle(
    claims: Sequence[_Claim], cluster: Cluster, stays: Mapping[str, int], moves: Mapping[str, int]
) -> None:
    """Put the workers of each claim on nodes of its kind."""
    free = FreeDevices(cluster, {n.id: max(0, n.devices - stays[n.id]) for n in cluster.nodes})
    for claim in claims:  # all that hold devices before anybody has others
        for node in free.members_of(claim.held.keys(), claim.place):
            _take(claim, node, claim.held[node], free)
    calm = FreeDevices(cluster, {node: count - moves[node] for node, count in free.on.items()})
    for claim in claims:
        _fill(claim, calm, free)
        _fill(claim, free, calm)
        if sum(claim.nodes.values()) < claim.base:  # less than it runs with is for nothing
            for name, count in claim.nodes.items():
                free.take(name, -count)
                calm.take(name, -count)
            claim.nodes.clear()


def _take(claim: _Claim, node: str, limit: int, *devices: FreeDevices) -> None:
    """Give a claim devices of a node that the first of these has free."""
    count = min(limit, devices[0].on[node], claim.count - sum(claim.nodes.values()))
    if count > 0:
        claim.nodes[node] = claim.nodes.get(node, 0) + count
        for device in devices:
            device.take(node, count)


def _fill(claim: _Claim, *devices: FreeDevices) -> None:
    """Take the missing devices of a claim from the first free ones."""
    while lacks := claim.count - sum(claim.nodes.values()):
        node = devices[0].best(claim.place, lacks, own_nodes=claim.nodes)
        if node is None:
            return
        _take(claim, node, lacks, *devices)
