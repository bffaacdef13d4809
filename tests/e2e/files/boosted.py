"""Boosts trees on handwritten digits, slowly while there is a file `slow`, and writes down their digest."""

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import brim.xgboost
from brim.xgboost.training import _Training

rounds, folder, classes = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
step = _Training._step


def step_slowly(*arguments):
    if (folder / "slow").exists():
        time.sleep(0.2)
    step(*arguments)


_Training._step = step_slowly
features, digit = load_digits(return_X_y=True)
features[features == 0] = np.nan  # ink is missing there
label, weight = digit % (classes or 4), np.linspace(0.5, 2.0, len(digit))
qid, categories = None, ()
objective = {"objective": "binary:logistic"}
if classes > 2:
    objective = {"objective": "multi:softprob", "num_class": classes}
elif classes == 0:  # ranks the digits of each dozen, by shades of ink as categories
    objective = {"objective": "rank:ndcg"}
    qid = np.arange(len(digit)) // 12
    weight = weight[qid * 12]
    categories = (20, 27, 36, 43)
table = brim.xgboost.Rows(features, label, weight, qid=qid, categories=categories)
params = {"max_depth": 4, "subsample": 0.8, "colsample_bynode": 0.5, "seed": 7, "nthread": 1}
booster = brim.xgboost.train(objective | params, table, rounds)
digest = hashlib.sha256(booster.save_raw("json")).hexdigest()
place = f"{os.environ.get('RANK', 0)}-{os.environ.get('WORLD_SIZE', 1)}"
(folder / f"digest-{place}").write_text(digest)
