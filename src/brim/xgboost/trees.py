"""Trees as the texts of XGBoost's model files, and one file of all of them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Round:
    """One round of boosting.

    Args:
        trees: JSON of each, in the order of classes.
        values: of the metrics, in the order of tables and names.
    """

    trees: tuple[str, ...]
    values: tuple[float, ...] = ()


def digest_of(rounds: Iterable[Round]) -> bytes:
    """Return a sha256 of rounds."""
    digest = hashlib.sha256()
    for boosted in rounds:
        digest.update(repr(boosted.values).encode())
        for tree in boosted.trees:
            digest.update(tree.encode())
    return digest.digest()


def content_of(rounds: Sequence[Round]) -> bytes:
    """Return rounds as `rounds_in` reads them."""
    return json.dumps([(boosted.trees, boosted.values) for boosted in rounds]).encode()


def rounds_in(content: bytes) -> list[Round]:
    """Return the rounds that `content_of` has written."""
    return [Round(tuple(trees), tuple(values)) for trees, values in json.loads(content)]


def trees_in(model: bytes | bytearray) -> list[str]:
    """Return the trees of a model file in JSON."""
    found: list[dict[str, Any]] = json.loads(model)["learner"]["gradient_booster"]["model"]["trees"]
    for tree in found:
        tree["id"] = 0  # its place among others says nothing of it
    return [json.dumps(tree, separators=(",", ":")) for tree in found]


def joined(
    skeleton: bytes | bytearray, rounds: Sequence[Round], base_scores: Sequence[float] = ()
) -> bytearray:
    """Return a model file of all rounds.

    Args:
        skeleton: a model file of the same objective and features.
        base_scores: one, or one a class; none: the skeleton's.
    """
    document: dict[str, Any] = json.loads(skeleton)
    learner = document["learner"]
    if base_scores:
        learner["learner_model_param"]["base_score"] = json.dumps(list(base_scores))
    model = learner["gradient_booster"]["model"]
    trees = [json.loads(tree) for boosted in rounds for tree in boosted.trees]
    for place, tree in enumerate(trees):
        tree["id"] = place
    model["trees"] = trees
    model["tree_info"] = [place for boosted in rounds for place in range(len(boosted.trees))]
    ends = [0]
    for boosted in rounds:
        ends.append(ends[-1] + len(boosted.trees))
    model["iteration_indptr"] = ends
    model["gbtree_model_param"]["num_trees"] = str(len(trees))
    return bytearray(json.dumps(document).encode())
