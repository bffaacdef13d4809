"""The same training with fbgemm's fused tables, as TorchRec uses them; run by a Python that has
fbgemm-gpu-cpu.

python -m benchmarks.embeddings.fbgemm ROWS STEPS_FILE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import fbgemm_gpu  # noqa: F401 - loads the operators
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.embeddings import clicks
from benchmarks.embeddings.peers import BATCH, LR
from benchmarks.harness.gate import wait_at_gate
from brim.models.layers import Perceptron

WIDTH = clicks.DIM + 4  # rows are of a multiple of 4: the wide weight, and three that nobody uses


class Fused(nn.Module):
    """Wide & Deep whose table applies its own exact Adagrad in the backward pass."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ADAGRAD,
            learning_rate=LR,
            eps=1e-10,
            # over one row: without pooling its backward pass takes 8 times as long
            pooling_mode=PoolingMode.SUM,
            device=torch.device("cpu"),
        )
        self.table.init_embedding_weights_uniform(-0.01, 0.01)
        self.deep = Perceptron(clicks.FIELDS * clicks.DIM, clicks.HIDDEN, 0.0)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        offsets = torch.arange(ids.numel() + 1)
        rows = self.table(ids.flatten(), offsets).view(*ids.shape, WIDTH)
        wide = rows[:, :, clicks.DIM].sum(1) + self.bias
        logits: Tensor = self.deep(rows[:, :, : clicks.DIM].flatten(1)) + wide
        return logits


def main() -> None:
    rows, steps = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, ids = Fused(rows), clicks.ids_of(rows)
    target = clicks.target_of(ids)
    optimizer = torch.optim.Adagrad([*network.deep.parameters(), network.bias], lr=LR)
    steps.parent.mkdir(parents=True, exist_ok=True)
    position = 0
    with steps.open("a") as record:
        while True:
            wait_at_gate()
            optimizer.zero_grad()
            batch = slice(position, position + BATCH)
            functional.binary_cross_entropy_with_logits(
                network(ids[batch]), target[batch]
            ).backward()
            optimizer.step()
            position = (position + BATCH) % (len(ids) - BATCH)
            record.write(json.dumps({"at": time.time()}) + "\n")
            record.flush()


if __name__ == "__main__":
    main()
