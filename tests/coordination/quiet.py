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
from collections import Counter
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

_decode = msgspec.msgpack.Decoder(ScheduledJob).decode


class Deed(NamedTuple):
    """Something that people, nodes or processes do; the numbers say to what, and how."""

    kind: str
    numbers: tuple[int, ...]  # three

    def __repr__(self) -> str:
        return f"({self.kind!r}, {self.numbers})"


@dataclass(slots=True)
class Process:
    """The processes of a job: they do as they are told at the next look, unless they are stubborn."""

    alive: bool = False
    holding: dict[str, int] = field(default_factory=dict)
    goal: dict[str, int] = field(default_factory=dict)
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
        self.lost_nodes: set[str] = set()
        self.joined: dict[str, int] = {}
        self.leaving: set[str] = set()
        self.deferred: Callable[[], None] | None = None  # is done while the next decision is made
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
                    lessons = self.lessons.measured(submission.fingerprint)
                    learned = measured.merged([lessons])
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
                process.alive, process.holding, process.goal = True, {}, dict(workers)
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
                process.goal = dict(command.workers) if isinstance(command, Resize) else {}
                process.agents |= set(process.goal)
                self.handle(Answered(command))
            case Force(workers=workers):
                process.holding = {
                    node: min(count, workers.get(node, 0))
                    for node, count in process.holding.items()
                    if workers.get(node, 0)
                }
                if not workers:
                    self._end(process)
            case Leave(node=node):
                process.agents.discard(node)
            case Lose(node=node):
                process.holding.pop(node, None)
                process.goal.pop(node, None)

    def _end(self, process: Process, outcome: str = "") -> None:
        process.alive, process.holding, process.agents = False, {}, set()
        process.seen = replace(self._sighting(process), alive=False, outcome=outcome)

    def _sighting(self, process: Process) -> Seen:
        return Seen(
            alive=process.alive,
            workers=dict(process.holding),
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
        if not process.stubborn and process.holding != process.goal:
            process.holding = {n: k for n, k in process.goal.items() if n not in self.lost_nodes}
            process.reached = None
            if not process.goal:
                self._end(process, "suspended")
                return
        workers = sum(process.holding.values())
        if not workers:
            return
        job = _decode(self.disk[id])
        rate = workers ** SPEEDS[job.submission.fingerprint]
        steps_made = rate * seconds
        process.step += steps_made
        if steps_made >= 1.0 and not job.submission.opaque:
            for _ in range(min(6, int(steps_made))):
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
            seen[job.id] = self._sighting(process) if process.alive else process.seen
        names = [node.id for node in self.spec.cluster.nodes]
        nodes = {
            name: NodeSeen(up=not is_gone, gone=is_gone, lost=is_gone, kind=KIND)
            for name in names
            for is_gone in (name in self.lost_nodes,)
        }
        for name, devices in self.joined.items():
            nodes[name] = NodeSeen(
                up=name not in self.lost_nodes,
                gone=name in self.lost_nodes,
                lost=name in self.lost_nodes,
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
        if self.deferred is not None:
            deferred, self.deferred = self.deferred, None
            deferred()
        self.handle(Decided(decision))
        self.look()

    # Deeds ----------------------------------------------------------------------------------------

    def perform(self, deed: Deed) -> None:
        """Do something now, or while the next decision is made, and let some time pass."""
        kind, (target, choice, late) = deed
        if kind == "wait":
            for _ in range(target + 1):
                self.pass_by(1.0 + choice)
            return

        def act() -> None:
            getattr(self, f"_{kind}")(target, choice)

        if late % 4 == 3 and self.deferred is None and kind != "revive":
            self.deferred = act
        else:
            act()
        for _ in range(late % 3):
            self.pass_by(0.5 + late / 4.0)

    def _pick(self, target: int) -> ScheduledJob | None:
        jobs = list(self.jobs.jobs.values())
        return jobs[target % len(jobs)] if jobs else None

    def _range(self, target: int, choice: int) -> WorkerRange:
        minimum = min(1 + target % 4, self.jobs.present.capacity)
        return WorkerRange(minimum=max(1, minimum), maximum=max(1, minimum) + choice % 4)

    def _submit(self, target: int, choice: int) -> None:
        if len(self.jobs.jobs) >= MOST_JOBS:
            return
        rng = random.Random(1000 * target + choice)
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

    def _resize(self, target: int, choice: int) -> None:
        job = self._pick(target)
        if job is not None:
            workers = self._range(choice, choice // 4)
            if job.submission.spec.is_restarted:
                workers = WorkerRange(minimum=workers.minimum, maximum=workers.minimum * 2)
            self.handle(RangeChanged(job.id, workers))

    def _scale(self, target: int, choice: int) -> None:
        """The load of a service changes."""
        services = [job for job in self.jobs.jobs.values() if job.submission.spec.service]
        if services:
            job = services[target % len(services)]
            workers = WorkerRange(minimum=1, maximum=1 + choice % 4)
            self.handle(RangeChanged(job.id, workers, scaled=True))

    def _wish(self, target: int, wish: Happening) -> None:
        job = self._pick(target)
        if job is not None:
            self.handle(Wished(job.id, wish))

    def _hold(self, target: int, choice: int) -> None:
        self._wish(target, Happening.HOLD)

    def _release(self, target: int, choice: int) -> None:
        holding = [k for k, job in enumerate(self.jobs.jobs.values()) if not job.life.may_run]
        self._wish(holding[choice % len(holding)] if holding else target, Happening.RELEASE)

    def _cancel(self, target: int, choice: int) -> None:
        self._wish(target, Happening.CANCEL)

    def _describe(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.handle(Described(spec))

    def _name(self, target: int) -> str:
        names = [*(node.id for node in self.spec.cluster.nodes), *self.joined]
        return names[target % len(names)]

    def _drain(self, target: int, choice: int) -> None:
        self._describe(replace(self.spec, drained=self.spec.drained ^ {self._name(target)}))

    def _lose(self, target: int, choice: int) -> None:
        name = self._name(target)
        if name in self.lost_nodes:
            self.lost_nodes.discard(name)
            return
        self.lost_nodes.add(name)
        for process in self.processes.values():
            if process.alive and process.home == name:
                self._end(process)
            process.holding.pop(name, None)
            process.agents.discard(name)

    def _die(self, target: int, choice: int) -> None:
        job = self._pick(target)
        if job is not None and self.processes[job.id].alive:
            process = self.processes[job.id]
            self._end(process, "failed" if choice % 2 else "")
            if choice % 4 == 1:
                process.seen = replace(process.seen, who="user", problem="a bug")

    def _join(self, target: int, choice: int) -> None:
        name = f"j{target % 2}"
        if name in self.joined and name not in self.leaving:
            self.leaving.add(name)
        else:
            self.leaving.discard(name)
            self.joined[name] = 1 + choice % 3

    def _apply(self, target: int, choice: int) -> None:
        rng = random.Random(1000 * target + choice)
        cluster = self.spec.cluster
        if rng.random() < 0.5:
            cluster = Cluster(
                nodes=tuple(replace(node, devices=rng.randint(1, 3)) for node in cluster.nodes)
            )
        unowned, tenants = cluster.devices, []
        for id in TENANTS if rng.random() < 0.8 else ():
            if rng.random() < 0.75:
                guaranteed = rng.randint(0, min(3, unowned))
                unowned -= guaranteed
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
        headroom = 1 if rng.random() < 0.15 and unowned and cluster.devices > 1 else 0
        spec = replace(self.spec, cluster=cluster, tenants=tuple(tenants), headroom=headroom)
        self._describe(spec)

    def _stubborn(self, target: int, choice: int) -> None:
        job = self._pick(target)
        if job is not None:
            process = self.processes[job.id]
            process.stubborn, process.deaf = not process.stubborn, bool(choice % 2)

    def _revive(self, target: int, choice: int) -> None:
        self.revive()

    # Rest -----------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Let all nodes be back and everybody be quiet, until nothing changes any more."""
        if self.deferred is not None:
            self.decide()
        self.lost_nodes.clear()
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
        plans, repeats = self.shares(), 0
        for _ in range(MOST_TO_SETTLE + CALM):
            self.pass_by(15.0)
            current = self.shares()
            repeats = repeats + 1 if current == plans else 0
            plans = current
            if repeats == CALM:
                return
        raise AssertionError(f"no end of changes: {self.words()}")

    def shares(self) -> dict[str, dict[str, int]]:
        return {job.id: dict(job.allocation.plan) for job in self.jobs.jobs.values()}

    def check(self) -> None:
        """What holds once a cluster has come to rest.

        Not checked, since it is meant so: among jobs of one priority of a tenant some may wait for
        ever where others make better use of devices, and what a tenant could use and does not want
        is lent to others only where a whole job needs it to run at all.
        """
        holding = {tenant.id: 0 for tenant in self.spec.tenants}
        on_nodes = {node.id: 0 for node in self.jobs.present.cluster.nodes}
        for job in self.jobs.jobs.values():
            self._check_workers(job)
            tenant = job.submission.tenant
            holding[tenant] = holding.get(tenant, 0) + job.target
            for node, count in job.allocation.told.items():
                on_nodes[node] += count
        free = {n.id: n.devices - on_nodes[n.id] for n in self.jobs.present.cluster.nodes}
        idle = self.jobs.present.capacity - sum(holding.values())
        assert min(idle, *free.values()) >= 0, self.words()
        rights = self._rights(holding, idle)
        waiting = [job for job in self.jobs.jobs.values() if self._waits(job)]
        for job in waiting:
            self._check_wait(job, *rights[job.submission.tenant], free)
        if not waiting and len({job.submission.tenant for job in self.jobs.jobs.values()}) == 1:
            for job in self.jobs.jobs.values():
                self._check_growth(job, rights[job.submission.tenant][0], free)

    def _check_workers(self, job: ScheduledJob) -> None:
        """A job has what it was given, and that is as much as its owner allows."""
        process, workers = self.processes[job.id], job.submission.spec.workers
        plan, request = job.allocation.plan, job.allocation.told
        assert plan == request == process.holding, f"{job.id} has {process.holding}: {self.words()}"
        assert process.alive == job.running == bool(plan), f"{job.id}: {self.words()}"
        assert not plan or workers.minimum <= job.target <= workers.maximum, (
            f"{job.id} has {job.target} of {workers}: {self.words()}"
        )

    def _check_wait(
        self, job: ScheduledJob, usable: int, unused: int, free: Mapping[str, int]
    ) -> None:
        """No devices are free for a job that waits, nor had by lower priorities, or by borrowers.

        Args:
            usable: free devices that its tenant may use.
            unused: devices of its tenant's guarantee that the tenant does not have.
        """
        fewest, lower = job.submission.spec.workers.minimum, 0
        for peer in self.jobs.jobs.values():
            rival = peer.submission
            if rival.tenant == job.submission.tenant and rival.priority < job.submission.priority:
                lower += peer.target
                if peer.running and rival.priority is Priority.PRESERVED:
                    lower -= rival.spec.workers.minimum
        fits = fewest <= max(usable + lower, unused)
        if job.submission.spec.exact:
            fits = fewest <= min(usable, self._free_of_a_kind(job, free))
        assert not fits, (
            f"{job.id} needs {fewest} and waits where {usable} are free, {lower} below it, "
            f"{unused} of its tenant's lent: {self.words()}"
        )

    def _check_growth(self, job: ScheduledJob, usable: int, free: Mapping[str, int]) -> None:
        """A job that more workers would make much faster has them, where they are free."""
        state = self.jobs.state(job, self.now)
        if job.submission.spec.exact:
            usable = min(usable, self._free_of_a_kind(job, free))
        best, goal = state.job.curve.best, min(state.job.ceiling, job.target + usable)
        assert not job.running or best[goal] < 1.2 * best[job.target], (
            f"{job.id} has {job.target}, and {usable} more are free: {self.words()}"
        )

    def _waits(self, job: ScheduledJob) -> bool:
        ready = list_ready(self.jobs.jobs, self.jobs._arrays, self.now)
        return job in ready and job.life.may_run and not job.running

    def _rights(self, holding: Mapping[str, int], free: int) -> dict[str, tuple[int, int]]:
        """Return free devices that each tenant may use, and what is left of its guarantee."""
        cluster = self.jobs.present
        owned = sum(tenant.guaranteed for tenant in cluster.tenants)
        scale = min(1.0, cluster.capacity / owned) if owned else 1.0
        owners = {tenant.id: tenant for tenant in cluster.tenants}
        found = {}
        for id in {*owners, *holding}:
            owner = owners.get(id) or Tenant(id=id)
            reserve = 0  # for others, whatever they use
            for peer in cluster.tenants:
                if peer.id != id:
                    right = peer.exclusive if peer.cohort == owner.cohort else peer.guaranteed
                    reserve += max(0, int(right * scale) - holding[peer.id])
            usable = free - reserve
            if owner.limit is not None:
                usable = min(usable, owner.limit - holding.get(id, 0))
            found[id] = max(0, usable), int(owner.guaranteed * scale) - holding.get(id, 0)
        return found

    def _free_of_a_kind(self, job: ScheduledJob, free: Mapping[str, int]) -> int:
        """Return the free devices of the kind that has most, of those that an exact job may be on."""
        kinds, found = self.jobs._kinds_for([job]).get(job.id), Counter[str]()
        nodes = self.jobs.present.cluster.nodes
        kinds_held = {node.kind for node in nodes if node.id in job.allocation.told}
        for node in nodes:
            if (kinds is None or node.kind in kinds) and (
                not kinds_held or node.kind in kinds_held
            ):
                found[node.kind] += free[node.id]
        return max(found.values(), default=0)

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
        cluster.perform(deed)
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
            shorter = deeds[:start] + deeds[start + size :]
            if _problem(devices, shorter):
                deeds = shorter
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
