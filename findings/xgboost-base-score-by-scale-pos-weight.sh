#!/usr/bin/env bash
# xgboost 3.2.0: base_score of binary:logistic is another estimate once scale_pos_weight is not 1, and jumps.
#
# With scale_pos_weight 1 training starts at the weighted mean of the labels, here 0.75. With 1.001 it starts at 0.731: one
# step of Newton from 0.5, which is not the mean of the labels at any weight near 1. And scale_pos_weight 3 is not the same as a
# weight of 3 for the rows whose label is 1, although both give the same gradients: the one starts at 0.832, the other at 0.9, so
# the trees differ. Seen on 2026-11-29 with Python 3.11 and the package xgboost-cpu. brim starts at the weighted mean in all cases.
#
# Needs: python3.11 with venv. Fails if xgboost behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgboost-cpu==3.2.0 numpy==2.4.6
cat >"$folder/base_score.py" <<'PY'
import json

import numpy as np
import xgboost

features = np.arange(100.0).reshape(-1, 1)
label = (np.arange(100) % 4 > 0).astype(np.float32)


def base_score(factor=1.0, weight=None):
    table = xgboost.DMatrix(features, label, weight=weight)
    booster = xgboost.train({"objective": "binary:logistic", "scale_pos_weight": factor}, table, 1)
    model = json.loads(bytes(booster.save_raw("json")))
    return float(model["learner"]["learner_model_param"]["base_score"].strip("[]"))


found = [base_score(), base_score(1.001), base_score(3.0), base_score(weight=np.where(label == 1, 3.0, 1.0))]
print(xgboost.__version__, "factor 1, 1.001 and 3, and a weight of 3:", [round(score, 4) for score in found])
assert xgboost.__version__ == "3.2.0"
assert np.allclose(found, [0.75, 0.7312, 0.8320, 0.9], atol=1e-3), found
PY
"$folder/venv/bin/python" "$folder/base_score.py"
