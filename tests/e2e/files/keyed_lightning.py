"""Clicks whose ids are hashes, as a LightningModule."""

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import brim


class Clicks(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.rows = brim.Embedding(8, limit=20_000, admit_after=2, expire_after=20)
        self.out = nn.Linear(8, 1)

    def forward(self, ids):
        return self.out(self.rows(ids).sum(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        ids, target = batch
        loss = functional.binary_cross_entropy_with_logits(self(ids), target)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        ids, target = batch
        self.log("val_loss", functional.binary_cross_entropy_with_logits(self(ids), target))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Data(lightning.LightningDataModule):
    def setup(self, stage):
        chance = torch.Generator().manual_seed(0)
        numbers = (torch.rand(4096, 8, generator=chance).pow(4) * 20_000).long()
        ids = (numbers * 0x1E3779B97F4A7C15) & ((1 << 63) - 1)
        self.samples = TensorDataset(ids, (numbers.sum(1) % 2).float())

    def train_dataloader(self):
        return DataLoader(self.samples, batch_size=128, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.samples, batch_size=512)


def model():
    return Clicks()


def datamodule():
    return Data()
