"""An optimizer takes a state back as it was, bit for bit and in the same order in memory.

`load_state_dict` of torch alone does not do that: it casts what it finds to the type of the
parameter, makes text of iterators over text, and fails at named tuples and arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from brim.train.state.flattening import copy_of, is_record_of_values


class _Sealed:
    """A part of a state that torch hands through as it is, since it cannot look into it."""

    def __init__(self, content: Any) -> None:
        self.content = content


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Have an optimizer take the state that `state_dict` gave elsewhere."""
    is_own = type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
    per_parameter = state.get("state")
    if not isinstance(per_parameter, Mapping):
        optimizer.load_state_dict(dict(state))
        return
    optimizer.load_state_dict(dict(state) if is_own else {**state, "state": _sealed(per_parameter)})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in per_parameter.items():
        key = parameters[index] if isinstance(index, int) and index < len(parameters) else index
        device = key.device if isinstance(key, Tensor) else torch.device("cpu")
        if key in optimizer.state:
            optimizer.state[key] = _as_given(optimizer.state[key], values, device)


def _sealed(node: Any) -> Any:
    """The same tree, with sealed leaves where torch would spoil them."""
    match node:
        case dict() if type(node) is dict:
            return {key: _sealed(value) for key, value in node.items()}
        case list():
            return [_sealed(value) for value in node]
        case tuple() if type(node) is tuple:
            return tuple(map(_sealed, node))
        case Tensor() | bool() | int() | float() | None:
            return node
    return _Sealed(node)


def _as_given(loaded: Any, like: Any, device: torch.device) -> Any:
    """Return the loaded value, with the types and the strides of the given one."""
    if isinstance(loaded, _Sealed):
        return _moved(loaded.content, device)
    match like:
        case Tensor() if _is_dense(like) and _is_dense(loaded):
            alike = loaded.dtype == like.dtype and loaded.stride() == like.stride()
            return loaded if alike else copy_of(like, loaded.device)
        case dict() if isinstance(loaded, dict):
            for name in like.keys() & loaded.keys():
                loaded[name] = _as_given(loaded[name], like[name], device)
        case list() | tuple() if type(loaded) is type(like) and len(loaded) == len(like):
            pairs = zip(loaded, like, strict=True)
            return type(like)(_as_given(part, value, device) for part, value in pairs)
    return loaded


def _is_dense(value: Any) -> bool:
    return type(value) is Tensor and value.layout is torch.strided


def _moved(node: Any, device: torch.device) -> Any:
    """Move the tensors in a container, as torch does in those that it can make again."""
    match node:
        case Tensor():
            return node if node.device == device else copy_of(node, device)
        case dict():
            moved = copy.copy(node)
            moved.update({key: _moved(value, device) for key, value in node.items()})
            return moved
        case list():
            return [_moved(value, device) for value in node]
        case tuple() if not isinstance(node, torch.Size):
            record: Any = type(node)
            return getattr(record, "_make", record)([_moved(value, device) for value in node])
    if is_record_of_values(type(node)):
        found: Any = copy.copy(node)
        vars(found).update(_moved(vars(node), device))
        return found
    return node
