"""A cluster on which people do what they like for a while, and then nothing more.

The scheduler's automaton and its policy are those that ship. Simulated: the processes of jobs, nodes,
the disk and the clock. What people and nodes do is a list of deeds, so that a list under which the
cluster does not come to rest as it should can be made shorter:
`python -m coordination.quiet 1000` in `tests/` tries so many lists at random.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from brim.coordination.cluster.beginnings import list_ready
from brim.coordination.cluster.reconcile import Force, Leave, Resize, Start, Suspend
from brim.coordination.cluster.scheduled_jobs import (
    Answered,
    Decide,
    Decided,
    Described,
    Event,
    LearnCost,
    LearnRestart,
    LearnSpeed,
    Looked,
    Lose,
    RangeChanged,
    Save,
    ScheduledJobs,
    Submitted,
    Unanswered,
    Wished,
)
from brim.coordination.cluster.sightings import NodeSeen, Reached, Seen
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.conditions import Conditions, Predecessor
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Happening
from brim.domain.measuring import Measured
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.services import Service
from brim.domain.submission import Submission, as_service, kind_of_start
from brim.domain.tenancy import Tenant
from brim.domain.workload import Priority
from brim.scheduler.loop import decide
from coordination.scheduled import Taught

BEGINNING = 1_790_000_000.0
WORK = 10_000_000  # steps: what is not meant to end does not
MOST_JOBS = 7
MOST_TO_SETTLE = 250  # decisions without any news, until nothing changes any more
CALM = 50  # decisions in a row by which nothing changes: then nothing ever does
TENANTS = ("a", "b", "c")
DEADLINES = (None, None, 40.0, 300.0, 1500.0)
# Steps per second: with n workers n to this power times as many as with one.
SPEEDS = {"m": 0.9, "flat": 0.0, "worse": -0.3, "one": 0.8, "two": 0.8, "three": 0.6}

KIND, OTHER_KIND = HostKind(torch="2.13.0"), HostKind(torch="2.12.0")

Numbers = tuple[int, int, int]
_decode = msgspec.msgpack.Decoder(ScheduledJob).decode


class Deed(NamedTuple):
    """Something that people, nodes or processes do; the numbers say to what, and how."""

    kind: str
    numbers: Numbers

    def __repr__(self) -> str:
        return f"({self.kind!r}, {self.numbers})"


@dataclass(slots=True)
class Process:
    """The processes of a job: they do as they are told at the next look, unless they are stubborn."""

    alive: bool = False
    held: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    agents: set[str] = field(default_factory=set)
    home: str = ""
    step: float = 0.0
    steps: int = WORK
    seen: Seen = field(default_factory=lambda: Seen(alive=False))
    measured: Measured = field(default_factory=Measured)
    reached: Reached | None = None
    first_step: float | None = None
    stubborn: bool = False
    deaf: bool = False


class QuietCluster:
    """The cluster, and all that may happen on it."""

    def __init__(self, devices: Sequence[int] = (2, 2)) -> None:
        self.now = BEGINNING
        nodes = tuple(Node(id=f"n{k}", devices=count) for k, count in enumerate(devices))
        self.spec = ClusterSpec(cluster=Cluster(nodes=nodes), grace=10.0)
        self.lessons = Taught()
        self.lessons.speeds["m"] = Measured({n: (20.0, 20.0 / n**0.9) for n in (1, 2, 4)})
        self.lessons.steps["m"] = WORK
        self.disk: dict[str, bytes] = {}
        self.processes: dict[str, Process] = {}
        self.gone: set[str] = set()
        self.joined: dict[str, int] = {}
        self.leaving: set[str] = set()
        self.meanwhile: Callable[[], None] | None = None  # is done while the next decision is made
        self.story: list[str] = []
        self.revive()

    # The driver -----------------------------------------------------------------------------------

    def revive(self) -> None:
        """Begin another life of the scheduler, which knows only the disk."""
        records = [_decode(content) for content in self.disk.values()]
        self.jobs = ScheduledJobs(
            [job for job in records if not job.life.ended], self.spec, self.lessons
        )
        self.memory: object = None
        self.news, self.observed = True, self.now
        self.wake = math.inf
        self.numbers = len(records)

    def handle(self, event: Event) -> None:
        for command in self.jobs.handle(event, self.now):
            match command:
                case Save(job=job):
                    self.disk[job.id] = msgspec.msgpack.encode(job)
                case Decide():
                    self.news = True
                case LearnCost(kind=kind, seconds=seconds):
                    self.lessons.costs.setdefault(kind, []).append(seconds)
                case LearnRestart(submission=submission, seconds=seconds):
                    kind = kind_of_start(submission)
                    self.lessons.restarts.setdefault(kind, []).append(seconds)
                case LearnSpeed(submission=submission, measured=measured, steps=steps):
                    known = self.lessons.measured(submission.fingerprint)
                    learned = measured.merged([known])
                    self.lessons.speeds[submission.fingerprint] = learned
                    if steps:
                        self.lessons.steps[submission.fingerprint] = steps
                case Start() | Resize() | Suspend() | Force() | Leave() | Lose():
                    self._carry_out(command)

    def _carry_out(self, command: Start | Resize | Suspend | Force | Leave | Lose) -> None:
        process = self.processes[command.job]
        match command:
            case Start(workers=workers):
                assert not process.alive, f"{command.job} was started twice"
                process.alive, process.held, process.wanted = True, {}, dict(workers)
                process.home = self.jobs.jobs[command.job].allocation.home
                process.agents = {process.home, *workers}
                process.first_step = process.reached = None
                process.measured = Measured()
                process.seen = Seen(alive=True)
                self.handle(Answered(command))
            case Resize() | Suspend():
                if not process.alive or process.deaf:
                    self.handle(Unanswered(command, "no answer"))
                    return
                process.wanted = dict(command.workers) if isinstance(command, Resize) else {}
                process.agents |= set(process.wanted)
                self.handle(Answered(command))
            case Force(workers=workers):
                process.held = {
                    node: min(count, workers.get(node, 0))
                    for node, count in process.held.items()
                    if workers.get(node, 0)
                }
                if not workers:
                    self._end(process)
            case Leave(node=node):
                process.agents.discard(node)
            case Lose(node=node):
                process.held.pop(node, None)
                process.wanted.pop(node, None)

    def _end(self, process: Process, outcome: str = "") -> None:
        process.alive, process.held, process.agents = False, {}, set()
        process.seen = replace(self._said(process), alive=False, outcome=outcome)

    def _said(self, process: Process) -> Seen:
        return Seen(
            alive=process.alive,
            workers=dict(process.held),
            agents=frozenset(process.agents),
            step=int(process.step) if process.first_step is not None else 0,
            steps=process.steps if process.first_step is not None else None,
            saved=self.now,
            first_step=process.first_step,
            last_step=self.now if process.first_step is not None else None,
            reached=process.reached,
            measured=msgspec.convert(msgspec.to_builtins(process.measured), Measured),
        )

    def pass_by(self, seconds: float) -> None:
        """Let time pass: processes obey and make steps, and are looked at."""
        self.now += seconds
        for id, process in self.processes.items():
            if process.alive:
                self._go_on(id, process, seconds)
        self.look()
        if self.news or self.now >= min(self.wake, self.jobs.wake_at(self.observed)):
            self.decide()

    def _go_on(self, id: str, process: Process, seconds: float) -> None:
        if not process.stubborn and process.held != process.wanted:
            process.held = {n: k for n, k in process.wanted.items() if n not in self.gone}
            process.reached = None
            if not process.wanted:
                self._end(process, "suspended")
                return
        workers = sum(process.held.values())
        if not workers:
            return
        job = _decode(self.disk[id])
        rate = workers ** SPEEDS[job.submission.fingerprint]
        made = rate * seconds
        process.step += made
        if made >= 1.0 and not job.submission.opaque:
            for _ in range(min(6, int(made))):
                process.measured.add(workers, 1.0 / rate)
            process.first_step = process.first_step or self.now
            if process.reached is None:
                process.reached = Reached(workers, self.now, int(process.step))
        if process.step >= process.steps:
            self._end(process, "done")

    def look(self) -> None:
        seen = {}
        for job in self.jobs.to_look_at():
            process = self.processes[job.id]
            seen[job.id] = self._said(process) if process.alive else process.seen
        names = [node.id for node in self.spec.cluster.nodes]
        nodes = {
            name: NodeSeen(up=not gone, gone=gone, lost=gone, kind=KIND)
            for name in names
            for gone in (name in self.gone,)
        }
        for name, devices in self.joined.items():
            nodes[name] = NodeSeen(
                up=name not in self.gone,
                gone=name in self.gone,
                lost=name in self.gone,
                brings=Node(id=name, devices=devices, kind="" if name == "j0" else "k"),
                leaving=name in self.leaving,
                kind=KIND if name == "j0" else OTHER_KIND,
            )
        self.handle(Looked(nodes, seen))

    def decide(self) -> None:
        self.news, self.observed = False, self.now
        snapshot = self.jobs.snapshot(self.now, memory=self.memory)
        decision = decide(snapshot, "brim", left_by="brim")
        self.memory = decision.memory
        self.wake = math.inf if decision.wake is None else decision.wake
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        self.handle(Decided(decision))
        self.look()

    # Deeds ----------------------------------------------------------------------------------------

    def do(self, deed: Deed) -> None:
        """Do something now, or while the next decision is made, and let some time pass."""
        kind, (which, how, late) = deed
        if kind == "wait":
            for _ in range(which + 1):
                self.pass_by(1.0 + how)
            return

        def act() -> None:
            getattr(self, f"_{kind}")(which, how)

        if late % 4 == 3 and self.meanwhile is None and kind != "revive":
            self.meanwhile = act
        else:
            act()
        for _ in range(late % 3):
            self.pass_by(0.5 + late / 4.0)

    def _some(self, which: int) -> ScheduledJob | None:
        jobs = list(self.jobs.jobs.values())
        return jobs[which % len(jobs)] if jobs else None

    def _range(self, which: int, how: int) -> WorkerRange:
        minimum = min(1 + which % 4, self.jobs.present.capacity)
        return WorkerRange(minimum=max(1, minimum), maximum=max(1, minimum) + how % 4)

    def _submit(self, which: int, how: int) -> None:
        if len(self.jobs.jobs) >= MOST_JOBS:
            return
        rng = random.Random(1000 * which + how)
        workers = self._range(rng.randrange(8), rng.choice((0, 1, 3)))
        restart = rng.random() < 0.15
        if restart:
            workers = WorkerRange(
                minimum=workers.minimum, maximum=workers.minimum * rng.choice((1, 2))
            )
        service = None
        if restart and rng.random() < 0.4:
            service = Service(
                port=8000 + self.numbers, minimum=workers.minimum, maximum=workers.maximum
            )
        spec = JobSpec(
            file="" if restart else "m.py",
            command=("python", "m.py") if restart else (),
            restart=restart,
            exact=not restart and rng.random() < 0.4,
            parameters={},
            workers=workers,
            epochs=0 if restart else 1,
            service=service,
        )
        deadline = None if service else rng.choice(DEADLINES)
        submission = Submission(
            spec=spec,
            fingerprint=rng.choice(list(SPEEDS)),
            deadline=None if deadline is None else self.now + deadline,
            tenant=rng.choice(TENANTS),
            priority=rng.choice((*Priority, Priority.PREEMPTIBLE)),
            opaque=rng.random() < 0.1,
            conditions=self._conditions(rng),
            retries=rng.choice((0, 0, 2)),
        )
        self.numbers += 1
        id = f"job-{self.numbers}"
        submission = as_service(submission)
        job = ScheduledJob(number=self.numbers, id=id, submission=submission, submitted=self.now)
        self.processes[id] = Process(steps=rng.choice((60, 600, WORK, WORK, WORK)))
        self.handle(Submitted(job))

    def _conditions(self, rng: random.Random) -> Conditions:
        drawn = rng.random()
        if drawn < 0.1:
            return Conditions(earliest=self.now + rng.choice((5.0, 100.0)))
        if drawn < 0.2 and self.jobs.jobs:
            return Conditions(
                predecessors=(Predecessor(job=rng.choice(list(self.jobs.jobs)), success=True),)
            )
        if drawn < 0.35:
            return Conditions(array="job-1", index=self.numbers, limit=2)
        return Conditions()

    def _resize(self, which: int, how: int) -> None:
        job = self._some(which)
        if job is not None:
            workers = self._range(how, how // 4)
            if job.submission.spec.is_restarted:
                workers = WorkerRange(minimum=workers.minimum, maximum=workers.minimum * 2)
            self.handle(RangeChanged(job.id, workers))

    def _scale(self, which: int, how: int) -> None:
        """The load of a service changes."""
        services = [job for job in self.jobs.jobs.values() if job.submission.spec.service]
        if services:
            job = services[which % len(services)]
            workers = WorkerRange(minimum=1, maximum=1 + how % 4)
            self.handle(RangeChanged(job.id, workers, scaled=True))

    def _wish(self, which: int, wish: Happening) -> None:
        job = self._some(which)
        if job is not None:
            self.handle(Wished(job.id, wish))

    def _hold(self, which: int, how: int) -> None:
        self._wish(which, Happening.HOLD)

    def _release(self, which: int, how: int) -> None:
        held = [k for k, job in enumerate(self.jobs.jobs.values()) if not job.life.may_run]
        self._wish(held[how % len(held)] if held else which, Happening.RELEASE)

    def _cancel(self, which: int, how: int) -> None:
        self._wish(which, Happening.CANCEL)

    def _describe(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.handle(Described(spec))

    def _name(self, which: int) -> str:
        names = [*(node.id for node in self.spec.cluster.nodes), *self.joined]
        return names[which % len(names)]

    def _drain(self, which: int, how: int) -> None:
        self._describe(replace(self.spec, drained=self.spec.drained ^ {self._name(which)}))

    def _lose(self, which: int, how: int) -> None:
        name = self._name(which)
        if name in self.gone:
            self.gone.discard(name)
            return
        self.gone.add(name)
        for process in self.processes.values():
            if process.alive and process.home == name:
                self._end(process)
            process.held.pop(name, None)
            process.agents.discard(name)

    def _die(self, which: int, how: int) -> None:
        job = self._some(which)
        if job is not None and self.processes[job.id].alive:
            process = self.processes[job.id]
            self._end(process, "failed" if how % 2 else "")
            if how % 4 == 1:
                process.seen = replace(process.seen, who="user", problem="a bug")

    def _join(self, which: int, how: int) -> None:
        name = f"j{which % 2}"
        if name in self.joined and name not in self.leaving:
            self.leaving.add(name)
        else:
            self.leaving.discard(name)
            self.joined[name] = 1 + how % 3

    def _apply(self, which: int, how: int) -> None:
        rng = random.Random(1000 * which + how)
        cluster = self.spec.cluster
        if rng.random() < 0.5:
            cluster = Cluster(
                nodes=tuple(replace(node, devices=rng.randint(1, 3)) for node in cluster.nodes)
            )
        left, tenants = cluster.devices, []
        for id in TENANTS if rng.random() < 0.8 else ():
            if rng.random() < 0.75:
                guaranteed = rng.randint(0, min(3, left))
                left -= guaranteed
                tenants.append(
                    Tenant(
                        id=id,
                        guaranteed=guaranteed,
                        exclusive=rng.randint(0, guaranteed) if rng.random() < 0.3 else 0,
                        limit=guaranteed + rng.randint(0, 3) if rng.random() < 0.3 else None,
                        weight=rng.choice((1.0, 2.0)),
                        cohort=rng.choice(("default", "default", "other")),
                    )
                )
        headroom = 1 if rng.random() < 0.15 and left and cluster.devices > 1 else 0
        spec = replace(self.spec, cluster=cluster, tenants=tuple(tenants), headroom=headroom)
        self._describe(spec)

    def _stubborn(self, which: int, how: int) -> None:
        job = self._some(which)
        if job is not None:
            process = self.processes[job.id]
            process.stubborn, process.deaf = not process.stubborn, bool(how % 2)

    def _revive(self, which: int, how: int) -> None:
        self.revive()

    # Rest -----------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Let all nodes be back and everybody be quiet, until nothing changes any more."""
        if self.meanwhile is not None:
            self.decide()
        self.gone.clear()
        self.leaving.clear()
        for process in self.processes.values():
            process.stubborn = process.deaf = False
        self._describe(replace(self.spec, drained=frozenset()))
        for _ in range(10):
            self.pass_by(1.0)
        deadlines = [job.submission.deadline or 0.0 for job in self.jobs.jobs.values()]
        for _ in range(10):
            self.pass_by(8.0)
        self.now = max([self.now, *deadlines])  # a plan may let a job wait for its time
        plans, same = self.shares(), 0
        for _ in range(MOST_TO_SETTLE + CALM):
            self.pass_by(15.0)
            current = self.shares()
            same = same + 1 if current == plans else 0
            plans = current
            if same == CALM:
                return
        raise AssertionError(f"no end of changes: {self.words()}")

    def shares(self) -> dict[str, dict[str, int]]:
        return {job.id: dict(job.allocation.plan) for job in self.jobs.jobs.values()}

    def check(self) -> None:
        """What holds once a cluster has come to rest."""
        cluster = self.jobs.present
        held = {tenant.id: 0 for tenant in cluster.tenants}
        on_nodes: dict[str, int] = {}
        for job in self.jobs.jobs.values():
            process, workers = self.processes[job.id], job.submission.spec.workers
            plan, told = job.allocation.plan, job.allocation.told
            assert plan == told, f"{job.id} has {told}, its plan {plan}: {self.words()}"
            assert process.alive == job.running == bool(plan), f"{job.id}: {self.words()}"
            assert process.held == told, f"{job.id} holds {process.held}: {self.words()}"
            assert not plan or workers.minimum <= job.target <= workers.maximum, (
                f"{job.id} has {job.target} of {workers}: {self.words()}"
            )
            tenant = job.submission.tenant
            held[tenant] = held.get(tenant, 0) + job.target
            for node, count in told.items():
                on_nodes[node] = on_nodes.get(node, 0) + count
        for node in cluster.cluster.nodes:
            assert on_nodes.get(node.id, 0) <= node.devices, f"{node.id}: {self.words()}"
        free = cluster.capacity - sum(held.values())
        assert free >= 0, self.words()
        rights = self._rights(held, free)
        waiting = [job for job in self.jobs.jobs.values() if self._waits(job)]
        for job in waiting:
            fewest, tenant = job.submission.spec.workers.minimum, job.submission.tenant
            usable, own = rights[tenant]
            lower = sum(
                other.target - kept
                for other in self.jobs.jobs.values()
                if other.running
                and other.submission.tenant == tenant
                and other.submission.priority < job.submission.priority
                for kept in (
                    other.submission.spec.workers.minimum
                    if other.submission.priority is Priority.PRESERVED
                    else 0,
                )
            )
            fits = fewest <= usable + lower or fewest <= own
            if job.submission.spec.exact:
                fits = fewest <= min(usable, self._free_of_a_kind(job, on_nodes))
            assert not fits, (
                f"{job.id} needs {fewest} and waits where {usable} are free, {lower} below it, "
                f"{own} its tenant's: {self.words()}"
            )
        if waiting or len({job.submission.tenant for job in self.jobs.jobs.values()}) > 1:
            return  # what others could use, and do not want, is lent to whole jobs alone
        for job in self.jobs.jobs.values():
            state = self.jobs.state(job, self.now)
            usable, _ = rights[job.submission.tenant]
            if job.submission.spec.exact:
                usable = min(usable, self._free_of_a_kind(job, on_nodes))
            best = state.job.curve.best
            goal = min(state.job.ceiling, job.target + usable)
            assert not job.running or best[goal] < 1.2 * best[job.target], (
                f"{job.id} has {job.target}, and {usable} more are free: {self.words()}"
            )

    def _waits(self, job: ScheduledJob) -> bool:
        ready = list_ready(self.jobs.jobs, self.jobs._arrays, self.now)
        return job in ready and job.life.may_run and not job.running

    def _rights(self, held: Mapping[str, int], free: int) -> dict[str, tuple[int, int]]:
        """Return free devices that each tenant may use, and what is left of its guarantee."""
        cluster = self.jobs.present
        owned = sum(tenant.guaranteed for tenant in cluster.tenants)
        scale = min(1.0, cluster.capacity / owned) if owned else 1.0
        owners = {tenant.id: tenant for tenant in cluster.tenants}
        found = {}
        for id in {*owners, *held}:
            own = owners.get(id) or Tenant(id=id)
            kept = 0  # for others, whatever they use
            for other in cluster.tenants:
                if other.id != id:
                    right = other.exclusive if other.cohort == own.cohort else other.guaranteed
                    kept += max(0, int(right * scale) - held[other.id])
            usable = free - kept
            if own.limit is not None:
                usable = min(usable, own.limit - held.get(id, 0))
            found[id] = max(0, usable), int(own.guaranteed * scale) - held.get(id, 0)
        return found

    def _free_of_a_kind(self, job: ScheduledJob, on_nodes: Mapping[str, int]) -> int:
        """Return the free devices of the kind that has most, of those that a job may be on."""
        kinds = self.jobs._kinds_for([job]).get(job.id)
        free: dict[str, int] = {}
        for node in self.jobs.present.cluster.nodes:
            if (kinds is None or node.kind in kinds) and (
                not job.running or node.kind in self._kinds_of(job)
            ):
                count = node.devices - on_nodes.get(node.id, 0)
                free[node.kind] = free.get(node.kind, 0) + count
        return max(free.values(), default=0)

    def _kinds_of(self, job: ScheduledJob) -> set[str]:
        nodes = self.jobs.present.cluster.nodes
        return {node.kind for node in nodes if node.id in job.allocation.told}

    def words(self) -> str:
        lines = [str(self.spec.tenants), str(self.jobs.present.cluster)]
        lines += [
            f"{job.id} {job.life.phase.value}/{job.life.wish.value} {job.submission.spec.workers} "
            f"{job.submission.tenant} {job.submission.priority.name} "
            f"{job.submission.fingerprint} due {job.submission.deadline} "
            f"plan {job.allocation.plan} told {job.allocation.told} {job.profile} "
            f"{job.judgement.standing} {self.jobs.waits_for(job)}"
            for job in self.jobs.jobs.values()
        ]
        return "\n  ".join(["", *lines])


KINDS = (
    *("submit",) * 6,
    *("resize",) * 5,
    *("wait",) * 5,
    *("hold",) * 2,
    *("release",) * 2,
    *("drain",) * 2,
    *("lose",) * 2,
    *("apply",) * 2,
    *("revive",) * 2,
    "cancel",
    "die",
    "join",
    "stubborn",
    "scale",
)


def at_random(seed: int) -> tuple[tuple[int, ...], list[Deed]]:
    """Some nodes, and a list of deeds on them."""
    rng = random.Random(f"quiet {seed}")
    devices = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
    deeds = [
        Deed(rng.choice(KINDS), (rng.randrange(16), rng.randrange(16), rng.randrange(8)))
        for _ in range(rng.randint(3, 40))
    ]
    return devices, deeds


def run(devices: Sequence[int], deeds: Sequence[Deed]) -> QuietCluster:
    """Do all of them, and check that the cluster comes to rest as it should."""
    cluster = QuietCluster(devices)
    for deed in deeds:
        cluster.do(deed)
    cluster.come_to_rest()
    cluster.check()
    return cluster


def _problem(devices: Sequence[int], deeds: Sequence[Deed]) -> str:
    try:
        run(devices, deeds)
    except Exception as error:  # noqa: BLE001 whatever goes wrong is to be made shorter
        return f"{type(error).__name__}: {error}"
    return ""


def shortest(devices: tuple[int, ...], deeds: list[Deed]) -> tuple[tuple[int, ...], list[Deed]]:
    """Leave out what the problem does not need."""
    size = max(1, len(deeds) // 2)
    while size:
        start = 0
        while start < len(deeds):
            fewer = deeds[:start] + deeds[start + size :]
            if _problem(devices, fewer):
                deeds = fewer
            else:
                start += size
        size //= 2
    for k, deed in enumerate(deeds):
        for place in range(3):
            for number in range(deed.numbers[place]):
                numbers = list(deed.numbers)
                numbers[place] = number
                simpler = deed._replace(numbers=tuple(numbers))
                if _problem(devices, [*deeds[:k], simpler, *deeds[k + 1 :]]):
                    deeds[k] = deed = simpler
                    break
    return devices, deeds


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + count):
        if problem := _problem(*at_random(seed)):
            print(f"seed {seed}: {problem.splitlines()[0]}", flush=True)  # noqa: T201
            if len(sys.argv) > 3:
                devices, deeds = shortest(*at_random(seed))
                print(devices, deeds, _problem(devices, deeds), flush=True)  # noqa: T201
