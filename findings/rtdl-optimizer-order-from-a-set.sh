#!/usr/bin/env bash
# rtdl_revisiting_models 0.0.2: the optimizer's parameters come in another order each time it is made.
#
# make_parameter_groups(), and so make_default_optimizer(), collects the parameters without weight decay in a set, and makes a
# list of it. A set of tensors has the order of their addresses in memory. An optimizer's state_dict() tells parameters by their
# place in that list alone: a script that saves it and goes on in another process gives the moments of one parameter to
# another, without a word where their shapes agree, as those of all biases and norms of a width do. torch refuses a set as
# parameters for this reason, but sees a list here.
# Seen on 2026-12-01 with Python 3.11 and torch 2.13.0, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if rtdl_revisiting_models behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6 rtdl_revisiting_models==0.0.2
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 rtdl_revisiting_models==0.0.2
fi
cat >"$folder/order.py" <<'PY'
from importlib.metadata import version

import torch
from rtdl_revisiting_models import FTTransformer


def made():
    """A model, its default optimizer, and the parameters' names in the optimizer's order."""
    torch.manual_seed(0)
    options = FTTransformer.get_default_kwargs(n_blocks=3)
    model = FTTransformer(n_cont_features=4, cat_cardinalities=[2], d_out=1, **options)
    optimizer = model.make_default_optimizer()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return model, optimizer, [names[id(p)] for g in optimizer.param_groups for p in g["params"]]


first, *others = [made() for _ in range(5)]
orders = {tuple(order) for _, _, order in (first, *others)}
model, optimizer, order = first
for number, parameter in enumerate(model.parameters()):
    parameter.grad = torch.full_like(parameter, number + 1.0)
optimizer.step()
saved = optimizer.state_dict()
averages = {name: optimizer.state[p]["exp_avg"] for name, p in model.named_parameters()}
other_model, other, _ = next(each for each in others if each[2] != order)
other.load_state_dict(saved)  # as in a script that resumes
moved = [
    name
    for name, p in other_model.named_parameters()
    if not torch.equal(other.state[p]["exp_avg"], averages[name])
]
print(version("rtdl_revisiting_models"), "orders:", len(orders), "of 5;", len(moved), "parameters of", len(order))
print("with another's moments, as", moved[:2])
assert version("rtdl_revisiting_models") == "0.0.2"
assert len(orders) > 1 and moved
PY
"$folder/venv/bin/python" "$folder/order.py"
echo "as described"
