"""Lightning's classifier as a training file: its module and its datamodule."""

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from toys import images

import brim

KIND = brim.param("kind", "module")


class Classifier(L.LightningModule):
    def __init__(self, learning_rate=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 10),
        )
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.automatic_optimization = KIND != "manual"

    def forward(self, pictures):
        return self.net(pictures)

    def training_step(self, batch, batch_idx):
        pictures, kinds = batch
        noise = torch.randn_like(pictures) / (1 + self.global_step + batch_idx)
        loss = F.cross_entropy(
            self(pictures + noise), kinds, label_smoothing=0.1 / (self.current_epoch + 1)
        )
        self.log("train_loss", loss)
        if KIND == "callbacks":
            self.trainer.callbacks.clear()
        return loss

    def validation_step(self, batch, batch_idx):
        pictures, kinds = batch
        answers = self(pictures)
        self.log("val_loss", F.cross_entropy(answers, kinds))
        self.log("val_accuracy", self.accuracy(answers, kinds))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        if KIND == "two":
            return [optimizer, torch.optim.SGD(self.parameters(), lr=0.1)]
        if KIND == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, threshold=10.0
            )
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Clipping(Classifier):
    def on_after_backward(self):
        nn.utils.clip_grad_value_(self.parameters(), 0.1)


class Pictures(L.LightningDataModule):
    def setup(self, stage):
        self.train, self.val = images(120), images(300, seed=1)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=24, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=50)


def model():
    return Clipping() if KIND == "hook" else Classifier()


def datamodule():
    return Pictures()
