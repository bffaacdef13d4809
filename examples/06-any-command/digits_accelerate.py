"""Handwritten digits by a loop of accelerate, as a script for torchrun has it.

Its checkpoint has weights, optimizer and the number of steps, which tells the batches that come next.
"""

import json
import os
import signal
import sys
import time

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits-accelerate")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
MOST = int(os.environ.get("BRIM_WORLD_MAX", WORLD))
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1  # seconds a step: it is worth watching
EVERY = 50  # steps between checkpoints

asked_to_stop = []
signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
# A step is made of 16 * MOST samples, in MOST // WORLD passes on each process.
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=MOST // WORLD,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
set_seed(1)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images / 16, dtype=torch.float32)[:1792],
    torch.tensor(labels)[:1792],
    torch.arange(1792),
)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
per_epoch = len(data) // (16 * MOST)
done = torch.zeros((), dtype=torch.int64)


def checkpoints():
    return sorted(name for name in os.listdir(FOLDER) if name.startswith("step-"))


def save():
    """Write a checkpoint, whole or not at all; all processes take part."""
    accelerator.save_state(f"{FOLDER}/writing")
    if accelerator.is_main_process:
        os.replace(f"{FOLDER}/writing", f"{FOLDER}/step-{int(done):08}")
    accelerator.wait_for_everyone()


def note(samples):
    """Write down which samples a step was made of: the count is in samples.py."""
    start, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), accelerator.process_index
    with open(f"{FOLDER}/samples-{start}-{rank}.jsonl", "a") as file:
        file.write(json.dumps({"step": int(done), "samples": samples}) + "\n")


os.makedirs(FOLDER, exist_ok=True)
if checkpoints():
    accelerator.load_state(f"{FOLDER}/{checkpoints()[-1]}")
    accelerator.step = 0  # passes of the last start, which may have been fewer a step
    done += int(checkpoints()[-1].removeprefix("step-"))
while done < EPOCHS * per_epoch:
    epoch, place = divmod(int(done), per_epoch)
    loader.set_epoch(epoch)
    samples = []
    for pixels, digits, indices in skip_first_batches(loader, place * (MOST // WORLD)):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(pixels), digits)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        samples += indices.tolist()
        if not accelerator.sync_gradients:
            continue
        done += 1
        note(samples)
        samples = []
        accelerator.print(
            f"step {int(done)}/{EPOCHS * per_epoch} loss {float(loss.detach()):.6f}", flush=True
        )
        time.sleep(PAUSE)
        # All processes stop at the same step: the first that some of them was asked to stop at.
        stop = bool(accelerator.reduce(torch.tensor(len(asked_to_stop))))
        if stop or done % EVERY == 0 or done == EPOCHS * per_epoch:
            save()
        if stop:
            sys.exit()
accelerator.print(f"done at step {int(done)}", flush=True)
accelerator.end_training()
