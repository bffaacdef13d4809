#!/usr/bin/env bash
# torch 2.13.0: the first gradient of a function under torch.jit.script has other bits than all later ones.
#
# The first call of a scripted function records what it is called with, and the second one compiles it for that, with a backward
# pass of its own. Forward values stay the same, but gradients are summed in another order: the same input gives another
# gradient in the first call than in the second and all later ones, and so it is in each new process. A run that continues
# from a checkpoint with all states and seeds therefore leaves the bits of the run that was not interrupted at its first step,
# and two processes that compute the same batch disagree if one of them is younger. Packages script functions without a word
# of it: the distances of geoopt 0.5.1 are scripted. What helps: torch.jit.optimized_execution(False) around all calls, or
# the same number of calls before training. brim turns the second compilation off.
# Seen on 2026-11-30 with Python 3.11, on a CPU, one thread.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if torch behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages="torch==2.13.0 numpy==2.4.6 geoopt==0.5.1 scipy==1.17.1"
if command -v uv >/dev/null; then
  # shellcheck disable=SC2086
  uv pip install --quiet --python "$folder/venv/bin/python" $packages
else
  # shellcheck disable=SC2086
  "$folder/venv/bin/pip" install --quiet $packages
fi
cat >"$folder/calls.py" <<'PY'
import warnings
from functools import partial

warnings.simplefilter("ignore", DeprecationWarning)
import geoopt
import torch

torch.set_num_threads(1)
POINTS = torch.linspace(-2, 2, 400).reshape(100, 4)


def squashed(x):
    return torch.tanh(x) * torch.sigmoid(x) / (1 + x * x)


def in_ball(x, ball):
    return ball.dist(x / 8, x.flip(0) / 9)


def calls(function):
    """What five calls with one input give: values and gradients."""
    values, gradients = [], []
    for _ in range(5):
        x = POINTS.clone().requires_grad_()
        value = function(x)
        value.square().sum().backward()
        values.append(value.detach())
        gradients.append(x.grad)
    return values, gradients


def like_last(tensors):
    return [torch.equal(tensor, tensors[-1]) for tensor in tensors]


print(torch.__version__, "geoopt", geoopt.__version__)
for name, function, alike in (
    ("as it is", squashed, True),
    ("scripted", torch.jit.script(squashed), False),
    ("geoopt's distance", partial(in_ball, ball=geoopt.PoincareBall()), False),
):
    values, gradients = calls(function)
    print(f"{name}: values like the last {like_last(values)}, gradients like the last {like_last(gradients)}")
    assert all(like_last(values))
    assert like_last(gradients) == [alike, True, True, True, True]
with torch.jit.optimized_execution(False):
    assert all(like_last(calls(torch.jit.script(squashed))[1]))
assert torch.__version__.split("+")[0] == "2.13.0"
PY
"$folder/venv/bin/python" "$folder/calls.py"
echo "as described"
