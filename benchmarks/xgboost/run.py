"""Exact boosted trees beside plain xgboost: quality, processor time, and random lives. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import xgboost
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import brim.xgboost
from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.xgboost.tables import Table, carriers, census, digits, flights, movielens
from brim.wire.listening import take_port
from brim.xgboost.queries import queries_of
from brim.xgboost.ranking import ndcg_of

HERE = Path(__file__).parent
USUAL = {"max_depth": 6, "eta": 0.1, "max_bin": 256, "nthread": 1, "tree_method": "hist"}
LIFE_ROUNDS = 300
_END = 300.0  # seconds for one life's phase
VERSIONS = f"xgboost {xgboost.__version__}, numpy {np.__version__}"


def tables(path: Path | None, films: Path | None) -> dict[str, Table]:
    found = {"census": census(path)} if path else {}
    found |= {"films": movielens(films)} if films else {}
    return {**found, "flights": flights(), "carriers": carriers(), "digits": digits()}


# Quality ------------------------------------------------------------------------------------------


def score(one: Table, booster: Any, rows: NDArray[np.int64]) -> float:
    """The area under the curve, the share of squares that is explained, hits, or NDCG of the first ten."""
    features, label = one.features[rows], one.label[rows]
    table = xgboost.DMatrix(features, feature_types=one.types, enable_categorical=True)
    predicted = booster.predict(table)
    match one.params["objective"]:
        case "rank:ndcg":
            assert one.qid is not None
            queries = queries_of(one.qid[rows])
            found = ndcg_of(predicted, label, queries, top=10, is_exponential=True, empty=1.0)
            return float(found.mean())
        case "binary:logistic":
            return float(roc_auc_score(label, predicted))
        case "reg:squarederror":
            return float(1 - np.mean((predicted - label) ** 2) / np.var(label))
    return float(np.mean(predicted.argmax(axis=1) == label))


def halves(one: Table, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """70 % of the rows, or of the queries with their rows, and the others."""
    ids = np.arange(len(one.label)) if one.qid is None else one.qid
    order = np.random.default_rng(seed).permutation(np.unique(ids))
    is_train = np.isin(ids, order[: int(0.7 * len(order))])
    return np.flatnonzero(is_train), np.flatnonzero(~is_train)


def quality(report: Report, found: Mapping[str, Table], seeds: int, rounds: int) -> dict[str, Any]:
    rows, data = [], {}
    for name, one in found.items():
        for share in (1.0, 0.8):
            scores: dict[str, list[float]] = {"xgboost": [], "brim": []}
            for seed in range(seeds):
                train, test = halves(one, seed)
                params = {**USUAL, **one.params, "seed": seed}
                params |= {"subsample": share, "colsample_bytree": share}
                features, label = one.features[train], one.label[train]
                qid = None if one.qid is None else one.qid[train]
                options = {"feature_types": one.types, "enable_categorical": True}
                matrix = xgboost.QuantileDMatrix(features, label, qid=qid, **options)
                table_of_brim = brim.xgboost.Rows(
                    features, label, qid=qid, categories=one.categories
                )
                boosters = {
                    "xgboost": xgboost.train(params, matrix, rounds),
                    "brim": brim.xgboost.train(params, table_of_brim, rounds),
                }
                for side, booster in boosters.items():
                    scores[side].append(score(one, booster, test))
            differences = np.subtract(scores["brim"], scores["xgboost"])
            rows.append(
                (
                    name,
                    f"{share}",
                    f"{np.mean(scores['xgboost']):.5f}",
                    f"{np.mean(scores['brim']):.5f}",
                    f"{np.mean(differences):+.5f}",
                    f"{np.std(differences):.5f}",
                    f"{np.std(scores['xgboost']):.5f}",
                )
            )
            data[f"{name} {share}"] = scores
            report.say(" ".join(rows[-1]))
    head = ["table", "sampled", "xgboost", "brim", "difference", "its spread", "spread of xgboost"]
    report.add(
        f"{VERSIONS}; {rounds} rounds, {seeds} splits, each with its seed. Area under the curve "
        "(census), share of variance explained (flights, carriers), share of hits (digits), NDCG of the "
        "first ten (films), on the 30 % held out; spreads are standard deviations over the splits.\n\n"
        + table(head, rows)
    )
    return data


# Processor time -----------------------------------------------------------------------------------


def trained(
    path: Path, side: str, params: dict[str, Any], rounds: int, size: int
) -> dict[str, Any]:
    """Processor seconds of all workers together, and the digests."""
    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.xgboost.worker", str(path), side]
    command += [json.dumps(params), str(rounds)]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            command,
            cwd=repository(),
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    printed = [process.communicate(timeout=_END) for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(
            f"{side} with {size} workers: {[text[1].strip()[-2000:-1500] for text in printed]}"
        )
    # The tracker prints, too.
    found = [json.loads(text[0][text[0].rindex("{") :]) for text in printed]
    return {
        "seconds": sum(one["seconds"] for one in found),
        "digests": sorted({one["digest"] for one in found}),
    }


def cost(report: Report, found: Mapping[str, Table], times: int, rounds: int) -> dict[str, Any]:
    rows, data = [], {}
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    for name, one in found.items():
        path = folder / f"{name}.npz"
        arrays: dict[str, Any] = {"features": one.features, "label": one.label}
        arrays["categories"] = np.array(one.categories, np.int64)
        if one.qid is not None:
            arrays["qid"] = one.qid
        np.savez(path, **arrays)
        for sampled in (False, True):
            share = {"subsample": 0.8, "colsample_bytree": 0.8} if sampled else {}
            params = {**USUAL, **one.params, **share}
            brims: set[str] = set()
            for size in (1, 2):
                seconds: dict[str, list[float]] = {"xgboost": [], "brim": []}
                for _ in range(times):
                    for side, values in seconds.items():
                        result = report.attempt(trained, path, side, params, rounds, size)
                        values.append(result["seconds"])
                        if side == "brim":
                            brims.update(result["digests"])
                middle = {side: statistics.median(values) for side, values in seconds.items()}
                ratios = [b / x for b, x in zip(seconds["brim"], seconds["xgboost"], strict=True)]
                rows.append(
                    (
                        name,
                        "0.8" if sampled else "no",
                        size,
                        f"{middle['xgboost']:.2f}",
                        f"{middle['brim']:.2f}",
                        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
                    )
                )
                data[f"{name} {share} {size}"] = seconds
                report.say(" ".join(map(str, rows[-1])))
            if len(brims) != 1:
                raise RuntimeError(f"{name}: {len(brims)} digests")
    head = ["table", "sampled", "workers", "xgboost, s", "brim, s", "brim / xgboost"]
    report.add(
        f"{VERSIONS}; processor seconds of {rounds} rounds with their set-up, one thread a worker, all "
        f"workers together; medians of {times} turns. brim's digest is one for each table and sampling.\n\n"
        + table(head, rows)
    )
    return data


# Lives --------------------------------------------------------------------------------------------


def life(seed: int) -> tuple[str, str]:
    """Train through deaths and sizes that chance chooses, and return the story and the digest."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    job = HERE / "digits_job.py"
    sizes = [chance.randint(1, 4) for _ in range(2)]
    story = []
    for phase, size in enumerate(sizes):
        command = [sys.executable, "-m", "brim", "run", "--restart", "--workers", str(size)]
        command += [
            "--run-dir",
            str(folder / f"run-{phase}"),
            "--checkpoints",
            str(folder / "kept"),
        ]
        command += ["--", sys.executable, str(job), str(LIFE_ROUNDS), str(folder / "digest")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        story.append(f"{size} workers")
        for _ in range(chance.randint(0, 2)):
            rank = chance.randrange(size)
            time.sleep(chance.uniform(1.0, 5.0))
            if process.poll() is None and kill(folder / "kept", rank):
                story.append(f"kill rank {rank} behind {rounds_kept(folder)}")
        if phase == 0:
            time.sleep(chance.uniform(1.0, 5.0))
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                story.append(f"stop behind {rounds_kept(folder)}")
        process.wait(_END)
        if (folder / "digest").exists():
            break
    return "; ".join(story), (folder / "digest").read_text()


def kill(kept: Path, rank: int) -> bool:
    """Kill the command's process of this rank with SIGKILL, if it is there."""
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            is_ours = variables.get("BRIM_CHECKPOINTS") == str(kept)
            if is_ours and variables.get("RANK") == str(rank):
                process.kill()
                return True
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return False


def rounds_kept(folder: Path) -> int:
    names = [path.name for path in (folder / "kept").glob("xgboost-*/rounds-*")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def lives(report: Report, seeds: Sequence[int]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    alone = [sys.executable, str(HERE / "digits_job.py"), str(LIFE_ROUNDS), str(folder / "digest")]
    subprocess.run(alone, check=True, timeout=_END)
    expected = (folder / "digest").read_text()
    stories: dict[int, str] = {}
    broken: list[int] = []
    for seed in seeds:
        stories[seed], digest = life(seed)
        if digest != expected:
            broken.append(seed)
        report.say(f"seed {seed}: {stories[seed]}: {'BROKEN' if digest != expected else 'held'}")
    kills = sum(story.count("kill") for story in stories.values())
    stops = sum(story.count("stop") for story in stories.values())
    report.add(
        f"{VERSIONS}; {len(stories)} lives of {LIFE_ROUNDS} rounds on the digits, odd or even, rows and "
        f"columns sampled: {kills} processes killed with SIGKILL, {stops} runs stopped. "
        f"{len(stories) - len(broken)} of {len(stories)} end with the "
        f"digest of one process alone, {expected[:12]}."
    )
    return {"digest": expected, "broken": broken, "lives": stories}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["quality", "cost", "lives"])
    parser.add_argument("--census", type=Path, help="the Adult census income, in Parquet")
    parser.add_argument("--films", type=Path, help="the folder of MovieLens 100K, in Parquet")
    parser.add_argument("--table", default="", help="only this one; nothing is written")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    options = parser.parse_args()
    titles = {
        "quality": "Boosted trees: quality beside plain xgboost",
        "cost": "Boosted trees: processor time beside plain xgboost",
        "lives": "Boosted trees: random lives",
    }
    report = Report(HERE, titles[options.part], seed=0)
    rounds = 5 if options.quick else 100
    found: dict[str, Table] = {}
    if options.part != "lives" and not options.quick:
        found = tables(options.census, options.films)
        found = {name: one for name, one in found.items() if options.table in ("", name)}
    match options.part:
        case "quality":
            data = quality(report, found or {"digits": digits()}, 1 if options.quick else 5, rounds)
        case "cost":
            data = cost(report, found or {"digits": digits()}, 1 if options.quick else 5, rounds)
        case _:
            data = lives(report, range(1 if options.quick else 50))
    if not options.quick and not options.table:
        report.write(data, name=options.part)


if __name__ == "__main__":
    main()
