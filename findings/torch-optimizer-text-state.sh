#!/usr/bin/env bash
# torch 2.13.0: Optimizer.load_state_dict replaces text in an optimizer's state.
#
# What an optimizer keeps beside a parameter may be any value: state_dict() hands out text and tuples as they are, and
# torch.save and torch.load keep them. load_state_dict() does not: it goes through everything that can be iterated, to cast
# tensors to the type of the parameter, and text can be iterated. It comes back as the text "<generator object ...>"; and a
# tensor of whole numbers within a tuple comes back in floating point. Nothing is raised, so a run that is resumed goes on
# with another state. Seen on 2026-11-28 with Python 3.11; a subclass of SGD stands for optimizers that keep such state.
#
# Needs: python3.11 with venv, some 6 GB for torch and what it depends on. Fails if torch behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
fi
cat >"$folder/state.py" <<'PY'
import torch


class Phased(torch.optim.SGD):
    """Keeps the name of a phase, and a pair, beside each parameter."""


def optimizer():
    return Phased([torch.nn.Parameter(torch.zeros(2))], lr=0.1)


before, after = optimizer(), optimizer()
(parameter,) = before.param_groups[0]["params"]
before.state[parameter] = {"phase": "warm-up", "pair": (torch.ones(1, dtype=torch.int8), 3)}
after.load_state_dict(before.state_dict())
(state,) = after.state.values()
print(torch.__version__, "phase:", state["phase"][:17], "pair:", state["pair"])
assert torch.__version__.startswith("2.13.0")
assert state["phase"].startswith("<generator object"), state["phase"]
assert state["pair"][0].dtype == torch.float32, state["pair"]
PY
"$folder/venv/bin/python" "$folder/state.py"
echo "as described"
