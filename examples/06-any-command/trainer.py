"""Handwritten digits by transformers' Trainer, as a script for torchrun has it.

Two variables make it elastic: BRIM_CHECKPOINTS, and BRIM_WORLD_MAX for an equal global batch.
"""

import json
import os
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
MOST = int(os.environ.get("BRIM_WORLD_MAX", WORLD))
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1  # seconds a step: it is worth watching


class Digits(Dataset):
    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return 1792

    def __getitem__(self, index):
        return {"images": self.images[index], "labels": self.labels[index], "index": index}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.seen = []  # samples since the last step, for the count of Samples

    def forward(self, images, labels, index):
        self.seen += index.tolist()
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Samples(TrainerCallback):
    """Writes down which samples each step was made of: the count is in samples.py."""

    def __init__(self, net):
        start, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("RANK", "0")
        self.net, self.path = net, os.path.join(FOLDER, f"samples-{start}-{rank}.jsonl")

    def on_step_end(self, args, state, control, **_):
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": state.global_step, "samples": self.net.seen}) + "\n")
        self.net.seen = []
        time.sleep(PAUSE)


os.makedirs(FOLDER, exist_ok=True)
torch.manual_seed(0)
net = Net()
arguments = TrainingArguments(
    FOLDER,
    num_train_epochs=EPOCHS,
    learning_rate=1e-2,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=MOST // WORLD,  # so the global batch is 16 * MOST
    save_steps=50,
    logging_steps=10,
    enable_jit_checkpoint=True,  # saves at SIGTERM
    use_cpu=True,
    ddp_backend="gloo",
    disable_tqdm=True,
    seed=1,
)
trainer = Trainer(net, arguments, train_dataset=Digits(), callbacks=[Samples(net)])
trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER))
trainer.save_model(os.path.join(FOLDER, "final"))
print("done at step", trainer.state.global_step, "of", trainer.state.max_steps, flush=True)
