#!/usr/bin/env bash
# webdataset 1.0.2: shardshuffle= gives the same order of shards in each epoch, and shuffle() another in each process.
#
# WebDataset(urls, shardshuffle=100) gives each instance a seed, and begins the shuffle of its shards with that seed each
# time it is iterated: all epochs read the shards in one order. The shuffle of samples, .shuffle(100), is the other way
# round: it is seeded by the time and the process, so random.seed does not make it repeatable, and neither does
# WebDataset(seed=), which the shuffle of shards takes alone. A resumed run can skip the shards that it has seen, but not
# the samples. What helps: .shuffle(100, seed=epoch) on a pipeline that is made for each epoch.
# Seen on 2026-11-30 with Python 3.11; 8 shards of 5 samples.
#
# Needs: python3.11 with venv, some 100 MB. Fails if webdataset behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2 numpy==2.4.6
cat >"$folder/epochs.py" <<'PY'
import random
import sys
from importlib.metadata import version

import webdataset

folder = sys.argv[1]
for shard in range(8):
    with webdataset.TarWriter(f"{folder}/{shard}.tar") as writer:
        for place in range(5):
            writer.write({"__key__": f"{shard}-{place}", "txt": "text"})
urls = [f"{folder}/{shard}.tar" for shard in range(8)]


def shards(dataset):
    return list(dict.fromkeys(sample["__key__"][0] for sample in dataset))


def samples(**options):
    random.seed(3)
    dataset = webdataset.WebDataset(urls, shardshuffle=False, **options).shuffle(40)
    return [sample["__key__"] for sample in dataset]


random.seed(3)
dataset = webdataset.WebDataset(urls, shardshuffle=100)
epochs = [shards(dataset) for _ in range(4)]
repeated = [samples(seed=3) == samples(seed=3) for _ in range(4)]
print(version("webdataset"), "shards by epoch:", ["".join(epoch) for epoch in epochs], "samples repeated:", repeated)
assert version("webdataset") == "1.0.2"
assert epochs[0] != list("01234567")
assert all(epoch == epochs[0] for epoch in epochs)
assert not any(repeated)
PY
"$folder/venv/bin/python" "$folder/epochs.py" "$folder"
echo "as described"
