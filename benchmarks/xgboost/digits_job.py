"""Boosts trees on handwritten digits, and writes down their digest."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import brim.xgboost

rounds, out = int(sys.argv[1]), Path(sys.argv[2])
features, label = load_digits(return_X_y=True)
features[features == 0] = np.nan  # ink is missing there
table = brim.xgboost.Rows(features, label, np.linspace(0.5, 2.0, len(label)))
params = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "subsample": 0.8,
    "colsample_bynode": 0.5,
    "seed": 7,
    "nthread": 1,
}
booster = brim.xgboost.train(params, table, rounds)
digest = hashlib.sha256(booster.save_raw("json")).hexdigest()
if os.environ.get("RANK", "0") == "0":
    out.write_text(digest)
