"""Handwritten digits by Lightning's Trainer, as a script for torchrun has it.

Its checkpoint has weights, optimizer and the number of steps, which tells the samples that come next.
"""

import json
import os
import signal
import sys
import time

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits-lightning")
WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1  # seconds a step: it is worth watching
BATCH = 32  # samples a step, whatever the number of processes
STEPS = 1792 // BATCH  # of an epoch
EVERY = 50  # steps between checkpoints

asked_to_stop = []


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch):
        images, labels, indices = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        return {"loss": loss, "samples": indices.tolist()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Parts:
    """This process's part of the samples of each step, from the trainer's step to the epoch's end."""

    def __len__(self):
        return STEPS

    def __iter__(self):
        epoch, place = divmod(trainer.global_step, STEPS)
        order = torch.randperm(STEPS * BATCH, generator=torch.Generator().manual_seed(epoch))
        for step in range(place, STEPS):
            yield order[step * BATCH : (step + 1) * BATCH][RANK::WORLD].tolist()


class Loader(DataLoader):
    """Lightning asks a loader for its place: the trainer's step tells it."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class StopTogether(L.Callback):
    """Have all processes save, and stop, at the same step."""

    def on_train_start(self, trainer, module):
        # Lightning's own handler talks to the other processes wherever it finds them: replace it.
        signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step
        note(step, outputs["samples"])
        if RANK == 0:
            print(f"step {step}/{EPOCHS * STEPS} loss {float(outputs['loss']):.6f}", flush=True)
        time.sleep(PAUSE)
        # One process may hear the signal a step before another: the sum tells all of them.
        stops = trainer.strategy.reduce(torch.tensor(float(len(asked_to_stop))), reduce_op="sum")
        if stops or step % EVERY == 0:
            trainer.save_checkpoint(f"{FOLDER}/writing.ckpt")  # all processes take part
            if RANK == 0:
                os.replace(f"{FOLDER}/writing.ckpt", f"{FOLDER}/digits.ckpt")
        if stops:
            sys.exit()


def note(step, samples):
    """Write down which samples a step was made of: the count is in samples.py."""
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(f"{FOLDER}/samples-{start}-{RANK}.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "samples": samples}) + "\n")


os.makedirs(FOLDER, exist_ok=True)
L.seed_everything(1, verbose=False)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images / 16, dtype=torch.float32)[: STEPS * BATCH],
    torch.tensor(labels)[: STEPS * BATCH],
    torch.arange(STEPS * BATCH),
)
trainer = L.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    max_epochs=EPOCHS,
    use_distributed_sampler=False,
    callbacks=[StopTogether()],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
saved = f"{FOLDER}/digits.ckpt"
trainer.fit(
    Digits(),
    Loader(data, batch_sampler=Parts()),
    ckpt_path=saved if os.path.exists(saved) else None,
)
if RANK == 0:
    print(f"done at step {trainer.global_step}", flush=True)
