"""A training script as torchrun wants it: restarted as a whole, it goes on from its last checkpoint."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import jobs
from benchmarks.harness.pacing import paced
from brim.domain.order import EpochOrder

CHECKPOINT_EVERY = 50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    dataset = jobs.dataset("wide_deep", 1 << 30)
    model = DistributedDataParallel(paced(jobs.model("wide_deep")))
    optimizer = jobs.optimizer(arguments.optimizer, model)
    checkpoint, step = arguments.directory / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    order = EpochOrder(seed=0, epoch=0, size=len(dataset))
    first, last = arguments.batch * rank // world, arguments.batch * (rank + 1) // world
    name = arguments.directory / f"rank-{rank}-{restart}-{os.getpid()}.log"
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        start = step * arguments.batch
        inputs, target = dataset.take(order.samples(start + first, start + last))
        optimizer.zero_grad()
        jobs.loss("wide_deep", model(inputs), target).backward()
        optimizer.step()
        step += 1
        os.write(log, f"{time.time()} {step} {rank} {world} {restart} {os.getpid()}\n".encode())
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)


if __name__ == "__main__":
    main()
