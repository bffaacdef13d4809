#!/usr/bin/env bash
# xgboost 3.2.0: a text that training has not seen is predicted as another category, instead of an error.
#
# From 3.1 on a model encodes the categories of new data by their texts. A text that training has not seen has no code, and is an error; but in
# 3.2.0 only if it is behind all others in the order of bytes. Any other unseen text silently takes the prediction of the next category in that
# order: a model of Bern, Bonn and Rom takes "Aachen" for Bern, and "Paris" for Rom. 3.4.1 raises the error for all of them. Seen on
# 2026-11-30 with Python 3.11, the package xgboost-cpu, and pyarrow's dictionaries as categories. brim's guide has unseen texts
# replaced before a prediction.
#
# Needs: python3.11 with venv. Fails if xgboost behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgboost-cpu==3.2.0 numpy==2.4.6 pyarrow==26.0.1
cat >"$folder/unseen.py" <<'PY'
import pyarrow
import xgboost

SEEN = ["Bern", "Bonn", "Rom"]


def table(towns):
    texts = sorted(set(towns))
    codes = pyarrow.array([texts.index(town) for town in towns], pyarrow.int32())
    return pyarrow.table({"town": pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(texts))})


rows = xgboost.DMatrix(table(SEEN * 20), [0.0, 1.0, 2.0] * 20, enable_categorical=True)
booster = xgboost.train({"eta": 1.0, "lambda": 0.0, "min_child_weight": 0.0}, rows, 3)


def prediction(town):
    try:
        return float(booster.predict(xgboost.DMatrix(table([town]), enable_categorical=True))[0])
    except xgboost.core.XGBoostError as error:
        assert "Found a category not in the training set" in str(error)
        return "an error"


found = {town: prediction(town) for town in [*SEEN, "Aachen", "Bo", "Paris", "Zug"]}
print(xgboost.__version__, found)
assert xgboost.__version__ == "3.2.0"
assert found == {"Bern": 0.0, "Bonn": 1.0, "Rom": 2.0, "Aachen": 0.0, "Bo": 1.0, "Paris": 2.0, "Zug": "an error"}
PY
"$folder/venv/bin/python" "$folder/unseen.py"
