#!/usr/bin/env bash
# xgboost 3.2.0: categories of a pandas column are cut at wrong places, once one of them has a letter beyond ASCII.
#
# XGBoost is given the texts of a categorical column as one string of UTF-8, and where each ends; the ends are counted in letters, not in bytes. So
# behind "Köln" all texts are shifted by a byte: as long as new data has the same categories as the training, nothing is seen. With
# fewer, "Rom" is another text than in training, which 3.2.0 takes for the next one in order, "Ulm": 3.0 in place of 2.0, without an
# error. pyarrow's dictionaries are cut at the right places, and so is pandas' in 3.4.1. Seen on 2026-11-30 with Python 3.11 and the package
# xgboost-cpu.
#
# Needs: python3.11 with venv. Fails if xgboost behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgboost-cpu==3.2.0 numpy==2.4.6 pandas==3.1.1
cat >"$folder/towns.py" <<'PY'
import pandas
import xgboost


def predictions(*seen):
    def table(towns):
        column = pandas.Categorical(towns, categories=sorted(set(towns)))
        return xgboost.DMatrix(pandas.DataFrame({"town": column}), enable_categorical=True)

    rows = table(list(seen) * 20)
    rows.set_label([0.0, 1.0, 2.0, 3.0] * 20)
    booster = xgboost.train({"eta": 1.0, "lambda": 0.0, "min_child_weight": 0.0}, rows, 3)
    return [booster.predict(table(towns)).tolist() for towns in (list(seen), ["Bonn", "Rom"])]


plain, beyond = predictions("Bonn", "Jena", "Rom", "Ulm"), predictions("Bonn", "Köln", "Rom", "Ulm")
print(xgboost.__version__, "Bonn, Jena, Rom, Ulm; Bonn, Rom:", plain, "Bonn, Köln, Rom, Ulm; Bonn, Rom:", beyond)
assert xgboost.__version__ == "3.2.0"
assert plain == [[0.0, 1.0, 2.0, 3.0], [0.0, 2.0]]
assert beyond == [[0.0, 1.0, 2.0, 3.0], [0.0, 3.0]]
PY
"$folder/venv/bin/python" "$folder/towns.py"
