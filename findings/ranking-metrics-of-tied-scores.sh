#!/usr/bin/env bash
# lightgbm 4.7.0, xgboost 3.2.0, torchmetrics 1.9.0: ndcg and map of tied scores are those of the order of the rows.
#
# A model that gives each row the same score ranks nothing. For 50 queries of 20 rows, one of them relevant, chance has a map
# of 0.18. lightgbm and xgboost sort rows by their scores, and leave those that tie in the order of the data: "ndcg" and "map"
# are a perfect 1.0 where a file has the relevant row of each query first, as those that add negatives to a click often have
# it, and 0 where it is last. A model that has collapsed then scores best, and early stopping keeps it. torchmetrics'
# RetrievalMRR says 0.51 and 0.20: its sort leaves ties in no order at all, and the hit rate and the precision at 1, which are
# the same number where one row is relevant, are 0 and 0.12. xgboost's "auc", torchmetrics' RetrievalNormalizedDCG and
# scikit-learn's ndcg_score average over ties, and are alike in both orders. What helps: shuffle the rows of each query.
# Seen on 2026-11-30 with Python 3.11, torch 2.13.0 and the package xgboost-cpu, on a CPU.
#
# Needs: python3.11 with venv, some 6 GB for torch and the others. Fails if one of them behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages="lightgbm==4.7.0 xgboost-cpu==3.2.0 torchmetrics==1.9.0 torch==2.13.0 scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1"
if command -v uv >/dev/null; then
  # shellcheck disable=SC2086
  uv pip install --quiet --python "$folder/venv/bin/python" $packages
else
  # shellcheck disable=SC2086
  "$folder/venv/bin/pip" install --quiet $packages
fi
cat >"$folder/ties.py" <<'PY'
import lightgbm
import numpy as np
import torch
import torchmetrics
import xgboost
from sklearn.metrics import ndcg_score
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR, RetrievalNormalizedDCG, RetrievalPrecision

QUERIES, ROWS = 50, 20
features = np.zeros((QUERIES * ROWS, 1))  # nothing to learn from: all scores are the same
first = np.zeros((QUERIES, ROWS), dtype=int)
first[:, 0] = 1


def of_lightgbm(labels):
    rows = lightgbm.Dataset(features, labels, group=[ROWS] * QUERIES, params={"verbose": -1})
    found = {}
    params = {"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": [5], "verbose": -1}
    lightgbm.train(params, rows, 1, valid_sets=[rows], callbacks=[lightgbm.record_evaluation(found)])
    return {name: float(values[0]) for name, values in found["training"].items()}


def of_xgboost(labels):
    rows = xgboost.DMatrix(features, labels, qid=np.repeat(np.arange(QUERIES), ROWS))
    found = {}
    params = {"objective": "rank:ndcg", "eval_metric": ["ndcg@5", "map@5", "auc"]}
    xgboost.train(params, rows, 1, evals=[(rows, "rows")], evals_result=found, verbose_eval=False)
    return {name: values[0] for name, values in found["rows"].items()}


def of_torchmetrics(labels):
    scores, target = torch.full((len(labels),), 0.5), torch.tensor(labels).bool()
    queries = torch.arange(QUERIES).repeat_interleave(ROWS)
    metrics = {
        "mrr": RetrievalMRR(),
        "hit@1": RetrievalHitRate(top_k=1),
        "precision@1": RetrievalPrecision(top_k=1),
        "ndcg": RetrievalNormalizedDCG(),
    }
    return {name: round(float(metric(scores, target, indexes=queries)), 4) for name, metric in metrics.items()}


print("lightgbm", lightgbm.__version__, "xgboost", xgboost.__version__, "torchmetrics", torchmetrics.__version__)
print("chance: map", round(sum(1 / rank for rank in range(1, ROWS + 1)) / ROWS, 4))
results = {}
for order, labels in (("first", first), ("last", first[:, ::-1])):
    flat = np.ascontiguousarray(labels).ravel()
    results[order] = of_lightgbm(flat), of_xgboost(flat), of_torchmetrics(flat), ndcg_score(labels, np.ones(labels.shape))
    print(f"relevant rows {order}:", *results[order], sep="\n  ")
for of_first, of_last in (
    (results["first"][0], results["last"][0]),
    (results["first"][1], results["last"][1]),
):
    assert (of_first["ndcg@5"], of_first["map@5"]) == (1, 1)
    assert (of_last["ndcg@5"], of_last["map@5"]) == (0, 0)
assert results["first"][1]["auc"] == results["last"][1]["auc"] == 0.5
of_first, of_last = results["first"][2], results["last"][2]
assert of_first["mrr"] > 0.4 and of_last["mrr"] < 0.2
assert of_first["hit@1"] != of_first["precision@1"]
assert of_first["ndcg"] == of_last["ndcg"]
assert np.isclose(results["first"][3], results["last"][3])
assert (lightgbm.__version__, xgboost.__version__, torchmetrics.__version__) == ("4.7.0", "3.2.0", "1.9.0")
PY
"$folder/venv/bin/python" "$folder/ties.py"
echo "as described"
