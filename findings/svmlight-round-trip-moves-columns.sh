#!/usr/bin/env bash
# scikit-learn 1.9.1: load_svmlight_file moves the columns of a file that dump_svmlight_file has written.
#
# dump_svmlight_file counts columns from 0 (zero_based=True), load_svmlight_file guesses (zero_based="auto"): a file that has
# no value in column 0 is taken to count from 1. So with the defaults of both, a matrix whose first column is empty comes back
# with every column one place to the left, and one column narrower. A file of training data that has such a value and one of
# test data that has none, as sparse click data often are, are read differently, and n_features=, which makes the widths equal,
# hides it. Nothing is warned. What helps: zero_based=True in both calls; load_svmlight_files of both at once guesses once.
# Seen on 2026-11-30 with Python 3.11.
#
# Needs: python3.11 with venv, some 200 MB. Fails if scikit-learn behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1
cat >"$folder/trip.py" <<'PY'
import sys

import numpy as np
import sklearn
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

path = f"{sys.argv[1]}/rows.svm"


def returned(rows, **options):
    dump_svmlight_file(np.array(rows), np.zeros(len(rows)), path)
    return load_svmlight_file(path, **options)[0].toarray().tolist()


train, test = [[5.0, 1.0, 2.0], [0.0, 3.0, 4.0]], [[0.0, 1.0, 2.0], [0.0, 3.0, 4.0]]
print(sklearn.__version__, "with a value in column 0:", returned(train), "without one:", returned(test))
print("without one, n_features=3:", returned(test, n_features=3))
assert sklearn.__version__ == "1.9.1"
assert returned(train) == train
assert returned(test) == [[1.0, 2.0], [3.0, 4.0]]
assert returned(test, n_features=3) == [[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]]
assert returned(test, zero_based=True) == test
PY
"$folder/venv/bin/python" "$folder/trip.py" "$folder"
echo "as described"
