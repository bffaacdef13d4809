"""The state machine that names rounds, members and ranks. Pure.

```
         process started     connected, warm        named in a round
 (nothing) ─────────▶ STARTING ──────▶ READY ──────────────────────▶ ACTIVE
                         │               │           wanted after all ▲ │ told or asked to leave
                         ▼ dies          ▼ dies, or not needed        │ ▼
                       (gone) ◀──────────┴──────── dies ────────── LEAVING ──▶ dismissed at
                                                                               a boundary
```

A member that dies in a round ends that round at once: the survivors are given a new one and redo
the step in flight. Everything else waits for a step boundary: the hub is asked to hold, and nothing
is redone. Newcomers that are started together come in together: who is ready waits a moment for the
others, until the caller, which has the clock, says that it is over. A member counts as a source of
state only once it said that it has installed a round; so if a worker dies on the way in or out, in
any state, the next round is well defined.

A server is a member that takes no share of the batch. No round is of servers alone: where all
workers are gone, the servers wait in the last round, with the state that they have, and give it to
the workers of the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brim.coordination.job.attempts import Attempts
from brim.coordination.job.membership import (
    AgentDeparts,
    AgentJoined,
    AgentLost,
    AgentReplaced,
    AllHeld,
    AwaitOthers,
    CheckpointCompleted,
    Command,
    CommandAdvanced,
    Committed,
    Dismiss,
    End,
    Event,
    GiveUpOn,
    Hold,
    Hurry,
    Install,
    JobCompleted,
    Kill,
    LetGo,
    PatienceOver,
    RendezvousPhase,
    ResizeRequested,
    RunOutcome,
    StartWorker,
    Stop,
    Straggling,
    UserFailed,
    Worker,
    WorkerAsksToLeave,
    WorkerCutOff,
    WorkerDisagrees,
    WorkerGone,
    WorkerIdle,
    WorkerInstalled,
    WorkerReady,
    WorkerState,
    World,
    WriteCheckpoint,
)
from brim.coordination.job.roster import Newcomers, Roster, at_work, serving
from brim.coordination.job.worlds import world_of, would_overtake
from brim.domain.quantities import counted

_LAST_HOST = "its last host was asked to leave"


@dataclass(slots=True, kw_only=True)
class Rendezvous:
    """The membership of one job.

    Args:
        minimum: workers that the first round waits for.
        target: workers wanted.
        servers: wanted beside the workers; the first round waits for them.
        spares: warm workers kept beyond the target, so that a loss is made good at once; one may
            become a server.
        expected_agents: agents to wait for before any worker is started.
        parts: micro-batches of a step; 0 gives each rank one part, however many there are.
        attempts: how hosts are treated whose workers die young.
        roster: of agents and workers.
        stands_alone: the job outlives its last agent, and waits for another.
        restarts: each round starts the work of all members again. So a change waits for workers
            that are on their way to it, and a death is one: the others leave their work at once.
        lingers: a dismissed worker has its device for a while, since requests are under way.
    """

    minimum: int
    target: int
    servers: int = 0
    spares: int = 0
    expected_agents: int = 1
    parts: int = 0
    attempts: Attempts = field(default_factory=Attempts)
    roster: Roster = field(default_factory=Roster)
    stands_alone: bool = False
    restarts: bool = False
    lingers: bool = False

    phase: RendezvousPhase = RendezvousPhase.GATHERING
    round: int = 0
    _held_round: int = 0
    _patient_round: int = -1  # in which who is ready waits for others
    _impatient_round: int = -1  # the last in which that has taken long enough
    _resting_round: int = -1  # at whose boundary all stand, and wait for others
    _still_round: int = 0  # the last in which nobody makes a step
    _standing: set[str] = field(default_factory=set)  # its members that have left their step
    _progress: bool = False
    _stopping: str = ""
    _outcome: RunOutcome = RunOutcome.SUSPENDED
    _reason: str = ""
    _last_straw: str = ""
    _causes: list[str] = field(default_factory=list)
    _condemned: set[str] = field(default_factory=set)  # killed since they held up the end

    # What is so -----------------------------------------------------------------------------------

    @property
    def workers(self) -> Mapping[str, Worker]:
        """All that are there, by name."""
        return self.roster.workers

    @property
    def is_stopping(self) -> bool:
        """The job is on its way to its end: nothing is started or resized any more."""
        return bool(self._stopping) or self.phase in (
            RendezvousPhase.WRITING,
            RendezvousPhase.ENDING,
            RendezvousPhase.ENDED,
        )

    @property
    def _only_pauses(self) -> bool:
        """Return whether it stops only since its last host leaves, and until another comes."""
        return self.stands_alone and self._stopping == _LAST_HOST

    @property
    def lacks_room(self) -> int:
        """Workers of the first round that no present host has room for."""
        if self.round or len(self.roster.agents) < self.expected_agents:
            return 0
        room = self.roster.places.room
        room_count = sum(room.get(agent, self.target) for agent in self._open_agents)
        return max(0, min(self.minimum, self.target) - room_count)

    def can_do_without(self, worker: str) -> bool:
        """Return whether a worker has made no step, and another member has."""
        experienced = at_work(
            worker_staying for worker_staying in self.roster.staying if worker_staying.id != worker
        )
        has_made_none = worker in self.workers and not self.workers[worker].steps
        return has_made_none and any(colleague.steps for colleague in experienced)

    @property
    def _fewest(self) -> int:
        """Return the fewest workers of a round: one goes on by itself, unless all start again."""
        is_gang = self.restarts or not self.round
        return min(self.minimum, self.roster.places.waited_for or self.target) if is_gang else 1

    @property
    def _lacks_others(self) -> bool:
        """Return whether others are on their way to a round, and have some time left for it."""
        others_come = self.roster.awaits_others(self._newcomers, self.target, self.servers)
        return others_come and self._impatient_round != self.round

    @property
    def _newcomers(self) -> Newcomers:
        return self.roster.newcomers(self.target, self.servers)

    # What happens ---------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Take one event; the commands are to be performed in order."""
        if self.phase is RendezvousPhase.ENDED:
            return []
        match event:
            case AgentJoined(agent, room, machine):
                self.roster.join(agent, room, machine)
                return self._fill()
            case AgentDeparts(agent):
                return self._agent_departs(agent)
            case AgentLost(agent, reason):
                return self._agent_lost(agent, reason)
            case AgentReplaced(agent):
                self._causes.append(f"agent {agent} was killed")
                return self._after_loss(self.roster.clear(agent))
            case WorkerReady(worker, address):
                return self._worker_ready(worker, address)
            case WorkerInstalled(worker, round, _):
                if round == self.round and worker in self.workers:
                    self.workers[worker].has_state = True
                    if round == self._still_round:
                        return self._stands(worker)
                # It may have said so before it could know that the round is over: then it has the
                # state to give.
                return self._use_ready() if self.phase is RendezvousPhase.GATHERING else []
            case WorkerAsksToLeave(worker):
                return self._asks_to_leave(worker)
            case WorkerIdle(worker, round):
                return (
                    self._idle(worker)
                    if round == self.round and self.phase is RendezvousPhase.RUNNING
                    else []
                )
            case CommandAdvanced(round):
                return self._advanced(round)
            case WorkerCutOff(worker, round):
                return self._cut_off(worker) if round == self.round and self._progress else []
            case WorkerDisagrees(worker):
                return self._turn_away(worker)
            case WorkerGone(worker, reason):
                return self._worker_gone(worker, reason)
            case Committed(round, _):
                return self._committed(round)
            case AllHeld(round, _):
                return (
                    self._at_boundary()
                    if round == self.round and self.phase is RendezvousPhase.RUNNING
                    else []
                )
            case CheckpointCompleted(_):
                ending = self.phase is RendezvousPhase.WRITING
                return self._suspend(self._stopping) if ending else []
            case JobCompleted(_):
                if self.phase is RendezvousPhase.ENDING:  # what has failed does not become done
                    return []
                return self._dismiss_all(RunOutcome.DONE, "all steps are committed")
            case UserFailed(worker):
                return self._fail(f"{worker} failed")
            case Straggling(paces, cause):
                return self._straggling(paces, cause)
            case ResizeRequested(count, places, servers):
                return self._resize(count, places, servers)
            case Stop(reason):
                return self._stop(reason)
            case Hurry(late):
                return self._hurry(late)
            case PatienceOver(round):
                return self._patience_over(round)

    def _agent_lost(self, agent: str, reason: str) -> list[Command]:
        if agent not in self.roster.agents:
            return []
        was_member = self.roster.lose(agent)
        is_last = not self.roster.agents and not self.stands_alone
        if is_last and self.phase is not RendezvousPhase.ENDING:
            return self._end(RunOutcome.FAILED, f"the last agent of this run is gone: {reason}")
        self._causes.append(f"agent {agent} lost ({reason})")
        if not self.is_stopping:
            # else nobody would be there to go on
            self.target += self.roster.places.refill(self._open_agents)
        return self._after_loss(was_member)

    def _agent_departs(self, agent: str) -> list[Command]:
        """Have all workers of an agent leave at a boundary, and others start elsewhere at once."""
        if agent not in self.roster.agents or agent in self.roster.departing:
            return []
        self.roster.departing.add(agent)
        if self.phase is RendezvousPhase.ENDING:
            return []
        commands: list[Command] = []
        for worker in self.roster.workers_of(agent):
            if not worker.in_round and worker.state is not WorkerState.LEAVING:
                commands.append(Dismiss(worker.id))
                if worker.state is WorkerState.STARTING:  # it would hear that seconds later
                    commands.append(Kill(worker.id))
            worker.state, worker.wants_out = WorkerState.LEAVING, True
        self._causes.append(f"agent {agent} leaves")
        places = self.roster.places
        if places:
            places.wanted.pop(agent, None)
            self.target = max(1, sum(places.wanted.values()))
            if not places.waited_for:
                return [*commands, *self._stop(_LAST_HOST)]
        return [*commands, *self._fill(), *self._hold_if_due(), *self._let_go()]

    def _let_go(self) -> list[Command]:
        """Let those agents go whose last worker is gone."""
        if self.phase not in (RendezvousPhase.GATHERING, RendezvousPhase.RUNNING):
            return []  # the end of the job is theirs as well
        free = [
            departing
            for departing in self.roster.departing
            if not self.roster.workers_of(departing)
        ]
        waits = self.stands_alone and self.phase is RendezvousPhase.GATHERING
        if len(free) == len(self.roster.agents) and not waits:
            return []
        for agent in free:
            self.roster.lose(agent)
        return [LetGo(agent) for agent in sorted(free)]

    def _is_one_worker(self, agent: str) -> bool:
        """Return whether an agent is there for one worker, and leaves with it."""
        return self._is_pod(agent) and self.roster.places.room.get(agent) == 1

    def _ends_empty(self, agent: str) -> bool:
        """Return whether an agent has no worker, and will have none: its room would stay unused."""
        given_up = self.attempts.given_up(agent)
        return self._is_pod(agent) and given_up and not self.roster.workers_of(agent)

    def _is_pod(self, agent: str) -> bool:
        """Return whether an ended agent is replaced by another, as a pod is."""
        places = self.roster.places
        return self.stands_alone and not places and agent in places.room

    def _is_open(self, agent: str) -> bool:
        """Return whether an agent may get workers."""
        return agent not in self.roster.departing and not self.attempts.given_up(agent)

    @property
    def _open_agents(self) -> list[str]:
        """Return the agents that may get workers."""
        return [agent for agent in self.roster.agents if self._is_open(agent)]

    def _worker_ready(self, worker: str, address: str) -> list[Command]:
        newcomer = self.workers.get(worker)
        if newcomer is None:
            return []
        newcomer.address = address
        if self.phase is RendezvousPhase.ENDING or newcomer.state is WorkerState.LEAVING:
            return [Dismiss(worker)]
        newcomer.state = WorkerState.READY
        return self._use_ready()

    def _asks_to_leave(self, worker: str) -> list[Command]:
        leaver = self.workers.get(worker)
        if (
            leaver is None
            or leaver.state is WorkerState.LEAVING
            or self.phase is RendezvousPhase.ENDING
        ):
            return []
        if self._is_one_worker(leaver.agent):
            return self._agent_departs(leaver.agent)
        if not leaver.in_round:
            leaver.state = WorkerState.LEAVING  # so that no round names it any more
            return [Dismiss(worker)]
        if leaver.serves:  # it has no share to give up: another takes its place
            leaver.state, leaver.wants_out = WorkerState.LEAVING, True
            self._causes.append(f"{worker} leaves")
            return [*self._fill(), *self._hold_if_due()]
        places = self.roster.places
        # A place on an agent that was lost is nobody's to go on with: the job would have nobody,
        # and its state would be written nowhere.
        is_last = bool(places) and places.waited_for <= bool(places.wanted.get(leaver.agent))
        if self.target == 1 or is_last:
            return self._stop(f"its last worker, {worker}, was asked to leave")
        leaver.state, leaver.wants_out = WorkerState.LEAVING, True
        self.target -= 1
        if leaver.agent in places.wanted:
            places.wanted[leaver.agent] -= 1
        self._causes.append(f"{worker} leaves")
        return self._hold_if_due()

    def _idle(self, worker: str) -> list[Command]:
        if worker not in self.workers or self.round == self._still_round:
            return []
        self.workers[worker].is_idle = True
        return self._stand_still() if self._held_round == self.round else []

    def _stands(self, worker: str) -> list[Command]:
        """A member has left its step; where all have, they stand at a boundary."""
        self._standing.add(worker)
        all_stand = all(member.id in self._standing for member in self.roster.members)
        return self._at_boundary() if all_stand and self.phase is RendezvousPhase.RUNNING else []

    def _cut_off(self, worker: str) -> list[Command]:
        """Have a step done again in which a stream broke between two members that live.

        Only in a round that has made a step: members that cannot reach each other at all would
        never come to one. Those give up by themselves.
        """
        if worker not in self.workers or self.phase is not RendezvousPhase.RUNNING:
            return []
        self._causes.append(f"{worker} lost its connection to another")
        return self._after_loss(was_member=True)

    def _turn_away(self, worker: str) -> list[Command]:
        """Go on without a newcomer that disagrees with the experienced workers.

        Another one in its place would not, either.
        """
        if worker not in self.workers or self.phase is RendezvousPhase.ENDING:
            return []
        if not self.can_do_without(worker):
            return self._fail(f"{worker} failed")
        newcomer = self.workers[worker]
        newcomer.state, newcomer.wants_out = WorkerState.LEAVING, True
        experienced = at_work(self.roster.staying)
        self.target = min(self.target, len(experienced))
        places_wished = self.roster.places.wanted
        if newcomer.agent in places_wished:
            places_wished[newcomer.agent] = sum(
                colleague.agent == newcomer.agent for colleague in experienced
            )
        killed = Kill(worker, "it does not agree with the others")
        return [killed, *self._dismiss_surplus()]

    def _worker_gone(self, worker: str, reason: str) -> list[Command]:
        worker_lost = self.roster.workers.pop(worker, None)
        if worker_lost is None:
            return []
        if self.phase is RendezvousPhase.ENDING:
            return self._end(self._outcome, self._reason) if not self.workers else []
        if worker_lost.in_round:
            self._causes.append(f"{worker} lost ({reason})")
        details = {"steps": worker_lost.steps, "newest": self.roster.hired}
        young = worker_lost.state is not WorkerState.LEAVING
        last_straw = young and self.attempts.died(worker_lost.agent, worker_lost.number, **details)
        if last_straw:
            deaths = "starts in a row failed" if self.restarts else "in a row died young"
            self._last_straw = (
                f"{self.attempts.limit} {deaths} on {worker_lost.agent}, the last: {reason}"
            )
        if (
            self.attempts.given_up(worker_lost.agent)
            and worker_lost.agent in self.roster.places.wanted
            and not self.is_stopping
        ):
            self.target = self.roster.places.give_up(
                worker_lost.agent, at_work(self.workers.values())
            )
            if not any(self.roster.places.wanted.values()):
                return self._fail(self._last_straw)
            if not self.roster.places.waited_for:  # all other places are on agents that are lost
                self.target += self.roster.places.refill(self._open_agents)
        commands = [*self._after_loss(worker_lost.in_round), *self._let_go()]
        if self.is_stopping:
            return commands
        ends = self._ends_empty(worker_lost.agent)
        if last_straw:
            commands.append(
                GiveUpOn(worker_lost.agent, self.attempts.limit, reason, self.target, ends)
            )
        if ends:
            self.roster.lose(worker_lost.agent)
            commands.append(LetGo(worker_lost.agent, well=False))
        return commands

    def _after_loss(self, was_member: bool) -> list[Command]:
        if self.phase is RendezvousPhase.ENDING:
            return self._end(self._outcome, self._reason) if not self.workers else []
        if self._stopping and not any(worker.in_round for worker in self.workers.values()):
            return self._suspend(f"{self._stopping}; its last members died before the checkpoint")
        self.roster.call_back(self.target, self.servers)
        commands: list[Command] = []
        if was_member and (self.phase is RendezvousPhase.WRITING or self._condemned):
            commands += self._at_boundary()
        elif was_member and self._stopping and not at_work(self.roster.members):
            commands += self._end_with_servers()
        elif was_member and self.restarts and self.roster.members:
            if self.phase is RendezvousPhase.RUNNING:
                commands += self._stand_still()
        elif was_member:
            commands += self._install()
        commands += self._fill()
        return (
            [*commands, *self._use_ready()] if self.phase is RendezvousPhase.GATHERING else commands
        )

    def _committed(self, round: int) -> list[Command]:
        if (
            round != self.round or self.phase is RendezvousPhase.ENDING
        ):  # nobody's death is judged any more
            return []
        for worker in self.workers.values():  # in any order: ranks cost more than all else in here
            if worker.in_round:
                worker.steps += 1
                worker.is_idle = False
                self.attempts.stepped(worker.agent, worker.steps)
        if self._progress:
            return []
        self._progress = True
        return self._fill()

    def _advanced(self, round: int) -> list[Command]:
        """Give the agents of a round that gets on another try, and the round its spares."""
        if round != self.round or self.phase is not RendezvousPhase.RUNNING:
            return []
        for worker in self.roster.members:
            worker.steps = max(worker.steps, self.attempts.young)
            self.attempts.stepped(worker.agent, worker.steps)
        self._progress = True
        return self._fill()

    def _at_boundary(self) -> list[Command]:
        if not self._stopping and self.restarts and self._lacks_others:
            self._resting_round = self.round
            return self._await_others()
        if not self._stopping:
            return self._install(at_boundary=True)
        if (
            self._condemned & self.workers.keys()
        ):  # who writes is named when the last of them is gone
            return []
        holder = next((worker for worker in self.roster.members if worker.has_state), None)
        if holder is None:  # nobody has more than what storage has already
            return self._suspend(self._stopping)
        self.phase = RendezvousPhase.WRITING
        return [WriteCheckpoint(holder.id)]

    def _end_with_servers(self) -> list[Command]:
        """End a job that has no workers any more with the state of a server.

        Others may be writing to its tables.
        """
        holder = next((worker for worker in self.roster.members if worker.has_state), None)
        survivors = [
            worker.id
            for worker in self.roster.members
            if holder is not None and worker is not holder
        ]
        self._condemned |= set(survivors)
        reason = "the job ends with the state of another server, and no worker is left"
        return [Kill(worker, reason) for worker in survivors] or self._at_boundary()

    def _resize(self, count: int, places: Mapping[str, int], servers: int | None) -> list[Command]:
        if self.is_stopping:
            return []
        staying_agents = {a: n for a, n in places.items() if a not in self.roster.departing}
        if places and not staying_agents:
            return []  # who asked did not know yet that their hosts are to be free
        if staying_agents:
            count = sum(staying_agents.values())
        self.target, self.roster.places.wanted = count, staying_agents
        self.servers = self.servers if servers is None else servers
        self.attempts.forgive()
        staying = self.roster.staying
        seated = self.roster.places.seated(at_work(staying), count)
        seated += self.roster.places.attended(serving(staying), self.servers)
        for worker in staying:
            if worker not in seated:
                worker.state = WorkerState.LEAVING
        self.roster.call_back(count, self.servers)
        servers_note = "" if servers is None else f" and {counted(servers, 'server')}"
        self._causes.append(f"resize to {count}{servers_note}")
        dismissed = self._dismiss_starting() if self.lingers else []
        started = self._fill(with_spares=False)  # first: who is ready may wait for them
        brought_in = self._use_ready()
        return [*dismissed, *started, *self._fill(), *brought_in]

    def _straggling(self, paces: tuple[tuple[str, float], ...], cause: str) -> list[Command]:
        for worker, pace in paces:
            if worker in self.workers:
                self.workers[worker].pace = pace
        if self.is_stopping:
            return []
        self._causes.append(cause)
        return self._hold()

    def _stop(self, reason: str) -> list[Command]:
        if self._only_pauses:
            self._stopping = reason  # with the checkpoint that is under way
            return []
        if self._stopping or self.phase is RendezvousPhase.ENDING:
            return []
        self._stopping = reason
        return self._end_with_servers() if self.phase is RendezvousPhase.GATHERING else self._hold()

    def _hurry(self, late: Mapping[str, str]) -> list[Command]:
        """End late workers. Where all of them are gone, one of the others writes its state.

        Its step is given up as in a change of members: it goes back to the last boundary, which all
        have passed.
        """
        if not self._stopping or self.phase not in (
            RendezvousPhase.RUNNING,
            RendezvousPhase.WRITING,
        ):
            return []
        condemned = [worker for worker in self.roster.members if worker.id in late]
        self._condemned |= {worker.id for worker in condemned}
        return [
            Kill(worker.id, f"{late[worker.id]} when the run was to end") for worker in condemned
        ]

    # What follows ---------------------------------------------------------------------------------

    def _world_of(self, chosen: Sequence[Worker]) -> World:
        machines = self.roster.machines
        return world_of(chosen, round=self.round, parts=self.parts, machines=machines)

    def _fill(self, *, with_spares: bool = True) -> list[Command]:
        """Start the missing workers.

        Spares wait for a round that makes steps: they must not slow a change down.
        """
        if len(self.roster.agents) < self.expected_agents and not self.roster.hired:
            return []  # only before the first: an agent that was here and is gone is not waited for
        if (
            not self.roster.agents
            or self._stopping
            or self.phase in (RendezvousPhase.WRITING, RendezvousPhase.ENDING)
        ):
            return []
        settled = self._progress and self._held_round != self.round and not self._is_patient
        target_count = self.target + (self.spares if settled and with_spares else 0)
        current, alive = self.workers.values(), self.roster.alive
        open_agents = self._open_agents
        places = self.roster.places
        takes_none = not any(map(places.takes_workers, open_agents))
        if self.roster.departing and takes_none and not at_work(alive):
            if self.stands_alone and self.phase is RendezvousPhase.GATHERING:
                return []
            # Before the first round there is nothing to keep: who is left waits for another host.
            return self._stop(_LAST_HOST) if self.round or not open_agents else []
        if not open_agents:
            return self._go_on_with(alive)
        unserved = self.servers - len(places.attended(serving(alive), self.servers))
        # Counted together: who was started as a server may be spare by now.
        missing = target_count + self.servers - unserved - len(alive)
        workers = places.vacancies(at_work(current), open_agents, missing)
        if self.lingers:
            workers = self._with_device(workers)
        servers = places.to_attend(serving(current), open_agents, unserved)
        return [
            *(self._start(agent) for agent in workers),
            *(self._start(agent, serves=True) for agent in servers),
        ]

    def _with_device(self, agents: Sequence[str]) -> list[str]:
        """Return the agents that have a device for one more worker: leavers still have theirs."""
        counts = Counter(worker.agent for worker in self.workers.values())
        found = []
        for agent in agents:
            counts[agent] += 1
            if counts[agent] <= self.roster.places.wanted.get(agent, counts[agent]):
                found.append(agent)
        return found

    def _start(self, agent: str, *, serves: bool = False) -> StartWorker:
        return StartWorker(
            agent, self.roster.hire(agent, serves=serves).id, self.attempts.delay(agent)
        )

    def _go_on_with(self, alive: Sequence[Worker]) -> list[Command]:
        """Continue with the workers that are left, since no host keeps a new worker alive."""
        workers = len(at_work(alive))
        if workers < self._fewest:
            return self._fail(self._last_straw)
        self.target, self.servers = (
            min(self.target, workers),
            min(self.servers, len(serving(alive))),
        )
        return self._use_ready()

    def _use_ready(self) -> list[Command]:
        """Bring in the workers that are ready and wanted; those not wanted may go."""
        if self.phase is RendezvousPhase.GATHERING:
            newcomers = self._newcomers
            coming = self.roster.places.attended(serving(self.roster.alive), self.servers)
            served = bool(self.round) or len(newcomers.servers) >= len(coming)
            commands = []
            if len(newcomers.workers) >= self._fewest and served:
                waits = self.restarts and self._lacks_others
                commands = self._await_others() if waits else self._install()
        else:
            commands = self._hold_if_due()
        return commands + self._dismiss_surplus()

    def _dismiss_surplus(self) -> list[Command]:
        """Let those go that a smaller target has left over; the oldest are kept, as spares."""
        if self.phase is not RendezvousPhase.RUNNING:
            return []
        newcomers = self._newcomers.all
        surplus = [worker for worker in self.roster.ready if worker not in newcomers][self.spares :]
        for worker in surplus:
            worker.state = WorkerState.LEAVING
        return [Dismiss(worker.id) for worker in surplus]

    def _dismiss_starting(self) -> list[Command]:
        """Let those go that are not ready yet and have no place any more: they may take long."""
        surplus: list[Worker] = []
        for agent in self.roster.agents:
            alive = [worker for worker in self.roster.alive if worker.agent == agent]
            starting = [worker for worker in alive if worker.state is WorkerState.STARTING]
            count = len(alive) - self.roster.places.wanted.get(
                agent, 0 if self.roster.places else len(alive)
            )
            surplus += starting[len(starting) - max(0, min(count, len(starting))) :]
        for worker in surplus:
            worker.state = WorkerState.LEAVING
        return [Dismiss(worker.id) for worker in surplus]

    def _hold_if_due(self) -> list[Command]:
        """Ask for a boundary where a member wants to leave or a ready worker may come in."""
        if self.phase is not RendezvousPhase.RUNNING:
            return []
        if self._resting_round == self.round:
            return self._at_boundary()
        staying = self.roster.staying
        # Where all go to other agents, they train on until somebody is ready there.
        goes_elsewhere = bool(self.roster.places or self.roster.departing)
        leaving = len(staying) < len(self.roster.members) and bool(
            at_work(staying) or not goes_elsewhere
        )
        if leaving:
            return self._hold()
        newcomers = self._newcomers
        if not newcomers.all:
            return []
        return self._await_others() if self._lacks_others else self._hold()

    @property
    def _is_patient(self) -> bool:
        """Return whether somebody who is ready waits for others that are being started."""
        return self._patient_round == self.round != self._impatient_round

    def _await_others(self) -> list[Command]:
        """Have newcomers that are started together come in together: one change, not several."""
        is_held = self._held_round == self.round and not self.restarts
        if self._patient_round == self.round or is_held:
            return []
        self._patient_round = self.round
        return [AwaitOthers(self.round)]

    def _patience_over(self, round: int) -> list[Command]:
        """Bring in who is ready: the others have taken too long."""
        if round != self.round or self.is_stopping:
            return []
        self._impatient_round = round
        if self.phase is RendezvousPhase.GATHERING:
            return self._use_ready()
        request = self._hold_if_due()  # first: no spare is started beside a change
        return [*request, *self._fill()]

    def _hold(self) -> list[Command]:
        if self._resting_round == self.round and self._stopping:
            return self._at_boundary()
        if self.phase is not RendezvousPhase.RUNNING or self._held_round == self.round:
            return []
        if any(member.is_idle for member in self.roster.members):
            return self._stand_still()
        self._held_round = self.round
        return [Hold(self.round)]

    def _stand_still(self) -> list[Command]:
        """Have all members leave a step in which one of them waits for data.

        That data may be long in coming. So may be the end of a command's step.
        """
        if self._impatient_round == self.round:
            self._impatient_round += 1  # who is waited for had its time
        self.round += 1
        self._held_round = self._still_round = self.round
        self._progress = False
        self._standing.clear()
        world = self._world_of(self.roster.ranked(self.roster.members))
        return [
            Install(
                world, self._stopping or ", ".join(self._causes) or "change of members", still=True
            )
        ]

    def _install(self, *, at_boundary: bool = False) -> list[Command]:
        """Name the next round from staying and ready workers."""
        dismissed = [
            worker for worker in self.roster.members if worker.state is WorkerState.LEAVING
        ]
        staying = self.roster.staying
        newcomers = self._newcomers
        lacks_workers = not at_work(staying) and not newcomers.workers
        if not at_boundary or lacks_workers or not any(worker.has_state for worker in staying):
            # In the middle of a step a leaver may still be adding up in the memory that all workers
            # of its host share; and where only leavers have the state, they must give it away
            # first. Both leave at a boundary.
            staying, dismissed = self.roster.members, []
        has_workers = len(at_work(staying)) + len(newcomers.workers) >= (
            self._fewest if self.restarts else 1
        )
        if not has_workers or would_overtake([*staying, *newcomers.all], self.workers.values()):
            return self._gather()
        for worker in dismissed:
            worker.in_round = False
        for worker in newcomers.all:
            worker.in_round, worker.state = True, WorkerState.ACTIVE
            worker.serves = worker in newcomers.servers
            self._causes.append(f"{worker.id} joins")
        chosen = self.roster.ranked([*staying, *newcomers.all])
        for worker in chosen:
            worker.is_idle = False
        self.round += 1
        self.phase, self._progress = RendezvousPhase.RUNNING, False
        world = self._world_of(chosen)
        cause = "start" if self.round == 1 else ", ".join(self._causes) or "change of members"
        self._causes.clear()
        commands: list[Command] = [
            Install(world, cause),
            *(Dismiss(worker.id) for worker in dismissed),
        ]
        return commands + (self._hold() if self._stopping else self._hold_if_due())

    def _gather(self) -> list[Command]:
        """Wait for the first round, or for one that can restore.

        Workers of the last round have nothing to give, and wait as newcomers do; its servers wait
        in it.
        """
        self.phase, self._progress = RendezvousPhase.GATHERING, False
        commands: list[Command] = []
        for worker in self.roster.members:
            if worker.state is WorkerState.LEAVING and not (worker.serves and worker.has_state):
                worker.in_round = False
                commands.append(Dismiss(worker.id))
            elif not worker.serves:
                worker.in_round, worker.state = False, WorkerState.READY
        return commands

    def _suspend(self, reason: str) -> list[Command]:
        """End behind a checkpoint; a job that outlives its last host waits for another instead."""
        if not self._only_pauses:
            return self._dismiss_all(RunOutcome.SUSPENDED, reason)
        self._stopping = ""
        self._condemned.clear()
        self.phase, self._progress = RendezvousPhase.GATHERING, False
        members = self.roster.members
        for worker in members:
            worker.in_round, worker.state = False, WorkerState.LEAVING
        dismissals = [Dismiss(worker.id) for worker in members]
        return [*dismissals, *self._fill(), *self._let_go()]

    def _dismiss_all(self, outcome: RunOutcome, reason: str) -> list[Command]:
        self.phase, self._outcome, self._reason = RendezvousPhase.ENDING, outcome, reason
        if not self.workers:
            return self._end(outcome, reason)
        # Who is still starting would hear it seconds later, and has nothing to finish.
        starting = [
            worker.id for worker in self.workers.values() if worker.state is WorkerState.STARTING
        ]
        return [*map(Dismiss, self.workers), *map(Kill, starting)]

    def _fail(self, reason: str) -> list[Command]:
        if self.phase is RendezvousPhase.ENDING and self._outcome is not RunOutcome.DONE:
            return []
        self.phase, self._outcome, self._reason = RendezvousPhase.ENDING, RunOutcome.FAILED, reason
        if not self.workers:
            return self._end(RunOutcome.FAILED, reason)
        return [Kill(worker.id) for worker in self.workers.values()]

    def _end(self, outcome: RunOutcome, reason: str) -> list[Command]:
        self.phase = RendezvousPhase.ENDED
        return [End(outcome, reason)]
