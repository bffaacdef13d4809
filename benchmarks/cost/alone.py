"""What a step of one worker costs beside plain torch, in one process and interleaved: see README.md.

Blocks of steps alternate between plain torch, torch alone making M passes a step ("kernels"), and brim, inexact and
exact, as `python loop.py` runs it. So whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.harness import jobs
from benchmarks.harness.report import table
from brim.domain.order import EpochOrder
from brim.train.data.batches import fetch
from brim.train.job import Job
from brim.train.join import spec_of_a_loner

PARTS = 8
SIZE = 1 << 20
CASES = (("tiny", 64), ("wide_deep", 256), ("wide_deep", 512), ("wide_deep", 4096))
SIDES = ("plain", "kernels", "inexact", "exact")
Step = Callable[[], object]


def _network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "tiny":
        return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    return jobs.model(kind)


def _loss(kind: str, output: Any, target: Any) -> Any:
    return functional.cross_entropy(output, target) if kind == "tiny" else jobs.loss(kind, output, target)


def _data(kind: str) -> Any:
    if kind == "tiny":
        random = torch.Generator().manual_seed(0)
        return TensorDataset(
            torch.randn(SIZE, 20, generator=random), torch.randint(0, 2, (SIZE,), generator=random)
        )
    return jobs.dataset(kind, SIZE)


def _plain(kind: str, batch: int, data: Any, *, parts: int) -> Step:
    """A loop as anyone writes it; with several parts, one that accumulates their gradients."""
    network = _network(kind)
    optimizer = jobs.optimizer("sgd", network)
    order = EpochOrder(seed=0, epoch=0, size=SIZE).samples(0, SIZE)
    at = 0

    def step() -> None:
        nonlocal at
        optimizer.zero_grad()
        for part in np.array_split(order[at : at + batch], parts):
            inputs, target = fetch(data, part)
            loss = _loss(kind, network(inputs), target)
            (loss / parts if parts > 1 else loss).backward()
        optimizer.step()
        at = (at + batch) % (SIZE - batch)

    return step


def _brim(kind: str, batch: int, data: Any, *, exact: bool) -> Step:
    network = _network(kind)
    spec = replace(spec_of_a_loner(), exact=exact, micro_batches=PARTS)
    job = Job(network, jobs.optimizer("sgd", network), spec=spec, context=None)

    def steps() -> Iterator[None]:
        for batch_of_job in job.batches(data, global_batch_size=batch, epochs=1000):
            loss = _loss(kind, network(batch_of_job.inputs), batch_of_job.target)
            if job.step(loss) is not None:
                yield

    running = steps()
    return lambda: next(running)


def measure(kind: str, batch: int, *, seconds: float, block: float) -> dict[str, list[tuple[float, float]]]:
    """Of each side, seconds of wall and CPU time of a step in every block."""
    data = _data(kind)
    sides = {
        "plain": _plain(kind, batch, data, parts=1),
        "kernels": _plain(kind, batch, data, parts=PARTS),
        "inexact": _brim(kind, batch, data, exact=False),
        "exact": _brim(kind, batch, data, exact=True),
    }
    counts = {name: _how_many(step, block) for name, step in sides.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(counts[name]):
                step()
            found[name].append(
                ((time.perf_counter() - wall) / counts[name], (time.process_time() - cpu) / counts[name])
            )
    return found


def _how_many(step: Step, block: float) -> int:
    """Steps that fill a block, behind enough that warm it up."""
    for _ in range(20):
        step()
    began = time.perf_counter()
    for _ in range(10):
        step()
    return max(2, round(block / (time.perf_counter() - began) * 10))


def _row(kind: str, batch: int, found: dict[str, list[tuple[float, float]]]) -> list[Any]:
    wall = {name: statistics.median(each for each, _ in blocks) for name, blocks in found.items()}
    cpu = {name: statistics.median(each for _, each in blocks) for name, blocks in found.items()}
    beyond = (cpu["exact"] - cpu["kernels"]) / PARTS
    return [
        kind,
        batch,
        *(f"{1000 * wall[name]:.2f} ({1000 * cpu[name]:.2f})" for name in SIDES),
        *(f"{cpu['plain'] / cpu[name]:.2f}" for name in SIDES[1:]),
        f"{1e6 * beyond:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each network and batch")
    parser.add_argument(
        "--block", type=float, default=0.05, help="seconds of a side before the next one's turn"
    )
    parser.add_argument("--case", action="append", help="only these, as tiny:64; may be repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [each.split(":") for each in arguments.case or ()]
    cases = [(kind, int(batch)) for kind, batch in chosen] or CASES
    rows = [
        _row(kind, batch, measure(kind, batch, seconds=arguments.seconds, block=arguments.block))
        for kind, batch in cases
    ]
    head = ["network", "batch", *(f"{side} ms (CPU)" for side in SIDES)]
    head += [*(f"{side}'s speed" for side in SIDES[1:]), "µs beyond kernels, a micro-batch"]
    sys.stdout.write(table(head, rows) + "\n")


if __name__ == "__main__":
    main()
