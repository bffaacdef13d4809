"""A training script as torchrun wants it: restarted as a whole, it goes on from its last
checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from brim.data import fetch
from brim.domain.order import EpochOrder

CHECKPOINT_EVERY = 50


def load(file: Path) -> Any:
    """A training file, as brim trains it: the same network, data,
    loss and optimizer on both sides.
    """
    spec = importlib.util.spec_from_file_location("training_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    job = load(arguments.file)
    dataset = job.dataset("train")
    model = DistributedDataParallel(job.model())
    optimizer = job.optimizer(model)
    checkpoint, step = arguments.directory / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    steps_per_epoch = -(-len(dataset) // arguments.batch)
    name = arguments.directory / f"rank-{rank}-{restart}-{os.getpid()}.log"
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        epoch, step_of_epoch = divmod(step, steps_per_epoch)
        order = EpochOrder(
            seed=0, epoch=epoch, size=len(dataset), block_size=getattr(dataset, "block_size", 1)
        )
        start = step_of_epoch * arguments.batch
        size = min(arguments.batch, len(dataset) - start)
        samples = order.samples(start + size * rank // world, start + size * (rank + 1) // world)
        inputs, target = fetch(dataset, samples)
        optimizer.zero_grad()
        job.loss(model(inputs), target).backward()
        optimizer.step()
        step += 1
        os.write(log, f"{time.time()} {step} {rank} {world} {restart} {os.getpid()}\n".encode())
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            }
            torch.save(state, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)


if __name__ == "__main__":
    main()
