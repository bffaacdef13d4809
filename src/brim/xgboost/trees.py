"""Trees as the bytes of XGBoost's model files, and one file of all of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from brim.errors import InternalError
from brim.xgboost.ubjson import decoded, encoded, number, text


@dataclass(frozen=True, slots=True)
class BoostedRound:
    """One round of boosting.

    Args:
        trees: UBJSON of each, in the order of classes, without a tree's number: that depends on the
            Booster.
        values: of the metrics, in the order of tables and names.
    """

    trees: tuple[bytes, ...]
    values: tuple[float, ...] = ()


_rounds = msgspec.msgpack.Decoder(list[BoostedRound])


def digest_of(rounds: Iterable[BoostedRound]) -> bytes:
    """Return a sha256 of rounds."""
    digest = hashlib.sha256()
    for boosted in rounds:
        digest.update(repr(boosted.values).encode())
        for tree in boosted.trees:
            digest.update(tree)
    return digest.digest()


def content_of(rounds: Sequence[BoostedRound]) -> bytes:
    """Return rounds as `rounds_in` reads them."""
    return msgspec.msgpack.encode(rounds)


def rounds_in(content: bytes) -> list[BoostedRound]:
    """Return the rounds that `content_of` has written."""
    return _rounds.decode(content)


def trees_in(model: bytes | bytearray) -> list[bytes]:
    """Return the trees of a model file in UBJSON, without their numbers."""
    trees = decoded(model)["learner"]["gradient_booster"]["model"]["trees"]
    if not all(tree.pop("id", None) for tree in trees):
        raise InternalError("a tree of xgboost has no field of the name 'id'")
    return [bytes(encoded(tree)) for tree in trees]


def joined(
    skeleton: bytes | bytearray, rounds: Sequence[BoostedRound], base_scores: Sequence[float] = ()
) -> bytearray:
    """Return a model file of all rounds, in UBJSON.

    Args:
        skeleton: a model file of the same objective and features.
        base_scores: one, or one a class; none: the skeleton's.
    """
    document: dict[str, Any] = decoded(skeleton)
    learner = document["learner"]
    if base_scores:
        scores = msgspec.json.encode(list(base_scores)).decode()
        learner["learner_model_param"]["base_score"] = text(scores)
    model = learner["gradient_booster"]["model"]
    trees = [tree for boosted in rounds for tree in boosted.trees]
    model["trees"] = [_numbered(tree, place) for place, tree in enumerate(trees)]
    places = [place for boosted in rounds for place in range(len(boosted.trees))]
    model["tree_info"] = list(map(number, places))
    ends = [0]
    for boosted in rounds:
        ends.append(ends[-1] + len(boosted.trees))
    model["iteration_indptr"] = list(map(number, ends))
    model["gbtree_model_param"]["num_trees"] = text(str(len(trees)))
    return encoded(document)


def _numbered(tree: bytes, place: int) -> bytearray:
    """The bytes of a tree with its number as the first field."""
    return encoded({"id": number(place)})[:-1] + tree[1:]
