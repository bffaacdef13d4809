"""An elastic script for torchrun, as the image of the guide's PyTorchJob has one under this name.

It takes the guide's arguments, and trains a small model on numbers drawn from a seed. Workers that
come together go on from the latest checkpoint that one of them has. `CHECKPOINT` names a file that
all share; beside it is a list of the steps then. Once there is a file
`/tmp/hurry`, it does not pause.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 10  # an epoch
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "/tmp/checkpoint.pt"))
IS_SHARED = "CHECKPOINT" in os.environ  # by all workers


def latest(model: nn.Module) -> int:
    """Have the state of the worker that has come farthest; return the steps that it has done."""
    saved: dict[str, Any] = torch.load(CHECKPOINT) if CHECKPOINT.exists() else {"step": 0}
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, saved["step"])
    source = steps.index(max(steps))
    if dist.get_rank() == source and "model" in saved:
        model.load_state_dict(saved["model"])
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, source)
    return int(max(steps))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--arch")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = latest(model)
    for step in range(first, arguments.epochs * STEPS):
        samples = torch.randn(arguments.batch_size, 16)
        loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for gradient in [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        optimizer.step()
        if os.environ["RANK" if IS_SHARED else "LOCAL_RANK"] == "0":
            partial = CHECKPOINT.with_suffix(".partial")
            torch.save({"step": step + 1, "model": model.state_dict()}, partial)
            partial.replace(CHECKPOINT)
        sys.stdout.write(f"step {step + 1} of {dist.get_world_size()}\n")
        sys.stdout.flush()
        if IS_SHARED and dist.get_rank() == 0:
            with CHECKPOINT.with_suffix(".steps").open("a") as log:
                log.write(f"{time.time()} {step + 1} {dist.get_world_size()}\n")
        if not Path("/tmp/hurry").exists():
            time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
