#!/usr/bin/env bash
# litdata 0.2.76: all iterators over a StreamingDataset share one place.
#
# iter(dataset) returns the data set itself, and begins it again. So a second iterator takes the first one back to the start:
# zip(dataset, dataset) pairs each sample with its successor in place of with itself and ends after half of them, and a loop
# over the data set within a loop over it, such as an evaluation on the training data, leaves the outer one with nothing more
# to read. torch's IterableDataset says that __iter__ returns an iterator of samples; those of most data sets are separate.
# Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU; 8 samples in local chunks, not shuffled.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if litdata behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$folder/venv/bin/python" torch==2.13.0 litdata==0.2.76
else
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 litdata==0.2.76
fi
cat >"$folder/read.py" <<'PY'
import sys
from importlib.metadata import version

from litdata import StreamingDataset, optimize


def sample(index):
    return {"index": index}


if __name__ == "__main__":
    folder = f"{sys.argv[1]}/chunks"
    optimize(fn=sample, inputs=list(range(8)), output_dir=folder, chunk_size=4, num_workers=1)
    dataset = StreamingDataset(folder)
    once = [row["index"] for row in dataset]
    pairs = [(first["index"], second["index"]) for first, second in zip(dataset, dataset)]
    outer = []
    for row in dataset:
        outer.append(row["index"])
        if len(outer) == 1:
            inner = [other["index"] for other in dataset]
    print(version("litdata"), "once", once, "pairs", pairs, "outer loop", outer, "inner", inner)
    assert version("litdata") == "0.2.76"
    assert iter(dataset) is dataset
    assert once == inner == list(range(8)), once
    assert pairs == [(0, 1), (2, 3), (4, 5), (6, 7)], pairs
    assert outer == [0], outer
PY
"$folder/venv/bin/python" "$folder/read.py" "$folder"
echo "as described"
