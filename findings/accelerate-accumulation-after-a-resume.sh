#!/usr/bin/env bash
# accelerate 1.15.0: after load_state with another gradient_accumulation_steps, the first update has fewer passes.
#
# Accelerator.save_state writes the number of passes that were made (`step`), and load_state sets it again. accumulate() lets
# the optimizer step where that number is a multiple of gradient_accumulation_steps. A job that keeps its global batch on
# another number of processes has another gradient_accumulation_steps: saved behind 3 passes of 1, it goes on with passes of
# 2, and the first update is made of one batch, scaled as half of a mean. All later updates are shifted by a batch, and
# a batch that was saved as whole counts as begun. Nothing is raised or warned. What helps: `accelerator.step = 0` behind
# load_state at the end of an update. Seen on 2026-11-29 with Python 3.11 and torch 2.13.0, on one process.
#
# Needs: python3.11 with venv; torch is some GB. Fails if accelerate behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/resumed.py" <<'PY'
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader

folder = sys.argv[1]


def prepared(passes):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
    model = torch.nn.Linear(1, 1)
    parts = model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(torch.ones(8, 1), batch_size=1)
    return accelerator, *accelerator.prepare(*parts)


def updates(accelerator, model, optimizer, loader, count):
    """Which of the first passes end with an update."""
    found = []
    for batch, _ in zip(loader, range(count)):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
        found.append(accelerator.sync_gradients)
    return found


accelerator, *parts = prepared(1)
made = updates(accelerator, *parts, 3)
accelerator.save_state(folder)
resumed, *parts = prepared(2)
resumed.load_state(folder)
shifted = updates(resumed, *parts, 5)
again, *parts = prepared(2)
again.load_state(folder)
again.step = 0
mended = updates(again, *parts, 5)
print("updates of 1 pass, saved behind 3:", made)
print("updates of 2 passes, behind load_state:", shifted)
print("the same with step = 0:", mended)
assert made == [True, True, True]
assert shifted == [True, False, True, False, True]
assert mended == [False, True, False, True, False]
PY
"$folder/venv/bin/python" "$folder/resumed.py" "$folder/saved"
echo "as described"
