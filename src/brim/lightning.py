"""Trains a LightningModule as a job: `fit` replaces `Trainer.fit`."""

from __future__ import annotations

from typing import Any

import torch

from brim.train.entry.join import join
from brim.train.entry.lightning import fitting_of
from brim.train.job import Job

__all__ = ["fit"]


def fit(
    module: Any,
    datamodule: Any = None,
    *,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    epochs: int | None = None,
    device: torch.device | str | None = None,
    **options: Any,
) -> Job:
    """Train a LightningModule, alone or as a worker of a job.

    It does what `Trainer(max_epochs=epochs).fit(…)` does.

    The DataLoader's batch size is the global one: samples per step, whatever the number of workers.
    `training_step` is called for each micro-batch. `validation_step` runs after each epoch; the
    values it logs are means over samples, the same for any number of workers.

    Args:
        module: a LightningModule with automatic optimization.
        datamodule: a LightningDataModule that has the data, or None.
        train_dataloaders: the DataLoader of the training split, if neither the module nor the
            datamodule has it.
        val_dataloaders: the DataLoader of the validation split, or None.
        epochs: passes over the data; None takes `--epochs`.
        device: where to train; None uses a GPU if torch can, else the CPU.
        options: of `brim.join`: `seed`, `micro_batches`, `clip_norm`, `on_nan`, `threads`, `audit`.

    Returns:
        The job, which is done.

    Raises:
        SpecError: the module uses something that brim does not support; the message names it.
    """
    fitting = fitting_of(
        module, datamodule, train=train_dataloaders, val=val_dataloaders, epochs=epochs
    )
    module.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    optimizer, schedule = fitting.optimizer()
    job = join(module, optimizer, **schedule, **options)
    fitting.train_by(job, fitting.metrics(), epochs)
    return job
