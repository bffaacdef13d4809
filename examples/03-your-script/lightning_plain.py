"""Which shape is it? A LightningModule and its data."""

import lightning as L
import torch
from shapes import CLASSES, shapes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Classifier(L.LightningModule):
    def __init__(self, learning_rate=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, CLASSES),
        )

    def forward(self, pictures):
        return self.net(pictures)

    def training_step(self, batch, batch_idx):
        pictures, kinds = batch
        loss = functional.cross_entropy(self(pictures), kinds)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        pictures, kinds = batch
        answers = self(pictures)
        self.log("val_loss", functional.cross_entropy(answers, kinds))
        self.log("val_accuracy", (answers.argmax(1) == kinds).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.learning_rate, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Shapes(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(shapes(320, seed=1), batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(shapes(200, seed=2), batch_size=100)


def main():
    L.seed_everything(0)
    trainer = L.Trainer(max_epochs=3, gradient_clip_val=1.0, enable_checkpointing=False, logger=False)
    trainer.fit(Classifier(), Shapes())
    print(f"accuracy {trainer.callback_metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
