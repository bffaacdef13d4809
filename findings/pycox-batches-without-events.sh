#!/usr/bin/env bash
# pycox 0.3.0: one batch without an event turns all weights of a CoxPH model into NaN.
#
# CoxPHLoss divides by the number of events in the batch. Where all durations of a batch are censored, it is 0 / 0, and so are
# its gradients: the optimizer writes NaN into every weight, and training goes on to its end. Censored durations are the usual
# case of survival analysis. With 5 % of events, one batch of 32 in five has none, and the model of 256 patients is lost in its
# first epoch. CoxPH.fit says nothing; its log has NaN. What helps: larger batches, or a loss of 0 for a batch without events,
# which tells nothing of the order of events.
# Seen on 2026-11-30 with Python 3.11, torch 2.13.0 and torchtuples 0.2.2, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if pycox behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages="pycox==0.3.0 torchtuples==0.2.2 torch==2.13.0 setuptools==84.2.1"
if command -v uv >/dev/null; then
  # shellcheck disable=SC2086
  uv pip install --quiet --python "$folder/venv/bin/python" $packages
else
  # shellcheck disable=SC2086
  "$folder/venv/bin/pip" install --quiet $packages
fi
cat >"$folder/fit.py" <<'PY'
from importlib.metadata import version

import numpy as np
import torch
import torchtuples
from pycox.models import CoxPH
from pycox.models.loss import CoxPHLoss

chance = np.random.default_rng(0)
features = chance.normal(size=(256, 3)).astype("float32")
durations = chance.exponential(size=256).astype("float32")
events = (chance.random(256) < 0.05).astype("float32")


def fitted(batch_size):
    torch.manual_seed(0)
    model = CoxPH(torch.nn.Linear(3, 1, bias=False), torchtuples.optim.Adam(0.01))
    log = model.fit(features, (durations, events), batch_size=batch_size, epochs=2, verbose=False)
    losses = log.to_pandas()["train_loss"].tolist()
    weights = next(model.net.parameters()).detach()
    print(f"batches of {batch_size}: losses {losses}, weights {weights.tolist()}")
    return losses, weights


print("pycox", version("pycox"), "events:", int(events.sum()), "of", len(events))
losses, weights = fitted(256)
assert np.isfinite(losses).all() and weights.isfinite().all()
losses, weights = fitted(32)
assert np.isnan(losses).any() and weights.isnan().all()

hazards = torch.randn(4, 1, requires_grad=True)
loss = CoxPHLoss()(hazards, torch.tensor([1.0, 2, 3, 4]), torch.zeros(4))
loss.backward()
print("a batch without events:", loss.item(), hazards.grad.flatten().tolist())
assert loss.isnan() and hazards.grad.isnan().all()
assert version("pycox") == "0.3.0"
PY
"$folder/venv/bin/python" -W ignore "$folder/fit.py"
echo "as described"
