"""The node agents of a cluster on this host: kept alive, asked, and seen off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brim.coordination.cluster.sightings import NodeSeen
from brim.errors import EnvironmentFault
from brim.host.control_groups import groups_of
from brim.host.process import run_module, with_equal_hashes
from brim.interfaces import Clock
from brim.storage.files import is_locked, lock, open_log
from brim.wire.nodes import KillJob, LeaveNode, NodeRequest, call_node, pid_of, send

_LOCK = ".lock"
_BACKOFF = 1.0  # seconds before the agent of a node is started again; doubled with each death
_LONGEST_BACKOFF = 30.0
# seconds that plans count on a node whose agent has died once: nobody is suspended for a restart
_TO_RETURN = 5.0
_TO_RECOVER = 60.0  # seconds after which a node's deaths are forgotten
_TO_START = 300.0  # seconds until its first answer: its imports come first
_TO_ANSWER = 60.0  # and until each that follows
_TO_PART = 10.0
_TO_LEAVE = 1.0  # seconds for what an agent that was killed has left, and that is killed as well
_POLL_INTERVAL = 0.02


@dataclass(slots=True)
class _Node:
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    asked: deque[float] = field(default_factory=deque)
    answered: bool = False
    since: float | None = None  # when it was started, or found
    deaths: int = 0
    died: float = 0.0
    not_before: float = 0.0
    problem: str = ""
    parted: bool = False

    @property
    def lock(self) -> Path:
        return self.folder / _LOCK


class Nodes:
    """The node agents below `folder`, by the names of their nodes.

    Each agent lives as long as its lock is held.

    Args:
        mortal: the agents end with this process.
    """

    def __init__(self, folder: Path, clock: Clock, *, mortal: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self._mortal = mortal
        self._folder, self._clock = folder, clock
        self._nodes: dict[str, _Node] = {}
        self._new = True  # it has not looked for those of an earlier life

    def keep(self, names: Iterable[str]) -> dict[str, NodeSeen]:
        """Start the agents that are missing, and let go those not named once they have no jobs.

        Nothing waits in this call.
        """
        wanted_names = list(names)
        for name in wanted_names:
            node = self._nodes.setdefault(name, _Node(self._folder / name))
            try:
                self._look(node)
            except OSError as error:  # unknown now; the last observation stands
                node.problem = f"cannot tell whether its agent runs: {error}"
        for name in self._found() - set(wanted_names):
            self._let_go(name, self._nodes.setdefault(name, _Node(self._folder / name)))
        return {name: self._seen(self._nodes[name]) for name in wanted_names}

    def _found(self) -> set[str]:
        """All that there are; those of an earlier life among them."""
        earlier_names = (
            [path.parent.name for path in self._folder.glob(f"*/{_LOCK}")] if self._new else []
        )
        self._new = False
        return {*self._nodes, *earlier_names}

    def _let_go(self, name: str, node: _Node) -> None:
        now = self._clock.now()
        if not is_locked(node.lock) or (node.line is not None and not self._hears(node, now)):
            self._hang_up(node)
            ended = [group.end() for group in groups_of(node.folder)]  # by one that was killed
            if all(ended):  # else the next look tries again
                del self._nodes[name]
        elif node.line is None:
            node.line = call_node(node.folder)
            self._part(node)
        elif not node.parted:
            self._part(node)

    def ask(self, name: str, request: NodeRequest, descriptors: Sequence[int] = ()) -> None:
        """Raises EnvironmentFault where its agent cannot hear it now."""
        node = self._nodes.get(name)
        if node is None or node.line is None:
            raise EnvironmentFault(f"node {name} has no agent now")
        send(node.line, request, descriptors)
        node.asked.append(self._clock.now())

    def kill_job(self, job: str, names: Iterable[str] | None = None) -> None:
        """End the agents of a job on these nodes; None: on all."""
        for name in self._nodes if names is None else names:
            with contextlib.suppress(EnvironmentFault):  # then it has none
                self.ask(name, KillJob(job=job))

    def kill(self) -> None:
        """End all agents at once, with all that they started.

        Agents of an earlier life are among them.
        """
        with contextlib.suppress(OSError):
            for name in self._found():
                self._nodes.setdefault(name, _Node(self._folder / name))
        for node in self._nodes.values():
            if node.line is None and is_locked(node.lock):
                node.line = call_node(node.folder)
            if node.line is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid_of(node.line), signal.SIGKILL)

    async def end(self) -> None:
        """See all off: there is nothing left for them to do."""
        for node in self._nodes.values():
            self._part(node)
        end = self._clock.now() + _TO_PART
        while any(is_locked(node.lock) for node in self._nodes.values()):
            if self._clock.now() > end:
                for node in self._nodes.values():
                    self._kill(node)
            await asyncio.sleep(_POLL_INTERVAL)
        for node in self._nodes.values():
            self._hang_up(node)
            if node.process is not None:
                node.process.wait()
            for group in groups_of(node.folder):  # by one that was killed
                group.end(patience=_TO_LEAVE)

    # One node -------------------------------------------------------------------------------------

    def _seen(self, node: _Node) -> NodeSeen:
        now, is_gone = self._clock.now(), node.line is None and node.deaths > 0
        return NodeSeen(
            up=node.line is not None,
            gone=is_gone,
            lost=is_gone and (node.deaths > 1 or now - node.died > _TO_RETURN),
            pid=pid_of(node.line) if node.line else 0,
            again=max(0.0, node.not_before - now),
            problem=node.problem,
        )

    def _look(self, node: _Node) -> None:
        now, node.parted = self._clock.now(), False
        if node.process is not None and node.process.poll() is not None:
            node.process = None  # no zombie is left of it
        if node.line is not None and not self._hears(node, now):
            self._hang_up(node)
        if node.line is None and is_locked(node.lock):
            node.line = call_node(node.folder)
            node.since = node.since or now
            if node.line is not None:
                node.problem = ""
            elif now - node.since > _TO_START:
                self._kill(node)
        elif node.line is None:
            self._revive(node, now)
        elif node.since is not None and now - node.since > _TO_RECOVER:
            node.deaths = 0

    def _hears(self, node: _Node, now: float) -> bool:
        """Take in its answers; False where it is gone.

        One that does not answer for too long is killed.
        """
        assert node.line is not None
        try:
            while node.line.recv(1):
                node.asked.popleft()
                node.answered = True
            return False
        except BlockingIOError:
            pass
        except ConnectionError:
            return False
        limit = _TO_ANSWER if node.answered else _TO_START
        if node.asked and now - node.asked[0] > limit:
            node.problem = f"it did not answer for {limit:.0f} s"
            self._kill(node)
        return True

    def _revive(self, node: _Node, now: float) -> None:
        """Start the agent of a node whose lock is free, later each time that the agent has died."""
        if node.since is not None:
            node.since, node.deaths, node.died = None, node.deaths + 1, now
            node.problem = node.problem or "its agent died"
            node.not_before = now + min(_LONGEST_BACKOFF, _BACKOFF * 2 ** (node.deaths - 1))
        if now >= node.not_before:
            node.since, node.answered = now, False
            try:
                node.process = _start(node, mortal=self._mortal)
            except OSError as error:
                node.problem = f"its agent cannot be started: {error}"

    def _hang_up(self, node: _Node) -> None:
        if node.line is not None:
            node.line.close()
        node.line = None
        node.asked.clear()

    def _part(self, node: _Node) -> None:
        if node.line is not None:
            with contextlib.suppress(EnvironmentFault):  # then it is gone already
                send(node.line, LeaveNode())
                node.asked.append(self._clock.now())
                node.parted = True

    def _kill(self, node: _Node) -> None:
        pid = pid_of(node.line) if node.line else node.process.pid if node.process else 0
        if pid and is_locked(node.lock):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _start(node: _Node, *, mortal: bool) -> subprocess.Popen[bytes] | None:
    """Hold the lock before it is there, and hand it over; None where another process was faster."""
    node.folder.mkdir(
        exist_ok=True
    )  # and no more: a state directory that was deleted is not made again
    lock_file = lock(node.lock)
    if lock_file is None:
        return None
    try:
        with open_log(node.folder / "node.log") as log:
            return subprocess.Popen(
                [
                    *run_module("brim.node", str(node.folder), "--lock", str(lock_file)),
                    *(("--parent", str(os.getpid())) if mortal else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock_file],
                cwd=node.folder,
                env=with_equal_hashes(os.environ),
            )
    finally:
        os.close(lock_file)
