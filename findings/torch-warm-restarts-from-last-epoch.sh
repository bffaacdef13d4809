#!/usr/bin/env bash
# torch 2.13.0: CosineAnnealingWarmRestarts(last_epoch=N) continues at another place than N.
#
# All schedulers take last_epoch, "the index of the last epoch", to continue a schedule. This one takes it for a place within
# the first period, however many periods have passed, and goes on with the second one. With periods of 4, 8, 16, ... a run
# that continues behind epoch 13 should be at place 2 of the third period, and is at place 2 of one of 8: its rate falls twice
# as fast, and the next restart comes at epoch 20 in place of 28, as do all later ones at other epochs.
# ExponentialLR and StepLR continue as they would have gone on. Nothing is raised. What helps: keep
# scheduler.state_dict(), and load it; or call step(14) instead.
# Seen on 2026-11-30 with Python 3.11, on a CPU; initial_lr is set in the groups, as torch asks for.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if torch behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/schedule.py" <<'PY'
import warnings

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ExponentialLR, StepLR

warnings.simplefilter("ignore")  # no step of the optimizer comes before those of the scheduler
STOP, LAST = 13, 32


def optimizer(rate=1.0):
    weight = torch.nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [weight], "lr": rate, "initial_lr": 1.0}])


def rates(make, behind=-1):
    """The rates of the epochs behind one, up to the last."""
    if behind < 0:
        made = optimizer()
        scheduler = make(made)
    else:
        made = optimizer(rates(make)[behind])  # the rate that the optimizer's own state has
        scheduler = make(made, last_epoch=behind)
    found = [made.param_groups[0]["lr"]]
    for _ in range(LAST - max(behind + 1, 0)):
        scheduler.step()
        found.append(made.param_groups[0]["lr"])
    return [round(float(rate), 3) for rate in found]


def restarts(make):
    whole, continued = rates(make)[STOP + 1 :], rates(make, STOP)
    return whole, continued


for name, make in {
    "ExponentialLR": lambda made, **options: ExponentialLR(made, 0.98, **options),
    "StepLR": lambda made, **options: StepLR(made, 5, 0.5, **options),
}.items():
    whole, continued = restarts(make)
    print(name, "is as it would have been:", max(abs(a - b) for a, b in zip(whole, continued)) < 0.02)
    assert max(abs(a - b) for a, b in zip(whole, continued)) < 0.02, (name, whole, continued)

whole, continued = restarts(lambda made, **options: CosineAnnealingWarmRestarts(made, 4, 2, **options))
print(torch.__version__, "rates of epochs", STOP + 1, "to", LAST)
print("not stopped:", whole)
print("continued:  ", continued)
assert torch.__version__.split("+")[0] == "2.13.0"
assert whole[:3] == [0.962, 0.916, 0.854], whole
assert continued[:3] == [0.854, 0.691, 0.5], continued
assert (STOP + 1 + whole.index(1.0), STOP + 1 + continued.index(1.0)) == (28, 20)
made = optimizer()
scheduler = CosineAnnealingWarmRestarts(made, 4, 2)
scheduler.step(STOP + 1)
assert round(made.param_groups[0]["lr"], 3) == whole[0]
PY
"$folder/venv/bin/python" "$folder/schedule.py"
echo "as described"
