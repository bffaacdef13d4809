"""Click models on Frappe with the settings of BARS: `brim run --workers N -- python frappe_loop.py SPLIT MODEL SEED`.

Adam at 1e-3, a tenth of it behind each epoch without a better validation AUC; two of those in a row end the
training. The test AUC is that of the epoch with the best validation AUC.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

import brim
from benchmarks.quality.frappe_rows import IDS, SPLITS, read
from brim.models import DCNV2, DeepFM, FinalMLP, WideDeep, XDeepFM

BATCH = 4096
PATIENCE = 2
FALL = 0.1
# What BARS found best on this split, in Zhu et al., "BARS: Towards Open Benchmarking for Recommender
# Systems", SIGIR 2022: the weight decay of the tables, and the model.
MODELS: dict[str, tuple[float, Callable[..., nn.Module], dict[str, Any]]] = {
    "wide_deep": (0.1, WideDeep, {"hidden": (400, 400, 400), "dropout": 0.6}),
    "deepfm": (0.05, DeepFM, {"hidden": (400, 400, 400), "dropout": 0.2}),
    "xdeepfm": (0.1, XDeepFM, {"hidden": (400, 400, 400), "dropout": 0.2, "cin": (64,)}),
    "dcn_v2": (0.05, DCNV2, {"hidden": (400, 400, 400), "dropout": 0.4, "crosses": 4}),
    "final_mlp": (
        0.05,
        FinalMLP,
        {"hidden": (400,), "dropout": 0.4, "heads": 5, "gate": 400, "contexts": ((0,), (1,))},
    ),
}


def model_and_optimizer(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model, and its optimizer, by which only the tables decay."""
    decay, kind, settings = MODELS[name]
    model = kind(IDS, 10, dim=10, batch_norm=True, **settings)
    tables = [weight for weight in model.parameters() if weight.shape[:1] == (IDS,)]
    others = [weight for weight in model.parameters() if weight.shape[:1] != (IDS,)]
    groups: list[dict[str, Any]] = [{"params": tables, "weight_decay": decay}, {"params": others}]
    return model, torch.optim.Adam(groups, lr=1e-3)


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits [B] of ids [B, 10]."""
    logits: Tensor = model({"ids": ids})
    return logits


def main(split: str, name: str, seed: int, epochs: int) -> None:
    torch.manual_seed(seed)
    train, valid, test = (TensorDataset(*read(Path(split, f"{part}.libsvm"))) for part in SPLITS)
    model, optimizer = model_and_optimizer(name)
    scheduler = ReduceLROnPlateau(optimizer, "max", FALL, patience=0, threshold=0.0)
    job = brim.join(model, optimizer, scheduler=scheduler, monitor="valid_auc")
    best = {"auc": 0.0, "test_auc": 0.0, "worse": 0}
    job.register_state("best", best)

    def auc(rows: TensorDataset) -> float:
        found: dict[str, float] = job.evaluate(
            rows, {"auc": brim.metrics.auc()}, forward=logits_of, batch_size=8192
        )
        return found["auc"]

    for _ in job.epochs(epochs):
        for batch in job.batches(train, global_batch_size=BATCH):
            logits = logits_of(model, batch.inputs)
            job.step(functional.binary_cross_entropy_with_logits(logits, batch.target))
        found = auc(valid)
        if found > best["auc"]:
            best |= {"auc": found, "test_auc": auc(test), "worse": 0}
        else:
            best["worse"] += 1
        job.log(valid_auc=found, **{f"best_{key}": value for key, value in best.items()})
        if best["worse"] == PATIENCE:
            job.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
