"""Trees as the texts of XGBoost's model files, and one file of all of them. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from brim.errors import InternalError

_NUMBER = re.compile(rb'"id":\d+')


@dataclass(frozen=True, slots=True)
class BoostedRound:
    """One round of boosting.

    Args:
        trees: JSON of each, in the order of classes.
        values: of the metrics, in the order of tables and names.
    """

    trees: tuple[bytes, ...]
    values: tuple[float, ...] = ()


class _Model(msgspec.Struct):
    trees: list[msgspec.Raw]


class _GradientBooster(msgspec.Struct):
    model: _Model


class _Learner(msgspec.Struct):
    gradient_booster: _GradientBooster


class _ModelFile(msgspec.Struct):
    """A model file in JSON, as far as it is read."""

    learner: _Learner


class _RoundOnDisk(msgspec.Struct, array_like=True):
    trees: list[msgspec.Raw]
    values: tuple[float, ...]


_model_files = msgspec.json.Decoder(_ModelFile)
_rounds_on_disk = msgspec.json.Decoder(list[_RoundOnDisk])


def digest_of(rounds: Iterable[BoostedRound]) -> bytes:
    """Return a sha256 of rounds."""
    digest = hashlib.sha256()
    for boosted in rounds:
        digest.update(repr(boosted.values).encode())
        for tree in boosted.trees:
            digest.update(tree)
    return digest.digest()


def content_of(rounds: Iterable[BoostedRound]) -> bytes:
    """Return rounds as `rounds_in` reads them."""
    return msgspec.json.encode(
        [_RoundOnDisk(list(map(msgspec.Raw, boosted.trees)), boosted.values) for boosted in rounds]
    )


def rounds_in(content: bytes) -> list[BoostedRound]:
    """Return the rounds that `content_of` has written."""
    return [
        BoostedRound(tuple(map(bytes, boosted.trees)), boosted.values)
        for boosted in _rounds_on_disk.decode(content)
    ]


def trees_in(model: bytes | bytearray) -> list[bytes]:
    """Return the trees of a model file in JSON."""
    return list(map(bytes, _model_files.decode(model).learner.gradient_booster.model.trees))


def joined(
    skeleton: bytes | bytearray, rounds: Sequence[BoostedRound], base_scores: Sequence[float] = ()
) -> bytearray:
    """Return a model file of all rounds.

    Args:
        skeleton: a model file of the same objective and features.
        base_scores: one, or one a class; none: the skeleton's.
    """
    document: dict[str, Any] = msgspec.json.decode(skeleton)
    learner = document["learner"]
    if base_scores:
        scores = msgspec.json.encode(list(base_scores)).decode()
        learner["learner_model_param"]["base_score"] = scores
    model = learner["gradient_booster"]["model"]
    texts = [tree for boosted in rounds for tree in boosted.trees]
    model["trees"] = [_numbered(tree, place) for place, tree in enumerate(texts)]
    model["tree_info"] = [place for boosted in rounds for place in range(len(boosted.trees))]
    ends = [0]
    for boosted in rounds:
        ends.append(ends[-1] + len(boosted.trees))
    model["iteration_indptr"] = ends
    model["gbtree_model_param"]["num_trees"] = str(len(texts))
    return bytearray(msgspec.json.encode(document))


def _numbered(tree: bytes, place: int) -> msgspec.Raw:
    """The text of a tree with its number. To decode all of it would take ten times as long."""
    text, count = _NUMBER.subn(b'"id":%d' % place, tree)
    if count != 1:
        raise InternalError(f"a tree of xgboost has {count} fields of the name 'id'")
    return msgspec.Raw(text)
