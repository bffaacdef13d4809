"""One worker of the benchmark: trains by brim or by plain xgboost, and prints what it took, in JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import numpy as np
import xgboost
from xgboost.tracker import RabitTracker

import brim.xgboost


def by_brim(
    features: Any, label: Any, qid: Any, params: dict[str, Any], rounds: int
) -> xgboost.Booster:
    return brim.xgboost.train(params, brim.xgboost.Rows(features, label, qid=qid), rounds)


def plainly(
    features: Any, label: Any, qid: Any, params: dict[str, Any], rounds: int
) -> xgboost.Booster:
    """As xgboost's manual has it: a tracker, and a QuantileDMatrix of this worker's rows."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        matrix = xgboost.QuantileDMatrix(features, label, qid=qid)
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
        matrix = xgboost.QuantileDMatrix(features[rows], label[rows], qid=part_qid)
        booster = xgboost.train(params, matrix, rounds)
    if rank == 0:
        tracker.wait_for()
    return booster


def main() -> None:
    path, side, params, rounds = sys.argv[1:]
    arrays = np.load(path)
    features, label, qid = arrays["features"], arrays["label"], arrays.get("qid")
    train = {"brim": by_brim, "xgboost": plainly}[side]
    begun = time.process_time()
    booster = train(features, label, qid, json.loads(params), int(rounds))
    seconds = time.process_time() - begun
    digest = hashlib.sha256(booster.save_raw("json")).hexdigest()
    print(json.dumps({"seconds": seconds, "digest": digest}))


if __name__ == "__main__":
    main()
