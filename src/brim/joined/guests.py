"""The agents of jobs that a node of another host's cluster has: begun, counted, and cleaned up."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import brim
from brim.backends.nodes import Nodes
from brim.coordination.cluster.sightings import AgentSeen
from brim.domain.names import check_name
from brim.errors import BrimError, EnvironmentFault
from brim.host.account import PYTHON_FILES, environment_of, give, unreadable
from brim.host.process import WORKER, children_of, name_of, variable_of
from brim.storage.files import is_locked, lock, open_log
from brim.wire.joining import BeginGuest
from brim.wire.nodes import Begin

_LOCK = ".lock"
_WORKER = re.compile(r"brim-w\d")  # what a worker that was forked is called


@dataclass(slots=True)
class _Guest:
    launch: int
    folder: Path
    stdin: int  # the end that is held here, for as long as it lives
    pid: int = 0


class Guests:
    """The agents of jobs on this node.

    Args:
        folder: has a directory for each, which goes with it.
        nodes: have the process that forks them.
        name: of the node.
    """

    def __init__(self, folder: Path, nodes: Nodes, name: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier life, of which nothing is left
        folder.mkdir(mode=0o711)
        self._folder, self._nodes, self._name = folder, nodes, name
        self._guests: dict[str, _Guest] = {}

    def begin(self, request: BeginGuest) -> None:
        """Start one, where there is none. Raises EnvironmentFault where that cannot be done."""
        if request.job in self._guests:
            return  # it is asked for again, or has to end before another one can begin
        try:
            check_name(request.job, field="job")
            self._begin(request)
        except (OSError, BrimError) as error:
            shutil.rmtree(self._folder / request.job, ignore_errors=True)
            raise EnvironmentFault(f"cannot begin {request.job}: {error}") from error

    def _begin(self, request: BeginGuest) -> None:
        if request.user and (fault := unreadable(request.user, PYTHON_FILES)):
            raise EnvironmentFault(f"account {request.user} cannot read {fault}")
        run_dir = self._folder / request.job
        run_dir.mkdir(mode=0o700)
        lock_file = lock(run_dir / _LOCK)
        if lock_file is None:
            raise EnvironmentFault(f"{run_dir} is another process's")
        if request.user:
            give(run_dir, request.user)
        arguments = ["--name", self._name, "--guest", request.master, "--run-dir", str(run_dir)]
        of_user = environment_of(request.user) if request.user else {}
        begin = Begin(
            job=request.job,
            arguments=arguments,
            python=(sys.executable, brim.__version__),
            environment={
                **os.environ,
                **of_user,
                **request.environment,
                "BRIM_TOKEN": request.token,
            },
            directory=request.directory or str(run_dir),
            fallback=str(run_dir),
            user=request.user,
        )
        reader, writer = os.pipe()
        try:
            with open_log(run_dir / "agent.log") as log:
                self._nodes.ask(self._name, begin, [reader, log.fileno(), lock_file])
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
            os.close(lock_file)
        self._guests[request.job] = _Guest(request.launch, run_dir, writer)

    def end(self, job: str) -> None:
        """End the agent of a job at once."""
        self._nodes.kill_job(job, [self._name])

    def agents(self, node: int) -> tuple[AgentSeen, ...]:
        """List the agents that are there now; what has ended leaves nothing.

        Args:
            node: the process that forks them; 0: there is none.
        """
        for job, guest in list(self._guests.items()):
            if not is_locked(guest.folder / _LOCK):
                os.close(guest.stdin)
                shutil.rmtree(guest.folder, ignore_errors=True)
                del self._guests[job]
        return tuple(
            AgentSeen(job=job, launch=guest.launch, workers=self._workers(guest, node))
            for job, guest in self._guests.items()
        )

    def _workers(self, guest: _Guest, node: int) -> int:
        if not guest.pid:
            guest.pid = _holder_of(guest.folder / _LOCK, children_of(node) if node else [])
        return sum(map(_is_worker, children_of(guest.pid))) if guest.pid else 0


def _holder_of(path: Path, candidates: list[int]) -> int:
    """Return which of these processes has a file open; 0 where none has."""
    for pid in candidates:
        with contextlib.suppress(OSError):  # it has ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(entry.path) == str(path):
                    return pid
    return 0


def _is_worker(pid: int) -> bool:
    return bool(_WORKER.match(name_of(pid))) or variable_of(pid, WORKER).startswith("w")
