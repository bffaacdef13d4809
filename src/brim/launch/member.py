"""A member of a job's rounds that has no state but a command's own: its part in the protocol."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from brim.coordination.job.participant import (
    AskedToLeave,
    AwaitNews,
    BeHeir,
    CatchUp,
    EnterRound,
    FetchState,
    Flow,
    GiveState,
    Incoming,
    LeaveState,
    Look,
    Need,
    Participant,
    Pin,
    Receive,
    RestoreState,
    Wake,
    WriteState,
)
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.host.clock import monotonic
from brim.host.gpus import take_gpu, visible_gpus
from brim.host.process import adopt_orphans
from brim.train.context import WorkerContext
from brim.train.signals import LeaveRequest
from brim.wire.link import WorkerLink
from brim.wire.listening import joined_address
from brim.wire.messages import Beat, Facts, Hello, WorkerMessage, failure_of

T = TypeVar("T")

LOOK = 0.5  # seconds between looks at what no message and no signal tells


class CommandMember:
    """The protocol's end of a worker that keeps processes of a command.

    Args:
        context: of the worker.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._spec = context, context.spec
        self._leave = LeaveRequest()
        self._link = WorkerLink(context.link, self._leave.wakeup)
        self._participant = Participant(context.worker)
        self._gpu = self._own_gpu()
        self._beaten = 0.0
        self._beats = 0

    def work(self) -> int:
        """Take part until the job is done, or this worker is needed no more; the exit status."""
        raise NotImplementedError

    def close(self) -> None:
        """End all that this worker has started."""
        raise NotImplementedError

    def _own_gpu(self) -> str:
        """Take one of several GPUs of this host for this worker; empty where there is no choice."""
        gpus = visible_gpus(os.environ) if self._spec.device != "cpu" else []
        return take_gpu(self._context.place, gpus) if len(gpus) > 1 else ""

    def _greet(self) -> None:
        address = joined_address(self._context.host, 0)
        self._tell(Hello(address=address, layout="", facts=_facts(self._spec)))

    def _refuse(self, wrong: SpecError) -> NoReturn:
        """End the job: another start would not help."""
        self._tell(failure_of(wrong))
        raise SystemExit(1)

    def _tell(self, message: WorkerMessage) -> None:
        self._participant.say(message)
        self._send_out()

    def _send_out(self) -> None:
        for message in self._participant.outgoing():
            with contextlib.suppress(EnvironmentFault):  # the next look at the link finds out
                self._link.send(message)

    def _run(self, flow: Flow[T]) -> T:
        """Run a flow of the protocol to its end."""
        answer: Any = None
        while True:
            try:
                need = flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._send_out()
            answer = self._meet(need)

    def _meet(self, need: Need) -> object:
        """Meet a need of the protocol: there is no state but the command's own."""
        match need:
            case Receive(limit):
                return self._receive(math.inf if limit is None else limit)
            case RestoreState():
                return "", 0
            case FetchState() | CatchUp():
                return 0
            case EnterRound(world):
                return world
            case BeHeir():
                return False
            case GiveState() | WriteState() | LeaveState():
                return None
            case Pin() | Look() | AwaitNews() | Wake():
                raise InternalError(f"{need} of a worker that meets the others at its agent")

    def _receive(self, timeout: float) -> Incoming | None:
        """Hear the next that comes, or None after so many seconds."""
        raise NotImplementedError

    def _leave_request(self) -> AskedToLeave | None:
        """Return the request to leave, once."""
        if not self._leave.is_requested:
            return None
        self._leave.is_requested = False
        return AskedToLeave()

    def _beat(self) -> None:
        """Send a sign of life, and that this worker waits on purpose."""
        now = monotonic()
        if now - self._beaten > self._spec.heartbeat_timeout / 4:
            self._beaten, self._beats = now, self._beats + 1
            with contextlib.suppress(EnvironmentFault):
                self._link.send(Beat(moves=self._beats))


def run_member(context: WorkerContext, kind: Callable[[WorkerContext], CommandMember]) -> int:
    """Do the part of a worker that keeps processes of a command; the exit status."""
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that its end wakes this process up
    adopt_orphans()  # what the command leaves behind ends with it
    member = kind(context)
    try:
        return member.work()
    except EnvironmentFault as fault:
        print(f"brim: {fault}", file=sys.stderr)  # noqa: T201 - this is the worker's log
        return 1
    except OSError as error:  # of the directory for checkpoints: full, or not for this account
        print(f"brim: cannot prepare the next start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except SystemExit as leaving:
        return int(leaving.code or 0)
    finally:
        member.close()


def not_started(program: str, error: OSError) -> SpecError:
    """Return the error of a command that cannot be started on a host.

    >>> print(not_started("/root/bin/python", PermissionError(13, "Permission denied")).need)
    a program that the job's account can execute, on each host
    """
    is_closed = isinstance(error, PermissionError)
    return SpecError(
        "COMMAND",
        got=f"{program!r}, which cannot be started ({error.strerror})",
        need="a program that the job's account can execute, on each host"
        if is_closed
        else "a program that each host has",
        hint="let this account read the folders above it, and execute it"
        if is_closed
        else "is it installed, and executable?",
    )


def _facts(spec: JobSpec) -> Facts:
    """Return the facts of a command: none of its data, its steps or its model."""
    return Facts(
        samples=0,
        steps=0,
        steps_per_epoch=0,
        global_batch_size=0,
        epochs=0,
        seed=spec.seed,
        clip_norm=None,
        on_nan=spec.on_nan,
        parameters=0,
        versions={"python": platform.python_version()},
        start_method="exec",
        transport="none",
    )
