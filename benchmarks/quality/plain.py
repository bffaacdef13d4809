"""The quality of the examples' models in a plain torch loop, one process and no brim runtime: the
mark to meet.

    python benchmarks/quality/plain.py criteo.py --set path=dac_sample.tsv --set model=deepfm

Each seed trains on one thread and is judged on the test split after each epoch. Prints one JSON
object per epoch of each seed.
"""

import argparse
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from brim.data import fetch
from brim.domain.order import EpochOrder
from brim.train.evaluation import observe
from brim.train.params import ENVIRONMENT_VARIABLE, check_all_used

EXAMPLES = Path(__file__).parents[2] / "examples"
CHUNK = 4096


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("training_file", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(
    job: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    seed: int,
    batch_size: int,
    epoch: int,
) -> None:
    dataset = job.dataset("train")
    order = EpochOrder(
        seed=seed, epoch=epoch, size=len(dataset), block_size=getattr(dataset, "block_size", 1)
    )
    model.train()
    for start in range(0, len(dataset), batch_size):
        inputs, target = fetch(dataset, order.samples(start, min(start + batch_size, len(dataset))))
        optimizer.zero_grad()
        job.loss(model(inputs), target).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(job: Any, model: nn.Module) -> dict[str, float]:
    dataset, metrics = job.dataset("test"), job.metrics()
    states: dict[str, list[Any]] = {name: [] for name in metrics}
    model.eval()
    for start in range(0, len(dataset), CHUNK):
        inputs, target = fetch(dataset, np.arange(start, min(start + CHUNK, len(dataset))))
        output = model(inputs)
        for name, state in observe(metrics, output, target, inputs).items():
            states[name].append(state)
    return {name: round(metric.result(states[name]), 5) for name, metric in metrics.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "file", help="a file of examples/01-first-job, or one of another folder as FOLDER/FILE"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument(
        "--adam", action="store_true", help="use Adam at 1e-3 in place of the file's optimizer"
    )
    arguments = parser.parse_args()
    os.environ[ENVIRONMENT_VARIABLE] = json.dumps(
        dict(pair.split("=", 1) for pair in arguments.set)
    )
    torch.set_num_threads(1)
    job = load(arguments.file if "/" in arguments.file else f"01-first-job/{arguments.file}")
    train_rows = len(job.dataset("train"))
    for seed in map(int, arguments.seeds.split(",")):
        torch.manual_seed(seed)
        model = job.model()
        # The first optimizer imports much of torch: not timed.
        optimizer = torch.optim.Adam(model.parameters()) if arguments.adam else job.optimizer(model)
        if not arguments.adam:
            check_all_used(job)
        for epoch in range(arguments.epochs):
            wall, cpu = time.perf_counter(), time.process_time()
            train(job, model, optimizer, seed, arguments.batch_size, epoch)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            result = {"seed": seed, "epoch": epoch + 1, "metrics": evaluate(job, model)}
            result["samples_per_second"] = train_rows / wall
            print(json.dumps({**result, "samples_per_cpu_second": train_rows / cpu}), flush=True)


if __name__ == "__main__":
    main()
