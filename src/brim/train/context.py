"""The context of a worker at its start: its job, its socket to the agent, the shared memory.

Alone, it has none of these.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from brim.domain.job import JobSpec, WorkerRange
from brim.host.control_groups import processors
from brim.host.process import WORKER
from brim.host.stacks import show_when_asked
from brim.train.params import ENVIRONMENT_VARIABLE as PARAMETERS
from brim.user_code.own_code import code_folder

_LINK, _MEMORY, _TABLES, _STACKS = (
    "BRIM_LINK_FD",
    "BRIM_MEMORY_FD",
    "BRIM_TABLES_FD",
    "BRIM_STACKS_FD",
)
_NOTICE, _PLACE, _BOARD = "BRIM_NOTICE_FD", "BRIM_PLACE", "BRIM_BOARD_FDS"
_SPEC, _HOST, _SECRET = "BRIM_SPEC", "BRIM_HOST", "BRIM_SECRET"
RUN_DIR = "BRIM_RUN_DIR"
_COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """A worker's place in its job.

    Args:
        worker: its name.
        place: its number among the workers of its agent, which says which GPU is its own.
        spec: the job's.
        run_dir: where the job's checkpoints are.
        host: an address of this host that other hosts can reach.
        secret: that the workers of this run have, and nobody else, by which they know each other.
        link: the worker's end of its socket to the agent.
        memory: descriptor of the memory in which all workers of this host combine their gradients.
        tables: descriptor of the memory that holds the tables of embeddings of this host.
        notice: the pipe that closes when this process is dead.
        start_method: how this process was started, for the record.
        board: descriptors of the board on which workers of this host meet: its notes, its reports,
            and a waker for each place. Empty where they meet at their agent.
        before_failing: called before this worker reports a failure, for what is to be told before
            it.
    """

    worker: str
    place: int
    spec: JobSpec
    run_dir: str
    host: str
    secret: bytes
    link: socket.socket
    memory: int
    tables: int
    notice: int
    start_method: str
    board: tuple[int, ...] = ()
    before_failing: list[Callable[[], None]] = field(default_factory=list)


def environment_for(
    *,
    worker: str,
    place: int,
    spec: JobSpec,
    run_dir: str,
    host: str,
    secret: bytes,
    link: int,
    memory: int,
    tables: int,
    notice: int,
    stacks: int,
    board: tuple[int, ...] = (),
) -> dict[str, str]:
    """The variables by which a new process learns its context."""
    return {
        **shared_environment(spec, run_dir),
        WORKER: worker,
        _PLACE: str(place),
        _SPEC: msgspec.json.encode(spec).decode(),
        _HOST: host,
        _SECRET: secret.hex(),
        _LINK: str(link),
        _MEMORY: str(memory),
        _TABLES: str(tables),
        _NOTICE: str(notice),
        _STACKS: str(stacks),
        _BOARD: " ".join(map(str, board)),
    }


def shared_environment(spec: JobSpec, run_dir: str) -> dict[str, str]:
    """The variables that the user's code reads, the same in all processes of a job."""
    compilers = {_COMPILERS: os.environ.get(_COMPILERS) or str(_compilers_of(spec))}
    return {**compilers, **spec.env, RUN_DIR: run_dir, PARAMETERS: json.dumps(spec.parameters)}


def _compilers_of(spec: JobSpec) -> int:
    """Return how many processes one worker may compile in.

    By itself torch starts one for each processor of the host in each worker.
    """
    return max(1, processors() // spec.workers.maximum)


def context_from_environment() -> WorkerContext | None:
    """Return the context that `environment_for` described.

    None for a process that was not started for a job.
    """
    if _LINK not in os.environ:
        return None
    link = socket.socket(fileno=int(os.environ[_LINK]))
    show_when_asked(int(os.environ[_STACKS]))
    return WorkerContext(
        worker=os.environ[WORKER],
        place=int(os.environ[_PLACE]),
        spec=msgspec.json.decode(os.environ[_SPEC], type=JobSpec),
        run_dir=os.environ[RUN_DIR],
        host=os.environ[_HOST],
        secret=bytes.fromhex(
            os.environ.pop(_SECRET)
        ),  # what the user's code starts need not have it
        link=link,
        memory=int(os.environ[_MEMORY]),
        tables=int(os.environ[_TABLES]),
        notice=int(os.environ[_NOTICE]),
        start_method="spawn",
        board=tuple(map(int, os.environ.get(_BOARD, "").split())),
    )


def import_own_code(spec: JobSpec) -> None:
    """Have modules of the job's own names imported from the directory in which it works.

    Where it has a bundle, they come from that: in the directory they may have changed.
    """
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(code_folder(spec)))


def spec_of_a_loner(seed: int = 0) -> JobSpec:
    """The job of a script that is run by itself, without brim around it."""
    command = ("python", *sys.argv)
    return JobSpec(
        command=command, parameters={}, workers=WorkerRange(minimum=1, maximum=1), seed=seed
    )
