#!/usr/bin/env bash
# torch 2.13.0: a DataLoader drops the keys that the first sample of a batch does not have.
#
# default_collate takes the keys of a batch of dicts from its first sample. A key that others have and the first one has not is
# left out, with all of its values; a key that the first one has and another has not is a KeyError. So a field that only some
# samples have, such as a weight, a mask or a second label, ends in an error or is dropped without a word, by which sample
# shuffling puts first, and a loop that asks `if "weight" in batch` trains without it. Lists and tuples of unequal lengths are
# an error. The type of a batch of numbers is the first sample's as well: [1, 2.5] is float32, [2.5, 1] is float64.
# Seen on 2026-11-30 with Python 3.11, num_workers 0 and 1.
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
cat >"$folder/batches.py" <<'PY'
import torch
from torch.utils.data import DataLoader

PLAIN, WEIGHTED = {"x": 1.0}, {"x": 2.0, "weight": 3.0}


def batches(samples, **options):
    return list(DataLoader(samples, batch_size=2, **options))


print(torch.__version__)
for workers in 0, 1:
    found = batches([PLAIN, WEIGHTED, PLAIN, WEIGHTED], num_workers=workers)
    print("workers:", workers, "weighted samples behind plain ones:", found)
    assert [list(batch) for batch in found] == [["x"], ["x"]]
    try:
        batches([WEIGHTED, PLAIN], num_workers=workers)
    except KeyError as error:
        print("the other way round:", type(error).__name__)
    else:
        raise AssertionError("no KeyError")
try:
    batches([(1.0,), (2.0, 3.0)])
except RuntimeError as error:
    print("tuples:", error)
else:
    raise AssertionError("no RuntimeError")
types = [batches(numbers)[0].dtype for numbers in ([1, 2.5], [2.5, 1])]
print("numbers:", types)
assert types == [torch.float32, torch.float64]
assert torch.__version__.split("+")[0] == "2.13.0"
PY
"$folder/venv/bin/python" "$folder/batches.py"
echo "as described"
