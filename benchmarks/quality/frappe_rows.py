"""Frappe's split `Frappe_x1`: the rows that BARS trains, validates and tests on.

The files `train.libsvm`, `valid.libsvm` and `test.libsvm` of the folder `data/frappe` in
github.com/WeiyuCheng/AFN-AAAI-20 are that split. A line is a label, 0 or 1, and ten ids of 5,382, one of each field:

    1 266:1 1244:1 5042:1 5049:1 5054:1 5055:1 5058:1 5062:1 5074:1 5149:1

Run as a program, this makes a `train.libsvm` from the two others and the log they were drawn from: the
rows and contexts of the training split are those of the log that the others lack, and the apps of its
negatives, which no file of the log has, are drawn anew in the same way. By what all 57,983 negatives
of the two others show, that is any app that the user never used, each as likely.

    python -m benchmarks.quality.frappe_rows --log frappe.csv --split FOLDER

`frappe.csv` is in github.com/irecsys/CARSKit, context-aware_data_sets/Mobile_Frappe.zip. Its terms allow
research, and no redistribution.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SPLITS = ("train", "valid", "test")
IDS = 5382
SEED = 1
_NEGATIVES = 2  # of each positive row of all splits together
_COLUMNS = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather",
            "country", "city")  # fmt: skip


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Return the ids [N, 10] and the labels [N] of a split's file."""
    lines = [line.split() for line in path.read_text().splitlines()]
    ids = [[int(word.partition(":")[0]) for word in words] for _, *words in lines]
    return torch.tensor(ids), torch.tensor([float(label) for label, *_ in lines])


def remade(log: Path, folder: Path) -> list[str]:
    """Return the lines of a training split, in a random order.

    Args:
        log: `frappe.csv`.
        folder: with `valid.libsvm` and `test.libsvm`.

    Raises:
        ValueError: the log is not the one that they were drawn from.
    """
    used = _ids_of(log)
    taken_positives, taken_contexts = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for split in SPLITS[1:]:
        ids, labels = read(folder / f"{split}.libsvm")
        for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
            user, item, *context = row
            if label:
                taken_positives[user, item, *context] += 1
            else:
                taken_contexts[user, *context] += 1
    positives = Counter(used)
    contexts = Counter((user, *context) for user, _, *context in used)
    for context in contexts:
        contexts[context] *= _NEGATIVES
    for counts, taken in ((positives, taken_positives), (contexts, taken_contexts)):
        counts.subtract(taken)
        if min(counts.values()) < 0:
            raise ValueError(f"{log} is not the log that the rows of {folder} were drawn from")
    lines = [_line(1, row) for row in positives.elements()]
    random = np.random.default_rng(SEED)
    items = sorted({row[1] for row in used})
    items_of_user = defaultdict(set)
    for user, item, *_ in used:
        items_of_user[user].add(item)
    for user, *context in contexts.elements():
        while (item := int(random.choice(items))) in items_of_user[user]:
            pass
        lines.append(_line(0, (user, item, *context)))
    random.shuffle(lines)
    return lines


def _ids_of(log: Path) -> list[tuple[int, ...]]:
    """The rows of the log as ids: values in the order in which they come, field by field."""
    with log.open(encoding="utf-8", newline="") as file:
        rows = [[row[name] for name in _COLUMNS] for row in csv.DictReader(file, delimiter="\t")]
    begin, columns = 0, []
    for column in zip(*rows, strict=True):
        places = {value: place for place, value in enumerate(dict.fromkeys(column), begin)}
        columns.append([places[value] for value in column])
        begin += len(places)
    return list(zip(*columns, strict=True))


def _line(label: int, row: tuple[int, ...]) -> str:
    return " ".join([str(label), *(f"{id}:1" for id in row)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="frappe.csv")
    parser.add_argument("--split", type=Path, required=True, help="with the two other files")
    arguments = parser.parse_args()
    lines = remade(arguments.log, arguments.split)
    (arguments.split / "train.libsvm").write_text("\n".join(lines) + "\n")
    print(f"{arguments.split}/train.libsvm: {len(lines):,} rows")


if __name__ == "__main__":
    main()
