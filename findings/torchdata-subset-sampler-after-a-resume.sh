#!/usr/bin/env bash
# torchdata 0.11.0: a StatefulDataLoader with a SubsetRandomSampler repeats and drops samples after a resume.
#
# StatefulDataLoader keeps the state of the generator where shuffle=True draws the order. Of another sampler it keeps how
# many samples were taken, draws an order again and skips so many of it. SubsetRandomSampler and WeightedRandomSampler draw
# from torch's generator, which is in no state: a script that seeds it with the same number at its start draws the order of
# the first epoch again, whichever epoch was interrupted. In the second epoch of 12 samples, stopped after 6, the resumed
# loader yields 6 samples, as it should, but some of them for the second time, and others never. Nothing is raised or warned.
# What helps: keep torch.get_rng_state() of the start of the epoch with the state, or write a sampler with state_dict.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, num_workers 0 and 1.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if torchdata behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 numpy==2.4.6 torchdata==0.11.0
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 torchdata==0.11.0
fi
cat >"$folder/resumed.py" <<'PY'
from importlib.metadata import version

import torch
from torch.utils.data import SubsetRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

SAMPLES = list(range(12))


def loader(workers, **options):
    """A loader as a script makes it, after the seed at its start."""
    torch.manual_seed(0)
    return StatefulDataLoader(SAMPLES, batch_size=1, num_workers=workers, **options)


def second_epoch(workers, **options):
    """What is read of the second epoch: before it is stopped after 6 samples, and after the resume."""
    first = loader(workers, **options)
    list(first)
    iterator = iter(first)
    before = [int(next(iterator)) for _ in range(6)]
    state = first.state_dict()
    resumed = loader(workers, **options)
    resumed.load_state_dict(state)
    return before, [int(sample) for sample in resumed]


for workers in 0, 1:
    before, after = second_epoch(workers, shuffle=True)
    assert sorted(before + after) == SAMPLES, (before, after)
    before, after = second_epoch(workers, sampler=SubsetRandomSampler(SAMPLES))
    twice, never = sorted(set(before) & set(after)), sorted(set(SAMPLES) - set(before) - set(after))
    print(version("torchdata"), "workers:", workers, "before:", before, "after:", after, "twice:", twice, "never:", never)
    assert len(before) == len(after) == 6
    assert twice
    assert len(twice) == len(never)
assert version("torchdata") == "0.11.0"
PY
"$folder/venv/bin/python" "$folder/resumed.py"
echo "as described"
