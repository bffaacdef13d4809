"""Handwritten digits by torch's FSDP: each process has a part of the weights and of Adam's state.

Its checkpoints are those of torch.distributed.checkpoint, which any number of processes can load.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits-fsdp")
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1  # seconds a step: it is worth watching
EVERY = 50  # steps between checkpoints
BATCH = 32  # samples of a step, on any number of processes that divides it

asked_to_stop = []
signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
per_epoch = 1792 // BATCH
done = 0


def checkpoints():
    return sorted(name for name in os.listdir(FOLDER) if name.startswith("step-"))


def state():
    weights, of_optimizer = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": of_optimizer}


def save():
    """Write a checkpoint, whole or not at all; all processes take part."""
    dcp.save(state(), checkpoint_id=f"{FOLDER}/writing")
    if rank == 0:
        os.replace(f"{FOLDER}/writing", f"{FOLDER}/step-{done:08}")
    dist.barrier()


def note(samples):
    """Write down which samples a step was made of: the count is in samples.py."""
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(f"{FOLDER}/samples-{start}-{rank}.jsonl", "a") as file:
        file.write(json.dumps({"step": done, "samples": samples}) + "\n")


os.makedirs(FOLDER, exist_ok=True)
dist.barrier()
if checkpoints():
    loaded = state()
    dcp.load(loaded, checkpoint_id=f"{FOLDER}/{checkpoints()[-1]}")
    set_state_dict(
        model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    done = int(checkpoints()[-1].removeprefix("step-"))
while done < EPOCHS * per_epoch:
    epoch, place = divmod(done, per_epoch)
    order = torch.randperm(1792, generator=torch.Generator().manual_seed(epoch))
    samples = order[place * BATCH : (place + 1) * BATCH][rank::world]
    loss = nn.functional.cross_entropy(model(images[samples]), labels[samples])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    note(samples.tolist())
    if rank == 0:
        print(f"step {done}/{EPOCHS * per_epoch} loss {float(loss.detach()):.6f}", flush=True)
    time.sleep(PAUSE)
    # All processes stop at the same step: the first that some of them was asked to stop at.
    stop = torch.tensor(len(asked_to_stop))
    dist.all_reduce(stop)
    if stop or done % EVERY == 0 or done == EPOCHS * per_epoch:
        save()
    if stop:
        break
else:
    if rank == 0:
        print(f"done at step {done}", flush=True)
dist.barrier()
dist.destroy_process_group()
