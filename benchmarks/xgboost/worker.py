"""One worker of the benchmark: trains by brim or by plain xgboost, and prints what it took, in JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import xgboost
from xgboost.tracker import RabitTracker

import brim.xgboost


def by_brim(
    arrays: Mapping[str, Any], qid: Any, params: dict[str, Any], rounds: int
) -> xgboost.Booster:
    categories = arrays["categories"].tolist()
    rows = brim.xgboost.Rows(arrays["features"], arrays["label"], qid=qid, categories=categories)
    return brim.xgboost.train(params, rows, rounds)


def plainly(
    arrays: Mapping[str, Any], qid: Any, params: dict[str, Any], rounds: int
) -> xgboost.Booster:
    """As xgboost's manual has it: a tracker, and a QuantileDMatrix of this worker's rows."""
    features, label, categories = arrays["features"], arrays["label"], arrays["categories"]
    types = ["c" if place in categories else "q" for place in range(features.shape[1])]
    options = {"feature_types": types, "enable_categorical": True} if len(categories) else {}
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        matrix = xgboost.QuantileDMatrix(features, label, qid=qid, **options)
        return xgboost.train(params, matrix, rounds)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        tracker = RabitTracker(n_workers=size, host_ip=address, port=port, sortby="task")
        tracker.start()
    else:
        time.sleep(3.0)  # for the tracker to listen
    rows = slice(rank * len(label) // size, (rank + 1) * len(label) // size)
    part_qid = None if qid is None else qid[rows]
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="rabit",
        dmlc_tracker_uri=address,
        dmlc_tracker_port=port,
        dmlc_task_id=str(rank),
        dmlc_retry=10,
    ):
        matrix = xgboost.QuantileDMatrix(features[rows], label[rows], qid=part_qid, **options)
        booster = xgboost.train(params, matrix, rounds)
    if rank == 0:
        tracker.wait_for()
    return booster


def main() -> None:
    path, side, params, rounds = sys.argv[1:]
    arrays = np.load(path)
    arrays = {name: arrays[name] for name in arrays.files}
    train = {"brim": by_brim, "xgboost": plainly}[side]
    begun = time.process_time()
    booster = train(arrays, arrays.get("qid"), json.loads(params), int(rounds))
    seconds = time.process_time() - begun
    digest = hashlib.sha256(booster.save_raw("json")).hexdigest()
    print(json.dumps({"seconds": seconds, "digest": digest}))


if __name__ == "__main__":
    main()
