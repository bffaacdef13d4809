#!/usr/bin/env bash
# ema-pytorch 0.8.3: the state of an average holds the model that trains, and loading it sets that model back.
#
# EMA(model).state_dict() has all weights twice: the average's, and under online_model. those of the model itself, since
# include_online_model is True unless a script says otherwise. Those are not copies: load_state_dict writes them. A script
# that goes on training and loads a saved average, to compare it or to go back to it, sets the weights that it trains back to
# the time of the save without a word; its optimizer keeps the later moments. A checkpoint that keeps model and average is
# half as large again as it needs to be. With include_online_model=False neither is so.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if ema-pytorch behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6 ema-pytorch==0.8.3
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 ema-pytorch==0.8.3
fi
cat >"$folder/average.py" <<'PY'
import copy
from importlib.metadata import version

import torch
from ema_pytorch import EMA


def set_back(**options):
    """Whether loading a saved average changes the model that trains, and the state's tensors."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    average = EMA(model, **options)
    average.update()
    saved = copy.deepcopy(average.state_dict())
    with torch.no_grad():
        model.weight += 1.0  # a step of training
    trained = model.weight.detach().clone()
    average.load_state_dict(saved)
    return not torch.equal(model.weight, trained), len(saved)


usual, without = set_back(), set_back(include_online_model=False)
print(version("ema-pytorch"), "the model is set back, tensors:", usual, "without it:", without)
assert version("ema-pytorch") == "0.8.3"
assert usual == (True, 6), usual
assert without == (False, 4), without
PY
"$folder/venv/bin/python" "$folder/average.py"
echo "as described"
