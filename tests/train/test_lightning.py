"""A LightningModule trains by `brim.lightning.fit`; unsupported features are refused by name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import brim
from brim.errors import SpecError

pytestmark = pytest.mark.skipif(not find_spec("lightning"), reason="Lightning is not installed")

LINE = TensorDataset(torch.arange(40.0)[:, None] / 40, torch.arange(40.0) / 20)


def loader() -> DataLoader[Any]:
    return DataLoader(LINE, batch_size=16)


def fit(module: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return brim.lightning.fit(
        module, train_dataloaders=loader(), val_dataloaders=loader(), epochs=2, **options
    )


def test_validation_logs_are_sample_means() -> None:
    from train.lightning_modules import Line

    module = Line()
    job = fit(module)
    with torch.no_grad():
        error = functional.l1_loss(module.net(LINE.tensors[0]).flatten(), LINE.tensors[1])
    assert job.committed == 6
    assert job.metrics == {"val_error": pytest.approx(error.item())}


def test_modules_know_epoch_step_and_batch() -> None:
    from train.lightning_modules import Line

    class Curious(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.add((self.current_epoch, self.global_step, batch_idx))
            return super().training_step(batch, batch_idx)["loss"]

        def on_train_epoch_start(self) -> None:
            epochs.append(self.current_epoch)

        @classmethod
        def load_from_checkpoint(cls, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("no work of training")

    seen: set[Any] = set()
    epochs: list[int] = []
    fit(Curious())
    assert seen == {(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 3, 0), (1, 4, 1), (1, 5, 2)}
    assert epochs == [0, 1]


@pytest.mark.parametrize("form", ["described", "lists", "plateau"])
def test_schedulers_step_when_lightning_would(form: str) -> None:
    from train.lightning_modules import Line

    class Scheduled(Line):
        def configure_optimizers(self) -> Any:
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            if form == "lists":
                return [self.optimizer], [torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)]
            if form == "described":
                by_step = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
                return {
                    "optimizer": self.optimizer,
                    "lr_scheduler": {"scheduler": by_step, "interval": "step"},
                }
            # No value is ten times better: it lowers the rate after each epoch.
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.optimizer, patience=0, threshold=10.0
            )
            return {"optimizer": self.optimizer, "lr_scheduler": plateau, "monitor": "val_error"}

    module = Scheduled()
    fit(module)
    rate = {"described": 0.1 / 2**6, "lists": 0.1 / 2**2, "plateau": 0.001}[form]
    assert module.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ByHand", "manual optimization"),
        ("Counting", "Counting.on_train_batch_end"),
        ("Two", "one torch optimizer"),
        ("Nosy", "trainer.callbacks"),
        ("Objects", "got a Linear"),
        ("Sums", "got a reduce_fx"),
        ("Often", "a frequency of 2"),
    ],
)
def test_what_would_be_left_out_is_refused(kind: str, words: str) -> None:
    from train import lightning_modules

    with pytest.raises(SpecError, match=words):
        fit(getattr(lightning_modules, kind)())


@pytest.mark.parametrize(
    ("make_metric", "line"),
    [
        (
            lambda torchmetrics_: torchmetrics_.MeanAbsoluteError(),
            "torchmetrics.functional.mean_absolute_error(output, ",
        ),
        (
            lambda torchmetrics_: torchmetrics_.Accuracy(task="multiclass", num_classes=3),
            "torchmetrics.functional.classification.multiclass_accuracy(output, ",
        ),
        (lambda torchmetrics_: torchmetrics_.MeanMetric(), "value.mean()"),
    ],
    ids=["regression", "classification", "aggregation"],
)
def test_a_logged_torchmetrics_object_gets_the_line_instead(make_metric: Any, line: str) -> None:
    from train.lightning_modules import Line

    metric = make_metric(pytest.importorskip("torchmetrics"))

    class Logging(Line):
        def validation_step(self, batch: Any) -> None:
            self.log("val_acc", metric)

    with pytest.raises(SpecError) as refused:
        fit(Logging())
    assert f"got a {type(metric).__name__}" in str(refused.value)
    assert f"hint: self.log('val_acc', {line}" in str(refused.value)


def test_torchmetrics_hold_one_batch() -> None:
    from train.lightning_modules import Line

    torchmetrics = pytest.importorskip("torchmetrics")

    class Measured(Line):
        def __init__(self) -> None:
            super().__init__()
            self.error = torchmetrics.MeanAbsoluteError()
            self.train_error = torchmetrics.MeanAbsoluteError()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.train_error(self.net(batch[0]).flatten(), batch[1])
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any) -> None:
            self.error.update(self.net(batch[0]).flatten(), batch[1])
            self.log("val_error", self.error.compute())

    long = TensorDataset(torch.arange(600.0)[:, None] / 600, torch.arange(600.0) / 300)
    module = Measured()
    torch.manual_seed(0)
    job = brim.lightning.fit(
        module,
        train_dataloaders=loader(),
        val_dataloaders=DataLoader(long, batch_size=16),
        epochs=2,
    )
    with torch.no_grad():
        error = functional.l1_loss(module.net(long.tensors[0]).flatten(), long.tensors[1])
    assert job.metrics == {"val_error": pytest.approx(error.item())}


def test_non_lightning_models_are_refused() -> None:
    with pytest.raises(SpecError, match="got a Linear"):
        fit(nn.Linear(1, 1))
