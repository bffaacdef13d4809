"""Which shape is it? Computed in 16 bits: bfloat16, or float16 with its losses scaled.

Its argument is bf16 or fp16.
"""

import sys

import torch
from shapes import CLASSES, shapes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import brim


def main():
    precision = sys.argv[1] if sys.argv[1:] else "bf16"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    torch.manual_seed(0)
    loader = DataLoader(shapes(320, seed=1), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    job = brim.join(model, optimizer, scaler=scaler, clip_norm=1.0)
    for epoch in job.epochs(3):
        for batch in job.batches(loader):
            with torch.autocast("cpu", dtype=dtype):
                loss = functional.cross_entropy(model(batch.inputs), batch.target)
            job.step(loss)
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
