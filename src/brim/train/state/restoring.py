"""An optimizer takes a state back as it was, bit for bit and in the same order in memory.

`load_state_dict` of torch alone does not do that: it casts what it finds to the type of the
parameter, makes text of iterators over text, and fails at named tuples and arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from brim.train.state.flattening import copy_of, is_record_of_values


def put_in_order(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[int, int]:
    """Put the parameters of each group into the order that their network has them in.

    A state tells them by their numbers, and a script may have taken them from a set, whose order is
    another in each process. A group is left alone beside which the optimizer has lists in its order.

    Returns:
        The number of each, by its number before.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    numbers: dict[int, int] = {}
    for group in optimizer.param_groups:
        own, start = group["params"], len(numbers)
        order = sorted(range(len(own)), key=lambda index: places[id(own[index])])
        if order == sorted(order) or _has_lists_like(optimizer, group):
            order = sorted(order)
        else:
            for name in {"params", "param_names"} & group.keys():
                group[name][:] = [group[name][index] for index in order]
        numbers |= {start + before: start + now for now, before in enumerate(order)}
    return numbers


def _has_lists_like(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    sizes = {len(group["params"]), sum(len(each["params"]) for each in optimizer.param_groups)}
    others = [value for name, value in group.items() if name != "params"]
    return any(
        isinstance(value, (list, tuple))
        and len(value) in sizes
        and any(isinstance(part, Tensor) for part in value)
        for value in (*vars(optimizer).values(), *others)
    )


def renumbered(state: Mapping[str, Any], numbers: Mapping[int, int]) -> Mapping[str, Any]:
    """Return the state of an optimizer as it is after `put_in_order`."""
    of_parameters = state.get("state")
    if not isinstance(of_parameters, Mapping):
        return state
    return {**state, "state": {numbers.get(key, key): each for key, each in of_parameters.items()}}


class _Sealed:
    """A part of a state that torch hands through as it is, since it cannot look into it."""

    def __init__(self, content: Any) -> None:
        self.content = content


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Have an optimizer take the state that `state_dict` gave elsewhere."""
    names_before = [set(group) for group in optimizer.param_groups]
    _load(optimizer, state)
    # Some set what old states lack as they load one; the worker that the state is of never did.
    groups = state.get("param_groups") or []
    for group, names, given in zip(optimizer.param_groups, names_before, groups, strict=False):
        for name in group.keys() - names - given.keys():
            del group[name]


def _load(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
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


def taken_over(own: Any, given: Any, device: torch.device) -> Any:
    """Return a value that an optimizer keeps beside its state, with the given content.

    Tensors and containers stay the same objects where they can: others may hold them too.

    Args:
        own: the value so far.
        given: a value of plain ones and tensors.
        device: of new tensors.
    """
    match own, given:
        case Tensor(), Tensor() if own.shape == given.shape and own.dtype == given.dtype:
            own.detach().copy_(given.detach())
            return own
        case _, Tensor():
            return copy_of(given, device)
        case list(), list() if len(own) == len(given):
            own[:] = [taken_over(*pair, device) for pair in zip(own, given, strict=True)]
            return own
        case dict(), dict():
            content = {key: taken_over(own.get(key), part, device) for key, part in given.items()}
            own.clear()
            own.update(content)
            return own
        case _, dict() if type(given) is dict:
            return {key: taken_over(None, part, device) for key, part in given.items()}
        case _, list() | tuple() if type(given) in (list, tuple):
            return type(given)(taken_over(None, part, device) for part in given)
    return copy.copy(given)


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
