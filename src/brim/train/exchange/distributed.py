"""Canonical reduction over torch.distributed: NCCL between GPUs, or gloo where someone wants it.

The same slices and the same tree as in shared memory; only the carrier differs. A process group
lives for one round: its store is hosted by the round's first worker, because a round does not
outlive any of its members.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from brim.coordination.job.participant import Interrupted, PeerLost
from brim.coordination.job.reduction import Block, ReductionPlan, fold
from brim.embeddings.rows import GradientRows, OwnedRows
from brim.errors import InternalError, SpecError
from brim.host.clock import sleep
from brim.train.exchange.accumulate import Contribution, combine
from brim.train.exchange.layout import Layout, RowPiece
from brim.wire.listening import joined_address, split_address, take_port
from brim.wire.peer import Cancelled

_stores: Any = dist  # its stores are public, but not to a type checker
_c10d: Any = dist.distributed_c10d
_TO_MEET = datetime.timedelta(seconds=60)
_FOR_EVER = 365 * 86400.0
_POLL_INTERVAL = 0.0002  # seconds between looks at an operation under way


class Distributed:
    """The exchange of one round over a process group.

    Args:
        layout: what lies in a row.
        plan: who adds up what; hosts do not matter here.
        round: names the group.
        rank: of this worker.
        patience: seconds that another worker is waited for which sends nothing.
        host: where the first worker's store can be reached.
        device: where the network is.
        agree: gives all workers' words, in rank order, for one's own.
        cancelled: whether the agent has something to say.

    Raises:
        PeerLost: the group did not come about.
    """

    shares_result = False
    stages: Sequence[str] = ()
    pieces: Sequence[RowPiece] = ()

    def __init__(
        self,
        layout: Layout,
        plan: ReductionPlan,
        *,
        round: int,
        rank: int,
        patience: float,
        host: str,
        device: torch.device,
        agree: Callable[[bytes], Sequence[bytes]],
        cancelled: Cancelled,
    ) -> None:
        self._layout, self._plan, self._rank, self._cancelled = layout, plan, rank, cancelled
        self._device = device
        self._store = self._open_store(host, round, agree)
        with _peer_errors():
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self._store,
                rank=rank,
                world_size=plan.world_size,
                timeout=_TO_MEET,
            )
            # Only the meeting cannot be interrupted; an operation that is under way can.
            _c10d._set_pg_timeout(datetime.timedelta(seconds=min(patience, _FOR_EVER)))
        self._memory = {block: layout.new_row() for block in plan.rank_blocks(rank)}
        self.rows: dict[Block, Contribution] = {
            block: layout.views(row) for block, row in self._memory.items()
        }
        self._result = layout.new_row()

    def _open_store(self, host: str, round: int, agree: Callable[[bytes], Sequence[bytes]]) -> Any:
        server, word = None, ""
        if self._rank == 0:
            listener = take_port(host)  # by itself the store would listen on every interface
            port = listener.getsockname()[1]
            server = _stores.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=_TO_MEET,
                master_listen_fd=listener.detach(),
            )
            word = joined_address(host, port)
        words = agree(f"{word} {_gpu_of(self._device)}".encode())
        addresses, gpus = zip(*(word.decode().split(" ") for word in words), strict=True)
        check_gpus(gpus)
        address, number = split_address(addresses[0])
        with _peer_errors():
            store = server or _stores.TCPStore(address, number, is_master=False, timeout=_TO_MEET)
        return _stores.PrefixStore(f"round {round}", store)

    def put_rows(self, blocks: Mapping[Block, Sequence[GradientRows]]) -> None:
        raise InternalError("embeddings are not trained by rows here")

    def took(self, seconds: float) -> None:
        pass

    def rows_owned(self) -> Sequence[OwnedRows]:
        return ()

    def owned_of(self, total: Sequence[GradientRows]) -> Sequence[OwnedRows]:
        return ()

    def rows_total(self) -> Sequence[GradientRows]:
        return ()

    def begin(self, step: int) -> None:
        pass

    def have_ready(self, step: int, count: int, *, void: bool = False) -> None:
        pass

    def add(self, stage: str, step: int) -> None:
        raise InternalError(f"no sum is due at {stage!r} here")

    def total(self, contribution: Contribution) -> Contribution:
        world = self._plan.world_size
        outgoing = [
            torch.cat(
                [self._slice(row, rank) for row in self._memory.values()] or [self._no_tensor()]
            )
            for rank in range(world)
        ]
        size = self._slice(self._result, self._rank).numel()
        counts = [len(self._plan.rank_blocks(rank)) * size for rank in range(world)]
        incoming = self._trade(outgoing, counts)
        total = self._fold(incoming, size)
        sizes = [self._slice(self._result, rank).numel() for rank in range(world)]
        gathered = self._trade([total] * world, sizes)
        for rank, data in enumerate(gathered):
            self._place(data, rank)
        return self._layout.views(self._result)

    def fetch(self, total: Contribution) -> Contribution:
        return total

    def _no_tensor(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self._device)

    def _pieces(self, row: Tensor, rank: int) -> list[Tensor]:
        return [
            part.view(torch.uint8) for part in self._layout.slices(row, rank, self._plan.world_size)
        ]

    def _slice(self, row: Tensor, rank: int) -> Tensor:
        return torch.cat(self._pieces(row, rank))

    def _place(self, data: Tensor, rank: int) -> None:
        offset = 0
        for piece in self._pieces(self._result, rank):
            piece.copy_(data[offset : offset + piece.numel()])
            offset += piece.numel()

    def _typed(self, data: Tensor) -> list[Tensor]:
        """A received slice as one tensor per section."""
        result, offset = [], 0
        for section in self._layout.sections:
            start, stop = section.slice(self._rank, self._plan.world_size)
            result.append(data[offset : offset + stop - start].view(section.dtype))
            offset += stop - start
        return result

    def _fold(self, incoming: Sequence[Tensor], size: int) -> Tensor:
        slices: dict[int, Tensor] = {}
        blocks: list[Block] = []
        for rank, data in enumerate(incoming):
            for index, block in enumerate(self._plan.rank_blocks(rank)):
                slices[block.start] = data[index * size : (index + 1) * size].clone()
                blocks.append(block)
        for left, right in fold(blocks, self._plan.root, self._plan.parts):
            target = self._typed(slices[left.start])
            combine(target, self._typed(slices[right.start]), target)
        return slices[0]

    def _trade(self, outgoing: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        with _peer_errors():
            work = dist.all_to_all_single(
                received,
                torch.cat(list(outgoing)),
                output_split_sizes=list(sizes),
                input_split_sizes=[data.numel() for data in outgoing],
                async_op=True,
            )
            while not work.is_completed():
                if self._cancelled():
                    raise Interrupted
                sleep(_POLL_INTERVAL)
            work.wait()
        return list(torch.split(received, list(sizes)))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _gpu_of(device: torch.device) -> str:
    """Return the GPU's own name, which no other has; empty for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def check_gpus(gpus: Sequence[str]) -> None:
    """Check that no two workers share a GPU.

    Args:
        gpus: of each worker; empty where it computes on the CPU.

    Raises:
        SpecError: two do, which NCCL cannot join.
    """
    shared = Counter(filter(None, gpus)).most_common(1)
    if shared and shared[0][1] > 1:
        raise SpecError(
            "--transport",
            got=f"distributed, and {shared[0][1]} workers on one GPU",
            need="a GPU for each worker: NCCL joins GPUs",
            hint="--transport auto, which joins workers on any device; or fewer --workers",
        )


@contextlib.contextmanager
def _peer_errors() -> Any:
    """Return the errors that torch.distributed raises where a peer is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise PeerLost(f"torch.distributed: {error}", retryable=True) from error
