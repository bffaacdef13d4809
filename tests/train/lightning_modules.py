"""Modules of Lightning for its tests, which alone import it: that takes seconds."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.nn import functional


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.heard: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = functional.mse_loss(self.net(x).flatten(), y)
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log_dict({"val_error": functional.l1_loss(self.net(x).flatten(), y)})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByHand(Line):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Counting(Line):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.heard.append(batch_idx)


class Two(Line):
    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.parameters(), lr=0.1),
            torch.optim.SGD(self.parameters(), lr=0.1),
        ]


class Nosy(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.trainer.callbacks  # type: ignore[attr-defined]


class Objects(Line):
    def validation_step(self, batch: Any) -> None:
        self.log("val_error", nn.Linear(1, 1))  # type: ignore[arg-type]


class Sums(Line):
    def validation_step(self, batch: Any) -> None:
        self.log("val_error", torch.tensor(1.0), reduce_fx="sum")


class Often(Line):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}
