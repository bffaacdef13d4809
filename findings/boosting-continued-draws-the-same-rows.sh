#!/usr/bin/env bash
# lightgbm and xgboost: training that continues draws the rows of its first trees again.
#
# With bagging (lightgbm: bagging_fraction, bagging_freq) or subsample (xgboost), each tree sees rows that are drawn for it. A
# run of 20 trees has 20 draws. The same run in two parts of 10, where the second one continues the model of the first
# (init_model, xgb_model) in another process with the same parameters, begins its generator anew: tree 11 sees the rows of
# tree 1, tree 12 those of tree 2, and so on. A job that is stopped often trains all of its trees on the rows of the first
# few. Nothing is said of it. What helps: another seed for each part. With a learning rate of nearly nothing, gradients stay
# as they are, so that a tree shows its rows: equal rows give equal trees.
# Seen on 2026-11-30 with Python 3.11, lightgbm 4.7.0 and xgboost-cpu 3.2.0, one thread.
#
# Needs: python3.11 with venv, some 300 MB. Fails if either behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages="lightgbm==4.7.0 xgboost-cpu==3.2.0 numpy==2.4.6 scipy==1.17.1"
# shellcheck disable=SC2086
"$folder/venv/bin/pip" install --quiet $packages
cat >"$folder/part.py" <<'PY'
"""Train trees, behind those of a model if there is one, and print what each tree asks."""

import json
import sys

import lightgbm
import numpy as np
import xgboost

library, count, before, behind = sys.argv[1:]
draw = np.random.default_rng(0)
rows = draw.normal(size=(400, 4))
labels = rows[:, 0] + draw.normal(size=400)


def split_of(node):
    """What a tree asks, without the values of its leaves."""
    if "split_feature" in node:  # lightgbm's
        return node["split_feature"], node["threshold"], *map(split_of, (node["left_child"], node["right_child"]))
    if "split_condition" in node:  # xgboost's
        return node["split"], node["split_condition"], *map(split_of, node["children"])
    return ()


if library == "lightgbm":
    options = {
        "objective": "regression", "boost_from_average": False, "learning_rate": 1e-9, "num_leaves": 8,
        "bagging_fraction": 0.5, "bagging_freq": 1, "seed": 7, "num_threads": 1, "deterministic": True, "verbosity": -1,
    }
    model = lightgbm.train(options, lightgbm.Dataset(rows, labels), int(count), init_model=before or None)
    trees = [split_of(tree["tree_structure"]) for tree in model.dump_model()["tree_info"]]
else:
    options = {
        "objective": "reg:squarederror", "base_score": 0.0, "learning_rate": 1e-9, "max_depth": 3, "subsample": 0.5,
        "seed": 7, "nthread": 1,
    }
    model = xgboost.train(options, xgboost.DMatrix(rows, labels), int(count), xgb_model=before or None)
    trees = [split_of(json.loads(text)) for text in model.get_dump(dump_format="json")]
model.save_model(behind)
print(json.dumps(trees))
PY
cat >"$folder/compare.py" <<'PY'
import json
import sys
from importlib.metadata import version

for library, package, expected in ("lightgbm", "lightgbm", "4.7.0"), ("xgboost", "xgboost-cpu", "3.2.0"):
    whole, parts = (json.load(open(f"{sys.argv[1]}/{library}-{kind}.trees")) for kind in ("whole", "parts"))
    different = [len({json.dumps(tree) for tree in trees}) for trees in (whole, parts)]
    print(library, version(package), "different trees of 20:", different[0], "in one run,", different[1], "in two parts")
    assert version(package) == expected
    assert len(whole) == len(parts) == different[0] == 20
    assert parts[:10] == whole[:10]
    assert parts[10:] == parts[:10]
PY
train() { (cd "$folder" && "$folder/venv/bin/python" part.py "$@"); }
for library in lightgbm xgboost; do
  train $library 20 "" whole.json >"$folder/$library-whole.trees"
  train $library 10 "" first.json >"$folder/first.trees"
  train $library 10 first.json second.json >"$folder/$library-parts.trees"
done
"$folder/venv/bin/python" "$folder/compare.py" "$folder"
echo "as described"
