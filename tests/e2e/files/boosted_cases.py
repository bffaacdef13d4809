"""Boosts a few trees with each of many parameters, and writes down the digests and metrics of all."""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import brim.xgboost

folder = Path(sys.argv[1])
features, digit = load_digits(return_X_y=True)
features = features[:, 10:50]
features[features == 0] = np.nan  # ink is missing there
query = np.arange(len(digit)) // 12
weight = np.linspace(0.5, 2.0, len(digit))
ink = {"categories": (10, 17, 26)}
binary, ranked = {"objective": "binary:logistic"}, {"objective": "rank:ndcg"}
several = {"objective": "multi:softprob", "num_class": 10}
CASES = {
    "leaf by leaf": (binary | {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0}, {}),
    "leaf by leaf, classes": (several | {"grow_policy": "lossguide", "max_leaves": 5}, {}),
    "monotone": (binary | {"monotone_constraints": {"f3": 1, "f20": -1}}, {}),
    "apart": (binary | {"interaction_constraints": [["f1", "f2"], ["f3", "f20", "f21"]]}, {}),
    "one category": (binary | {"max_cat_to_onehot": 40}, ink),
    "sets of categories": (several | {"max_cat_to_onehot": 2, "max_cat_threshold": 5}, ink),
    "categories leaf by leaf": (binary | {"grow_policy": "lossguide", "max_leaves": 9}, ink),
    "ranks": (ranked | {"subsample": 0.8, "colsample_bylevel": 0.6}, {"qid": query}),
    "pairs": (ranked | {"objective": "rank:pairwise", "grow_policy": "lossguide"}, {"qid": query}),
    "ranks of categories": (ranked | {"ndcg_exp_gain": False}, {"qid": query} | ink),
    "regularized": (binary | {"alpha": 0.1, "gamma": 0.5, "max_delta_step": 0.7}, {}),
}
found = {}
for name, (params, options) in CASES.items():
    label = digit if "num_class" in params else digit % 4 if "qid" in options else digit % 2
    names = [f"f{number}" for number in range(features.shape[1])]
    own_weight = weight[query * 12] if "qid" in options else weight
    table = brim.xgboost.Rows(features, label, own_weight, names=names, **options)
    results: dict[str, dict[str, list[float]]] = {}
    booster = brim.xgboost.train(
        {"max_depth": 4, "nthread": 1, "seed": 3} | params,
        table,
        4,
        evals=[(table, "same")],
        early_stopping_rounds=2,
        evals_result=results,
    )
    digest = hashlib.sha256(booster.save_raw("json")).hexdigest()
    found[name] = [digest, booster.best_iteration, results]
place = f"{os.environ.get('RANK', 0)}-{os.environ.get('WORLD_SIZE', 1)}"
(folder / f"cases-{place}").write_text(json.dumps(found))
