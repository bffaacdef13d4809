"""Boosts trees on handwritten digits, odd or even, and writes down their digest."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import brim.xgboost

rounds, out = int(sys.argv[1]), Path(sys.argv[2])
features, digit = load_digits(return_X_y=True)
features[features == 0] = np.nan  # ink is missing there
table = brim.xgboost.Rows(features, digit % 2, np.linspace(0.5, 2.0, len(digit)))
params = {
    "objective": "binary:logistic",
    "max_depth": 4,
    "subsample": 0.8,
    "colsample_bynode": 0.5,
    "seed": 7,
    "nthread": 1,
}
booster = brim.xgboost.train(params, table, rounds)
if os.environ.get("RANK", "0") == "0":
    out.write_text(hashlib.sha256(booster.save_raw("json")).hexdigest())
