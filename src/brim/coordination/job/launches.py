"""A command that is started by each worker of a round: how many processes, and their variables.

Such a command knows nothing of brim. It finds its place among the others as torchrun, TensorFlow and
JAX have it in the environment, and where a round ends, all of its processes end. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from brim.coordination.job.membership import World
from brim.domain.job import WORLD_MAX
from brim.domain.quantities import counted

_MARK = re.compile(r"\[start [0-9]+ of the command\]")
_STARTS_ALLOWED = 1000  # that are told to commands which read it; brim itself counts otherwise


def size_of(members: int, maximum: int) -> int:
    """Return how many processes a command has where there are so many workers.

    A script that keeps its global batch accumulates `maximum / size` times as many gradients. So
    only sizes that divide the maximum are of use.

    >>> [size_of(members, 8) for members in range(1, 9)]
    [1, 2, 2, 4, 4, 4, 4, 8]
    """
    return next(size for size in range(min(members, maximum), 0, -1) if maximum % size == 0)


def mark_of_start(number: int) -> str:
    """Return the line that parts the output of a start of a command from that of earlier ones.

    >>> mark_of_start(2), is_mark(mark_of_start(12)), is_mark("[start of the loop]")
    ('[start 2 of the command]', True, False)
    """
    return f"[start {number} of the command]"


def is_mark(line: str) -> bool:
    """Return whether a line of a log parts two starts of a command."""
    return bool(_MARK.fullmatch(line))


def words_of_surplus(members: int, maximum: int) -> str:
    """Return what a worker says that has no process.

    >>> words_of_surplus(3, 4)
    '3 workers, and 2 processes: only sizes that divide 4 keep the global batch; brim resize has others'
    """
    size = size_of(members, maximum)
    return (
        f"{counted(members, 'worker')}, and {counted(size, 'process')}: only sizes that divide "
        f"{maximum} keep the global batch; brim resize has others"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place of one process of a command among all of them.

    Args:
        rank: among all, of `size`.
        local_rank: among those of its host, of `local_size`.
        group_rank: of its host, of `groups`.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    group_rank: int
    groups: int


def seat_of(world: World, worker: str, maximum: int) -> Seat | None:
    """Return the seat of a worker's process; None where the round has one worker too many.

    Args:
        maximum: workers that the job has at most.
    """
    size, rank = size_of(world.world_size, maximum), world.rank_of(worker)
    if rank >= size:
        return None
    agents = [member.agent for member in world.members[:size]]
    hosts = list(dict.fromkeys(agents))
    group = hosts.index(agents[rank])
    return Seat(
        rank=rank,
        size=size,
        local_rank=rank - agents.index(agents[rank]),
        local_size=agents.count(agents[rank]),
        group_rank=group,
        groups=len(hosts),
    )


def variables_of(
    seat: Seat,
    addresses: Sequence[str],
    *,
    host: str,
    port: int,
    start: int,
    maximum: int,
    run: str,
) -> dict[str, str]:
    """Return the variables by which a process finds the others, as torchrun and others set them.

    Args:
        seat: of the process.
        addresses: `HOST:PORT` of each, in rank order, with ports that are free.
        host, port: those of the first.
        start: how often the command was started before.
        maximum: workers that the job has at most.
        run: its name.

    >>> seat = Seat(rank=1, size=2, local_rank=0, local_size=1, group_rank=1, groups=2)
    >>> where = {"addresses": ["10.0.0.1:4001", "10.0.0.2:4002"], "host": "10.0.0.1", "port": 4001}
    >>> variables = variables_of(seat, **where, start=3, maximum=4, run="r")
    >>> variables["RANK"], variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["BRIM_WORLD_MAX"]
    ('1', '10.0.0.1', '4001', '4')
    """
    nodes = {
        "PET_NNODES": seat.groups,
        "PET_NODE_RANK": seat.group_rank,
        "PET_NPROC_PER_NODE": seat.local_size,
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": port,
    }
    numbers = {
        "RANK": seat.rank,
        "WORLD_SIZE": seat.size,
        "LOCAL_RANK": seat.local_rank,
        "LOCAL_WORLD_SIZE": seat.local_size,
        "GROUP_RANK": seat.group_rank,
        "GROUP_WORLD_SIZE": seat.groups,
        "ROLE_RANK": seat.rank,
        "ROLE_WORLD_SIZE": seat.size,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": start,
        "TORCHELASTIC_MAX_RESTARTS": _STARTS_ALLOWED,
        "JAX_NUM_PROCESSES": seat.size,
        "JAX_PROCESS_ID": seat.rank,
        WORLD_MAX: maximum,
    }
    cluster = {"worker": list(addresses)}
    return {
        **{name: str(value) for name, value in {**numbers, **nodes}.items()},
        "MASTER_ADDR": host,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "JAX_COORDINATOR_ADDRESS": addresses[0],
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": seat.rank}}
        ),
    }
