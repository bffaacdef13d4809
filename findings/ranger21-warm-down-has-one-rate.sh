#!/usr/bin/env bash
# ranger21 0.1.0: from the start of its warm-down, every group of parameters is trained at the rate of lr=.
#
# Ranger21 lowers its rate over the last 28% of the steps unless a script says otherwise. get_warm_down() receives the rate of
# the group, and returns one that is computed from the lr= of the constructor alone. A pretrained body at 1e-6 beside a head
# at 1e-2 is trained at its own rate until then, and in the next step at nearly the head's: its steps become some thousand
# times as large, and undo the pretraining at the very end of a run. A scheduler of torch that has lowered the groups' rates is
# overruled in the same way. Nothing is raised, and param_groups still names the small rate. What helps:
# warmdown_active=False, and a scheduler of torch.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if ranger21 behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6 ranger21==0.1.0
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 ranger21==0.1.0
fi
cat >"$folder/rates.py" <<'PY'
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO

import torch
from ranger21 import Ranger21


def largest_changes(**options):
    """The largest change of the body's weights in each of 100 steps, and the rate that its group names at the end."""
    torch.manual_seed(0)
    body, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
    inputs = torch.randn(64, 4)
    target = inputs.sum(1, keepdim=True)
    groups = [{"params": list(body.parameters()), "lr": 1e-6}, {"params": list(head.parameters())}]
    with redirect_stdout(StringIO()):  # what it prints about itself
        optimizer = Ranger21(groups, lr=1e-2, num_epochs=4, num_batches_per_epoch=25, **options)
        changes = []
        for _ in range(100):
            before = body.weight.detach().clone()
            optimizer.zero_grad()
            (head(torch.tanh(body(inputs))) - target).pow(2).mean().backward()
            optimizer.step()
            changes.append(float((body.weight.detach() - before).abs().max()))
    return changes, optimizer.param_groups[0]["lr"]


usual, rate = largest_changes()
without, _ = largest_changes(warmdown_active=False)
print(version("ranger21"), "largest change of a weight at rate", rate, "in steps 1 to 71:", max(usual[:71]), "in step 72:", usual[71])
print("in all steps without a warm-down:", max(without))
assert version("ranger21") == "0.1.0"
assert rate == 1e-6
assert max(usual[:71]) < 1e-5, max(usual[:71])
assert usual[71] > 1e-3, usual[71]
assert max(without) < 1e-5, max(without)
PY
"$folder/venv/bin/python" "$folder/rates.py"
echo "as described"
