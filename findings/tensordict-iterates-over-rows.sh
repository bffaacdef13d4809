#!/usr/bin/env bash
# tensordict 0.15.3: a TensorDict is a Mapping that iterates over its rows.
#
# isinstance(td, collections.abc.Mapping) is True, and keys(), values(), items() and td[key] are those of a mapping. But
# `for key in td` yields TensorDicts, one for each row, and raises TypeError where there is no batch dimension, as in a single
# sample; len(td) is the number of rows, and not of keys. So code that walks over any mapping by `for key in mapping`, or by
# len, as the language has it, fails on a sample or takes rows for keys, where dict(td) and f(**td) work. Collating functions,
# caches and hashes of samples are of that kind.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if tensordict behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 tensordict==0.15.3
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 tensordict==0.15.3
fi
cat >"$folder/walk.py" <<'PY'
from collections.abc import Mapping
from importlib.metadata import version

import torch
from tensordict import TensorDict

rows = TensorDict({"inputs": torch.zeros(3, 2), "target": torch.zeros(3)}, batch_size=[3])
sample = rows[0]
kinds = {type(part).__name__ for part in rows}
try:
    found = list(sample)
except TypeError as error:
    found = f"{type(error).__name__}: {error}"
print(version("tensordict"), "keys", list(rows.keys()), "iterates over", kinds, "length", len(rows))
print("a sample:", found)
assert version("tensordict") == "0.15.3"
assert isinstance(rows, Mapping) and isinstance(sample, Mapping)
assert list(sample.keys()) == ["inputs", "target"] == list(dict(sample))
assert (kinds, len(rows)) == ({"TensorDict"}, 3)
assert isinstance(found, str) and found.startswith("TypeError")
PY
"$folder/venv/bin/python" "$folder/walk.py"
echo "as described"
