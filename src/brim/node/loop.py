"""The node agent: forks agents of jobs from itself, warm, and takes them along when it dies.

It has imported whatever the processes of a job import, torch above all; so between a submission and
its first step only the user's own file and data are left. It starts no thread and touches no GPU,
so that forking it is safe.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import sys
from typing import Any

import brim
from brim.agent.births import Forked, fork, perform
from brim.errors import BrimError
from brim.host.account import become
from brim.host.clock import monotonic
from brim.host.control_groups import ControlGroup
from brim.host.process import (
    MASTER,
    adopt_orphans,
    be_called,
    children_of,
    die_with_parent,
    end_family,
    name_of,
    run_module,
    with_equal_hashes,
)
from brim.host.shortage import words_of_shortage
from brim.node.warm_up import shuffle, warm_up
from brim.wire.nodes import Begin, EndAt, KillJob, LeaveNode, NodeRequest, receive

_MIN_WAIT = 0.01  # seconds that nothing is waited for at least
_SWEEP = 0.1  # seconds between looks for what the processes of a dead agent leave
_TO_LEAVE = 5.0  # seconds that this may take: they die after it
_TO_BE_GONE = 1.0  # seconds that a group which is ended is waited for

# What differs between two shells and means nothing to a program; a token is a job's own.
_OF_NO_CONSEQUENCE = {"PWD", "OLDPWD", "SHLVL", "_", "BRIM_TOKEN"}


class NodeAgent:
    """The agent of one node.

    Args:
        listener: where schedulers call.
        group: in which each job has a group of its own; None where there are none.
    """

    def __init__(self, listener: socket.socket, group: ControlGroup | None = None) -> None:
        self._listener, self._group = listener, group
        self._agents: dict[str, Forked] = {}
        self._environment = _of_consequence(dict(os.environ))
        self._pid = os.getpid()
        self._warm = self._parting = False
        self._sweep_until = 0.0
        self._end_at = math.inf  # when all agents are to end
        self._departed: set[str] = set()  # jobs whose agents have ended, and whose groups have not
        self._watch = selectors.DefaultSelector()
        self._watch.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until a scheduler says that nothing more will come, and nothing is left."""
        be_called("brim-node")
        adopt_orphans()
        self._warm = warm_up()
        while not (self._parting and not self._agents):
            ready = self._watch.select(self._patience())
            for key, _ in ready:
                self._attend(key.fileobj)
            if not ready and monotonic() >= self._end_at:  # all that was said has been heard
                self._end_all()
            if monotonic() < self._sweep_until:
                self._end_what_is_left()
            elif self._departed:
                self._end_groups()
        if self._group is not None:
            self._group.end(patience=_TO_BE_GONE)

    def _patience(self) -> float | None:
        """Seconds until there is something to do, though nothing happens; None: never."""
        if monotonic() < self._sweep_until or self._departed:
            return _SWEEP
        if not self._agents or self._end_at == math.inf:
            return None
        return max(self._end_at - monotonic(), _MIN_WAIT)

    def _end_all(self) -> None:
        """End all agents: the process that would extend their time is stopped, or cut off."""
        for agent in self._agents.values():
            agent.kill()

    def _attend(self, source: Any) -> None:
        if source is self._listener:
            line, _ = self._listener.accept()
            self._watch.register(line, selectors.EVENT_READ)
        elif isinstance(source, Forked):
            self._watch.unregister(source)
            source.wait()
            self._departed |= {job for job, agent in self._agents.items() if agent is source}
            self._agents = {
                job: agent for job, agent in self._agents.items() if agent is not source
            }
            self._sweep_until = monotonic() + _TO_LEAVE
        elif not self._serve(source):
            self._watch.unregister(source)
            source.close()

    def _end_what_is_left(self) -> None:
        """Agents that have ended left it: user code started it, and it may still use devices."""
        agents = {key.data for key in self._watch.get_map().values()}
        orphans = (pid for pid in children_of(os.getpid()) if pid not in agents)
        end_family(
            pid for pid in orphans if name_of(pid) != MASTER
        )  # it may have to write how the run ended

    def _end_groups(self) -> None:
        """End all their remaining processes: there has been time for last words."""
        self._departed = {job for job in self._departed if not self._end_group(job)}

    def _end_group(self, job: str, *, patience: float = 0.0) -> bool:
        """End a job's control group; return whether nothing is left of it here."""
        return self._group is None or ControlGroup(self._group.path / job).end(patience=patience)

    def _serve(self, line: socket.socket) -> bool:
        """One request; False where the caller is gone, or makes no sense."""
        try:
            received = receive(line)
        except BrimError:
            return False
        if received is None:
            return False
        request, descriptors = received
        try:
            self._handle(request, descriptors)
        except (
            OSError,
            ValueError,
        ) as error:  # too many processes, or files: the other jobs' agents live on this one
            text = f"{type(request).__name__}: {words_of_shortage(error) or error}"
            print(f"brim: not done: {text}", file=sys.stderr, flush=True)  # noqa: T201
            if isinstance(request, Begin):  # whose log it is: the job's story has its last line
                with contextlib.suppress(OSError, IndexError):
                    os.write(descriptors[1], f"brim: not started by its node: {text}\n".encode())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with contextlib.suppress(OSError):  # it did not wait for the answer
            line.send(b"+")
        return True

    def _handle(self, request: NodeRequest, descriptors: list[int]) -> None:
        match request:
            case Begin():
                self._begin(request, descriptors)
            case KillJob(job=job) if job in self._agents:
                self._agents[job].kill()
            case LeaveNode():
                self._parting = True
            case EndAt(at=timestamp):
                self._end_at = timestamp

    def _begin(self, request: Begin, descriptors: list[int]) -> None:
        self._parting = False
        stdin, output, *keep = descriptors
        if request.job in self._agents:
            # A job has one agent here; a scheduler that asks for another has lost the lock of this
            # one with its directory.
            self._agents[request.job].kill()
        self._departed.discard(request.job)
        self._end_group(request.job, patience=_TO_BE_GONE)
        pid = os.fork()
        if pid:
            agent = self._agents[request.job] = Forked(pid)
            self._watch.register(agent, selectors.EVENT_READ, pid)
            return
        listener = [f"--listener={keep[-1]}"] if request.listens else []
        argv = ["brim.agent", *listener, *request.arguments]
        perform(lambda: self._become(request), argv, stdin=stdin, output=output, keep=keep)

    def _become(self, request: Begin) -> None:
        """Become an agent, in the child, with the requested environment."""
        os.setsid()  # Ctrl-C reaches the foreground command alone
        if self._group is not None and (group := self._group.subgroup(request.job)) is not None:
            group.enter()
        if request.user:
            become(request.user)  # before anything of the job's is touched
        die_with_parent(self._pid)  # behind that: the kernel forgets it where the account changes
        work_in(request.directory, request.fallback)
        if not self._is_as_asked(request):
            command = run_module(*sys.argv, python=request.python[0])
            os.execve(command[0], command, with_equal_hashes(request.environment))
        os.environ.clear()
        os.environ |= with_equal_hashes(request.environment)
        shuffle()
        from brim.agent.__main__ import main

        main(fork)

    def _is_as_asked(self, request: Begin) -> bool:
        """Return whether a fork of this process equals a new process.

        Interpreters read some variables only as they start.
        """
        if request.user:
            return False  # this process has seen what other tenants' jobs were started with
        own_world = self._warm, (sys.executable, brim.__version__), self._environment
        requested = _of_consequence(with_equal_hashes(request.environment))
        return own_world == (True, request.python, requested)


def work_in(directory: str, fallback: str) -> None:
    """Work in a directory, or in another one where that is not there; see `Begin`."""
    try:
        os.chdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        if not fallback:
            raise
        os.chdir(fallback)


def _of_consequence(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_NO_CONSEQUENCE}
