"""The peers: plain DistributedDataParallel over gloo, and a plain loop in one process; one thread a
worker.

Prints one JSON object per number of workers (0: the plain loop) with the seconds of every step
measured, and the mean of processor time (`cpu`) that rank 0 needed for one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import jobs
from brim.domain.order import EpochOrder

WARM_UP, MOST = 3, 400
_SAMPLES, _ORDERED = 1 << 30, 1 << 20


def measure(arguments: argparse.Namespace, rank: int, world: int) -> tuple[list[float], float]:
    """Seconds of each step, and of the processor for one; `world` 0 is the plain loop."""
    kind, batch = arguments.kind, arguments.batch
    torch.manual_seed(0)
    dataset, model = jobs.dataset(kind, _SAMPLES), jobs.model(kind)
    assert isinstance(dataset, jobs.InMemory)
    if world:
        model = DistributedDataParallel(model)
    optimizer = jobs.optimizer(arguments.optimizer, model)
    # Computed beforehand, as a DistributedSampler does once per epoch; the samples are those that
    # brim takes.
    order = EpochOrder(seed=0, epoch=0, size=_SAMPLES).samples(0, _ORDERED)
    steps_in_order = _ORDERED // batch
    first, last = (batch * rank // world, batch * (rank + 1) // world) if world else (0, batch)

    def step(number: int) -> float:
        started = time.perf_counter()
        start = number % steps_in_order * batch
        inputs, target = dataset.take(order[start + first : start + last])
        optimizer.zero_grad()
        jobs.loss(kind, model(inputs), target).backward()
        optimizer.step()
        return time.perf_counter() - started

    warm = [step(number) for number in range(WARM_UP)]
    count = torch.tensor(
        [min(MOST, max(arguments.least, arguments.seconds / statistics.median(warm)))]
    )
    if world:
        dist.broadcast(count, 0)
    cpu = time.process_time()
    found = [step(WARM_UP + number) for number in range(int(count))]
    return found, (time.process_time() - cpu) / len(found)


def _member(rank: int, world: int, store: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found = measure(arguments, rank, world)
    if rank == 0:
        _tell(world, *found)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def _tell(world: int, found: list[float], cpu: float) -> None:
    result = {
        "workers": world,
        "seconds": [round(second, 7) for second in found],
        "cpu": round(cpu, 7),
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, nargs="+", required=True)
    parser.add_argument(
        "--seconds", type=float, required=True, help="to measure, for each number of workers"
    )
    parser.add_argument("--least", type=int, required=True, help="steps to measure at least")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for world in arguments.workers:
        if world == 0:
            _tell(0, *measure(arguments, 0, 0))
            continue
        with tempfile.TemporaryDirectory() as scratch:
            start_processes(
                _member,
                (world, str(Path(scratch) / "store"), arguments),
                nprocs=world,
                start_method="fork",
            )


if __name__ == "__main__":
    main()
