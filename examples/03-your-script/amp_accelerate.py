"""Which shape is it? Computed in 16 bits: bfloat16, or float16 with its losses scaled.

Its argument is bf16 or fp16.
"""

import sys

import torch
from accelerate import Accelerator
from shapes import CLASSES, shapes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


def main():
    precision = sys.argv[1] if sys.argv[1:] else "bf16"
    torch.manual_seed(0)
    loader = DataLoader(shapes(320, seed=1), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    accelerator = Accelerator(mixed_precision=precision)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for data, target in loader:
            with accelerator.autocast():
                loss = functional.cross_entropy(model(data), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
