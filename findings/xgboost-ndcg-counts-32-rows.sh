#!/usr/bin/env bash
# xgboost 3.2.0: the metric "ndcg" is that of the first 32 rows of each query, as "ndcg@32" is.
#
# The manual has "ndcg" for the whole list, and "ndcg@n" where a number is to cut it off. But "ndcg" has the value of "ndcg@32" for each objective
# and each number of pairs, also where pairs are drawn as "mean": the metric has kept the default of a parameter of the objective.
# With 200 rows a query it says 0.50 where the whole list has 0.82. "map" is cut off in the same way. Seen on 2026-11-30 with
# Python 3.11 and the package xgboost-cpu, also in 3.4.1. brim's "ndcg" counts all rows.
#
# Needs: python3.11 with venv. Fails if xgboost behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgboost-cpu==3.2.0 numpy==2.4.6
cat >"$folder/ndcg.py" <<'PY'
import numpy as np
import xgboost

chance = np.random.default_rng(0)
query = np.repeat(np.arange(5), 200)
features, relevance = chance.normal(size=(1000, 3)), chance.integers(0, 2, 1000)
rows = xgboost.DMatrix(features, relevance, qid=query)
print(xgboost.__version__)
assert xgboost.__version__ == "3.2.0"
for params in (
    {"objective": "rank:ndcg"},
    {"objective": "rank:ndcg", "lambdarank_num_pair_per_sample": 7},
    {"objective": "rank:ndcg", "lambdarank_pair_method": "mean"},
    {"objective": "reg:squarederror"},
):
    metrics = [f"{name}{end}" for name in ("ndcg", "map") for end in ("", "@32", "@200")]
    results = {}
    xgboost.train({**params, "eval_metric": metrics}, rows, 1, evals=[(rows, "rows")], evals_result=results, verbose_eval=False)
    found = {metric: values[0] for metric, values in results["rows"].items()}
    print(params, found)
    for name in ("ndcg", "map"):
        assert found[name] == found[f"{name}@32"] != found[f"{name}@200"]
PY
"$folder/venv/bin/python" "$folder/ndcg.py"
