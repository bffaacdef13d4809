"""Digests of a job's state.

By them its members find out that they agree, or the members that differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import xxhash
from torch import Tensor

from brim.tensors.raw import in_c_order, memory_of
from brim.train.state.flattening import flatten

Digests = dict[str, bytes]  # of each leaf of a state, by its path
_PLAIN = (bool, int, float, str, type(None))


def digests_of(tree: Any) -> Digests:
    """The digest of each leaf of a state.

    Args:
        tree: dicts, lists and tuples, with tensors and plain data at the leaves.

    >>> import torch
    >>> sorted(digests_of({"model": {"weight": torch.zeros(2)}, "optimizer": {"lr": 0.1}}))
    ["model 'weight'", "optimizer 'lr'"]
    """
    return {_named(path): _digest(leaf) for path, leaf in _leaves(tree, ())}


def root_of(digests: Digests) -> bytes:
    """One digest, of 16 bytes, of them all."""
    whole = xxhash.xxh3_128()
    for path, digest in sorted(digests.items()):
        whole.update(path.encode())
        whole.update(digest)
    return whole.digest()


def describe_difference(tables: Sequence[Mapping[str, bytes]], members: Sequence[str]) -> str:
    """Say in which leaf members differ, and from most; empty where they agree.

    Args:
        tables: the digests of each member.
        members: their names, in the same order.

    >>> describe_difference([{"step": b"1"}, {"step": b"2"}, {"step": b"1"}], ["w1", "w2", "w3"])
    'step differs between w2 and w1, w3'
    """
    paths = dict.fromkeys(path for table in tables for path in table)
    different = [path for path in paths if len({table.get(path) for table in tables}) > 1]
    if not different:
        return ""
    first = different[0]
    usual, _ = Counter(table.get(first, b"") for table in tables).most_common(1)[0]
    odd = [
        name for name, table in zip(members, tables, strict=True) if table.get(first, b"") != usual
    ]
    rest = [name for name in members if name not in odd]
    others_note = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
    return f"{first}{others_note} differs between {', '.join(odd)} and {', '.join(rest)}"


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    match node:
        case dict():
            for key, value in node.items():
                yield from _leaves(value, (*path, str(key)))
        case list() | tuple() if any(
            isinstance(item, (dict, list, tuple, Tensor)) for item in node
        ):
            for index, value in enumerate(node):
                yield from _leaves(value, (*path, str(index)))
        case _:
            yield path, node


def _named(path: tuple[str, ...]) -> str:
    head, *rest = path
    return f"{head} {'.'.join(rest)!r}" if rest else head


def _digest(leaf: Any) -> bytes:
    """The digest of a leaf: of its values, independent of their order in memory."""
    if isinstance(leaf, _PLAIN):
        return xxhash.xxh3_64_digest(repr(leaf).encode())
    skeleton, tensors = flatten(leaf, strides=False)
    digest = xxhash.xxh3_64(json.dumps(skeleton))
    for tensor in tensors:
        host = in_c_order(tensor)
        digest.update(f"{host.dtype} {tuple(host.shape)}")
        digest.update(memory_of(host))
    return digest.digest()
