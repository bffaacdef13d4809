"""The processes of scheduled jobs on this host: each job is a run in a directory of its own.

They are children of the agents of nodes: a scheduler that dies leaves them training, and the next
one finds them by a lock that the agent of a run holds from before it was started until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import brim
from brim import client
from brim.backends.joined import FarNodes
from brim.backends.local import agent_log, fresh_token, local_address, prepare
from brim.backends.nodes import Nodes
from brim.backends.processes import Launch
from brim.backends.watching import RunWatch
from brim.coordination.cluster.reconcile import ByNode, larger_of
from brim.coordination.cluster.sightings import AgentSeen, NodeSeen, Seen
from brim.domain.host_kind import HostKind
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.kept_run import kept_spec
from brim.errors import EnvironmentFault
from brim.host.account import (
    PYTHON_FILES,
    acting_as,
    environment_of,
    give,
    owns,
    unreadable,
)
from brim.host.clock import SystemClock
from brim.host.looking import AccountLooks
from brim.host.shortage import words_of_shortage
from brim.storage.contact import read_contact, remove_dead_contact
from brim.storage.files import is_locked, lock
from brim.storage.job_file import write_bundle
from brim.storage.journal import set_aside_if_damaged
from brim.wire.joining import BeginGuest
from brim.wire.listening import listen_on
from brim.wire.nodes import Begin

_AGENT_LOCK = ".agent.lock"
_LOCK_OF = ".agent.lock."  # behind it the node of an agent that does not keep the master
_JOURNAL_LOCK = ".journal.lock"  # held by a master, see `brim.storage.journal`
_TO_BEGIN = 2.0  # seconds before another agent is started where one died young
_BACKLOG = 128  # calls of other hosts that may wait for a master
_TO_FOLLOW = 5.0  # seconds that a master may take to end once its agent is gone


@dataclass(slots=True)
class _Job:
    """The known facts of a job's processes.

    Args:
        elsewhere: nodes on which it has agents beside the one that keeps its master, or may have.
        begun: when the agent of a node was last started.
        alone_since: when that one was first seen to be gone.
    """

    watch: RunWatch
    elsewhere: set[str]
    begun: dict[str, float] = field(default_factory=dict)
    alone_since: float | None = None


def no_bundle(sha256: str) -> bytes:
    """Have no code of jobs."""
    raise EnvironmentFault(f"bundle {sha256} is not kept on this host")


@dataclass(slots=True)
class RunProcesses:
    """Runs below `folder`, by the ids of their jobs, on these nodes.

    `bundle` gives the code of jobs by its sha256. `_far` has the nodes of other hosts; None: none can
    join. `_kind` is that of this host, where it is to be told of its nodes.

    On each node that has workers of a job there is an agent of it, named after the node; the home's
    keeps the master.
    """

    folder: Path
    _nodes: Nodes
    bundle: Callable[[str], bytes] = no_bundle
    _far: FarNodes | None = None
    _kind: HostKind | None = None
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _looks: AccountLooks = field(default_factory=AccountLooks)

    def nodes(self, names: Iterable[str], running: Mapping[str, int]) -> Mapping[str, NodeSeen]:
        near_nodes = {
            name: seen._replace(kind=self._kind) for name, seen in self._nodes.keep(names).items()
        }
        if self._far is None:
            return near_nodes
        self._far.end_left_over(running)
        return {**self._far.seen(near_nodes), **near_nodes}

    def run_dir(self, launch: Launch) -> Path:
        return self.folder / launch.job

    def look(self, launch: Launch) -> Seen:
        """Return the present sight of the job.

        Its directory is its account's, and is looked at with no more rights than that has.
        """
        with acting_as(launch.user):
            return self._look(launch)

    def _look(self, launch: Launch) -> Seen:
        """Look in this order: a process that is not alive any more has written its last words."""
        job, run_dir = self._job(launch), self.run_dir(launch)
        if launch.step and not run_dir.exists():
            return self._bereft(launch)
        agents = self._agents(launch, job, run_dir)
        alive = self._is_alive(launch, job, agents)
        watch = job.watch
        watch.poll()
        alive = alive or watch.has_more  # its last words are still to be read
        if not alive:
            del self._jobs[launch.job]  # another start reads what it needs
            remove_dead_contact(run_dir)
        return watch.seen(
            alive=alive,
            workers=larger_of(watch.by_agent, self._workers_there(launch)),
            agents=agents | {launch.home},
        )

    def _bereft(self, launch: Launch) -> Seen:
        """Return the look at a job whose directory is gone, and its locks with it.

        Whether the job has processes cannot be known any more.
        """
        self._kill_job(launch.job)
        problem = (
            f"{self.run_dir(launch)} was removed while it ran, with its records and checkpoints"
        )
        return Seen(alive=False, step=launch.step, outcome="failed", who="user", problem=problem)

    def _job(self, launch: Launch) -> _Job:
        if launch.job not in self._jobs:
            run_dir = self.run_dir(launch)
            foreign_nodes = {
                path.name.removeprefix(_LOCK_OF) for path in run_dir.glob(f"{_LOCK_OF}*")
            }
            self._jobs[launch.job] = _Job(RunWatch(run_dir), foreign_nodes)
        return self._jobs[launch.job]

    def _agents(self, launch: Launch, job: _Job, run_dir: Path) -> frozenset[str]:
        """The nodes with agents beside the home.

        An agent that has just been started may have died young.
        """
        recently = SystemClock().now() - _TO_BEGIN
        recent = {node for node, start in job.begun.items() if start > recently}
        near_nodes = {node for node in job.elsewhere if is_locked(run_dir / f"{_LOCK_OF}{node}")}
        return frozenset(recent | near_nodes | self._guests(launch).keys())

    def _guests(self, launch: Launch) -> Mapping[str, AgentSeen]:
        """The agents of this start of a job on nodes of other hosts, as these have said last."""
        statements = {} if self._far is None else self._far.agents(launch.job)
        return {node: agent for node, agent in statements.items() if agent.launch == launch.number}

    def _workers_there(self, launch: Launch) -> dict[str, int]:
        """Count the workers that nodes of other hosts report, known to the master or not."""
        return {node: agent.workers for node, agent in self._guests(launch).items()}

    def _is_far(self, node: str) -> bool:
        return self._far is not None and self._far.knows(node)

    def _kill_job(self, job: str, names: Iterable[str] | None = None) -> None:
        """End the agents of a job on these nodes, near and far; None: on all."""
        self._nodes.kill_job(
            job, None if names is None else [n for n in names if not self._is_far(n)]
        )
        if self._far is not None:
            self._far.end_job(job, None if names is None else filter(self._is_far, names))

    def _is_alive(self, launch: Launch, job: _Job, agents: frozenset[str]) -> bool:
        """Return whether there is an agent, or a master that still writes down how it ended.

        The master is not waited for without end.
        """
        run_dir = self.run_dir(launch)
        if is_locked(run_dir / _AGENT_LOCK):
            job.alone_since = None
            return True
        # Nobody starts another master for those that are left.
        guests = self._guests(launch).keys()
        remaining = {node for node in agents if is_locked(run_dir / f"{_LOCK_OF}{node}")} | guests
        self._kill_job(launch.job, remaining)
        if not is_locked(run_dir / _JOURNAL_LOCK):
            return bool(remaining)
        now = SystemClock().now()
        job.alone_since = job.alone_since or now
        if now - job.alone_since > _TO_FOLLOW:
            _kill(_master_of(run_dir), launch.user)
        return True

    async def start(self, launch: Launch, workers: ByNode) -> None:
        """Raises EnvironmentFault where it cannot."""
        try:
            self._make_directory(launch)
            bundle = self.bundle(launch.spec.bundle) if launch.spec.bundle else b""
            if launch.user:
                await self._check_reach(launch)
            with acting_as(launch.user):
                if bundle:
                    write_bundle(self.run_dir(launch), bundle)
                self._start(launch, workers)
        except (OSError, RuntimeError) as error:
            words = words_of_shortage(error)
            if not words and not isinstance(error, OSError):
                raise
            raise EnvironmentFault(f"cannot start {launch.job}: {words or error}") from error

    async def _check_reach(self, launch: Launch) -> None:
        """Raises EnvironmentFault where a job's account cannot run Python here, or work where it should.

        Its processes would die before they could say so.
        """
        directory = _directory_of(launch.spec)
        fault = await self._looks.look(launch.user, directory, lambda: _fault(launch))
        if fault:
            raise EnvironmentFault(
                f"account {launch.user} cannot start {launch.job}: it cannot read {fault}"
            )

    def _make_directory(self, launch: Launch) -> None:
        """Make the job's directory, in which its account alone may be.

        Other accounts cannot look around in the folders above.
        """
        run_dir = self.run_dir(launch)
        if not launch.user:
            run_dir.mkdir(exist_ok=True)
            return
        if not run_dir.exists():
            run_dir.mkdir(mode=0o700)
            give(run_dir, launch.user)
        # Also where the directory is older than the folder, as `brim restore` may leave them.
        _let_through(self.folder.resolve())

    def _start(self, launch: Launch, workers: ByNode) -> None:
        run_dir = self.run_dir(launch)
        self._jobs.pop(launch.job, None)
        job = self._job(launch)
        job.watch.begin(SystemClock().wall())
        set_aside_if_damaged(run_dir / "journal")
        spec = kept_spec(launch.spec, launch.job)
        spec = _spec(spec, sum(workers.values()), first=launch.number <= 1)
        if not launch.computes:
            spec = replace(spec, workers_here=0)
        token = fresh_token()
        with contextlib.ExitStack() as undo:
            listener = None
            if self._far is not None:
                listener = undo.enter_context(_listen(self._far.host))
            port = listener.getsockname()[1] if listener else 0
            master = f"{self._far.host}:{port}" if self._far else None
            # Only the job's own processes read its code.
            arguments = ["--keep-code", *prepare(spec, run_dir.resolve(), listen=master)]
            arguments += ["--places", msgspec.json.encode(dict(workers)).decode()]
            self._begin(launch, launch.home, _AGENT_LOCK, arguments, token, listener)
        self._join(launch, workers, master or "", token)

    def _join(self, launch: Launch, workers: ByNode, master: str, token: Mapping[str, str]) -> None:
        """Start an agent on each node that is to have one.

        An agent that does not come up is missed at a later look.
        """
        job, run_dir = self._job(launch), self.run_dir(launch)
        present = self._agents(launch, job, run_dir) | {launch.home}
        for node in sorted(workers.keys() - present):
            job.begun[node] = SystemClock().now()
            with contextlib.suppress(EnvironmentFault, OSError):
                if self._far is not None and self._far.knows(node):
                    self._far.begin(node, _guest(launch, master, token))
                else:
                    job.elsewhere.add(node)
                    local = local_address(run_dir.resolve())
                    arguments = ["--join", "--run-dir", str(run_dir.resolve()), "--local", local]
                    arguments += ["--host", self._far.host] if self._far else []
                    self._begin(launch, node, f"{_LOCK_OF}{node}", arguments, token)

    def _begin(
        self,
        launch: Launch,
        node: str,
        held_by: str,
        arguments: list[str],
        token: Mapping[str, str],
        listener: socket.socket | None = None,
    ) -> None:
        run_dir, spec = self.run_dir(launch), launch.spec
        lock_file = lock(run_dir / held_by)
        if lock_file is None:
            raise EnvironmentFault(f"{run_dir} has an agent on {node} already")
        # Only the agent itself holds the other end of its standard input, so that closes when the
        # agent dies.
        descriptors = [lock_file]
        try:
            reader, writer = os.pipe()
            descriptors += [reader, writer]
            begin = Begin(
                job=launch.job,
                arguments=["--name", node, *arguments],
                python=(sys.executable, brim.__version__),
                environment={**_surroundings(launch.user), **spec.env, **token},
                directory=_directory_of(spec),
                fallback=str(run_dir.resolve()) if spec.bundle else "",
                user=launch.user,
                listens=listener is not None,
            )
            called = [listener.fileno()] if listener else []
            with agent_log(run_dir) as log:
                self._nodes.ask(node, begin, [reader, log.fileno(), lock_file, writer, *called])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def resize(self, launch: Launch, workers: ByNode) -> None:
        run_dir = self.run_dir(launch)
        job = self._job(launch)
        count = sum(workers.values())

        # As ourselves: gRPC starts threads. It is told nothing but what its account wrote, and
        # sends no secret.
        await asyncio.to_thread(client.resize, run_dir, count, places=workers)
        with acting_as(launch.user):
            contact = read_contact(run_dir)
            # Others may have been started meanwhile, which need no agents of these.
            if contact is not None and self._jobs.get(launch.job) is job:
                self._join(launch, workers, contact.address, {"BRIM_TOKEN": contact.token})

    async def leave(self, launch: Launch, node: str) -> None:
        self._kill_job(launch.job, [node])

    async def lose(self, launch: Launch, node: str) -> None:
        run_dir = self.run_dir(launch)
        await asyncio.to_thread(client.lose, run_dir, node, reason="its node is lost")

    async def suspend(self, launch: Launch) -> None:
        await asyncio.to_thread(client.suspend, self.run_dir(launch))

    async def force(self, launch: Launch, workers: ByNode) -> None:
        """End the processes beyond so many workers; with none, all processes."""
        if workers:
            for pid in self._job(launch).watch.beyond(workers):
                _kill(pid, launch.user)
            return
        self._kill_job(launch.job)
        with acting_as(launch.user):
            _kill(_master_of(self.run_dir(launch)), launch.user)


def _listen(host: str) -> socket.socket:
    """Take a port on which other hosts call a job's master."""
    return listen_on(host, 0, backlog=_BACKLOG, hint="brim up --nodes HOST:PORT names the address")


def _guest(launch: Launch, master: str, token: Mapping[str, str]) -> BeginGuest:
    """Return the data that a node of another host needs to start an agent of the job.

    Raises EnvironmentFault where the job's master cannot be called from there.
    """
    if not master or master.startswith("unix:"):
        raise EnvironmentFault(f"{launch.job} was started before nodes could join")
    return BeginGuest(
        job=launch.job,
        launch=launch.number,
        master=master,
        token=token["BRIM_TOKEN"],
        environment=dict(launch.spec.env),
        directory=launch.spec.directory or "",
        user=launch.user,
    )


def _spec(spec: JobSpec, workers: int, *, first: bool) -> JobSpec:
    """Return the spec for one start of the job; a spare would be a device that is not counted.

    All its workers begin together: their devices are free, and a first step on the fastest of them
    alone would take longer than the others need to come.
    """
    now = WorkerRange(minimum=workers, maximum=workers)
    return replace(spec, workers=now, spares=0, faults=spec.faults if first else ())


def _directory_of(spec: JobSpec) -> str:
    """Return where a job works, if it is there: where it was submitted."""
    return spec.directory or os.getcwd()


def _fault(launch: Launch) -> str:
    """Return what a job's account cannot read here, and why; empty: nothing.

    Raises OSError where its directory is not to be had.
    """
    fault = unreadable(launch.user, PYTHON_FILES)
    directory = _directory_of(launch.spec)
    try:
        with acting_as(launch.user):
            os.stat(os.path.join(directory, "."))
    except PermissionError as error:
        return fault or f"{directory}: {error.strerror}"
    except (FileNotFoundError, NotADirectoryError):
        if not launch.spec.bundle:
            raise
    return fault


def _master_of(run_dir: Path) -> int:
    """The process that writes the journal of a run; 0 where there is none."""
    contact = read_contact(run_dir)
    return contact.pid if contact and is_locked(run_dir / _JOURNAL_LOCK) else 0


def _surroundings(user: str) -> dict[str, str]:
    """Return the environment of the job's processes; another account's has no folders of ours."""
    if not user:
        return dict(os.environ)
    prefixes = ("XDG_", "TMPDIR")
    return {
        name: value for name, value in os.environ.items() if not name.startswith(prefixes)
    } | environment_of(user)


def _let_through(folder: Path) -> None:
    """Let all accounts reach the directories below this one by name.

    Everything else in the directory above is ours alone.
    """
    for path in folder.parent.iterdir():
        if path != folder:
            with contextlib.suppress(FileNotFoundError):  # of the database, some come and go
                path.chmod(path.stat().st_mode & ~0o077)
    for path in (folder, folder.parent):
        path.chmod(path.stat().st_mode & ~0o066 | 0o011)


def _kill(pid: int, user: str) -> None:
    """End a process whose number stands in a file of this account, if it is the account's."""
    if pid and (not user or owns(user, pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
