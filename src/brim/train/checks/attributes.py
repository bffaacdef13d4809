"""Attributes of modules, beside parameters and buffers.

No micro-batch may learn from them about another. What a script sets from step to step, such as a
temperature, is the same for all micro-batches of a step, and is carried to other workers.

What a forward pass leaves in an attribute is of use to that pass, or to code that looks at it
behind the step (the last attention, a cache of masks). Read by the next micro-batch it would make a
result depend on which worker had which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from brim.errors import SpecError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
# Libraries keep caches and books of their own under names with _.
_LIBRARIES = frozenset(
    {"keras", "lightning", "pytorch_lightning", "timm", "torchvision", "transformers"}
)
_MODULES_OWN = frozenset(vars(nn.Module()))
_TO_CARRY = "make it a buffer (register_buffer)"
_TO_SET = (
    f"{_TO_CARRY}, or in your own loop set it once a step, outside of forward: model.tau = 0.9 ** "
    "job.committed"
)
_NEED = "one that the batches of a step leave alike: its value would differ between workers"

Values = dict[tuple[str, str], Any]


class Attributes:
    """The values in attributes of a network's modules, beside parameters and buffers.

    Args:
        model: the network, at the start.

    >>> model = nn.Linear(2, 1)
    >>> model.calls = 0
    >>> attributes = Attributes(model)
    >>> model.calls += 1
    >>> attributes.check()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brim.errors.SpecError: model attribute 'calls': got 1, which was 0 before, need ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules())
        # `keys`, since a scripted module's buffers cannot be iterated over.
        self._buffers = {prefix: {*module._buffers.keys()} for prefix, module in self._modules}
        self._values_before = self._plain_ones()
        self._caches: Values = {}
        self._leftovers: Values = {}
        self._hook: RemovableHandle | None = None
        self._at_begin: Values | None = None

    def _all(self) -> Iterator[tuple[str, nn.Module, str, Any]]:
        for prefix, module in self._modules:
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                continue  # it carries what it needs
            libraries = any(
                kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(module).__mro__
            )
            libraries |= type(module).__module__.startswith("torch.")
            for name, value in vars(module).items():
                if name not in _MODULES_OWN and not (libraries and name.startswith("_")):
                    yield prefix, module, name, value

    # Numbers and words ----------------------------------------------------------------------------

    def _plain_ones(self) -> Values:
        return {
            (prefix, name): _copy(value)
            for prefix, _, name, value in self._all()
            if is_plain(value)
        }

    def check(self, *, need: str = _NEED) -> None:
        """Check that plain attributes have their first values.

        One that goes from None or False to a value and stays there is a cache: see `get`.

        Args:
            need: words of the error.

        Raises:
            SpecError: one is not, so that it depends on which micro-batches this worker had.
        """
        previous = self._values_before | self._caches
        self._compare(self._plain_ones(), previous, need=need, hint=_TO_CARRY)

    def check_step(self, left: Values | None) -> Values:
        """Check that the micro-batches of a step leave the same values.

        Those of another step may be others: a script has set them, as it does a temperature.

        Args:
            left: by the one before; None for the first of a step.

        Returns:
            The values.

        Raises:
            SpecError: one is another, so that it depends on which micro-batches this worker had.
        """
        now = self._plain_ones()
        self._compare(now, left or {}, need=_NEED, hint=_TO_SET)
        for key in self._changed(now):
            self._check_metric(key)
        return now

    def watch_pass(self, *, is_alone: bool) -> None:
        """Note the values as the next forward pass begins, for `check_pass`.

        Args:
            is_alone: the step has no other micro-batch on this worker to compare this one with.
        """
        if self._hook is not None:
            self._hook.remove()
        self._hook = register_module_forward_pre_hook(self._note) if is_alone else None
        self._at_begin = None

    def _note(self, module: nn.Module, _: Any) -> None:
        if self._at_begin is None and any(module is own for _, own in self._modules):
            self._at_begin = self._plain_ones()

    def check_pass(self) -> None:
        """Check that the forward pass of a lone micro-batch has left the values as they were.

        Raises:
            SpecError: it has not, and with fewer workers the next one would see it.
        """
        if self._at_begin is not None:
            self._compare(self._plain_ones(), self._at_begin, need=_NEED, hint=_TO_SET)
        self.watch_pass(is_alone=False)

    def _compare(self, now: Values, previous: Values, *, need: str, hint: str) -> None:
        for key in now.keys() & self._values_before.keys():
            is_cached = not _are_same(now[key], self._values_before[key]) and self._cache(
                key, now[key]
            )
            if key in previous and not _are_same(now[key], previous[key]) and not is_cached:
                self._check_metric(key)
                raise SpecError(
                    f"model attribute {_named(*key)!r}",
                    got=f"{now[key]!r}, which was {previous[key]!r} before",
                    need=need,
                    hint=hint,
                )

    def _cache(self, key: tuple[str, str], value: Any) -> bool:
        """Note the first value of a cache, and return whether it is one."""
        before = self._values_before[key]
        if key in self._caches or not (before is None or before is False):
            return False
        self._caches[key] = value
        return True

    def _changed(self, now: Values) -> Values:
        return {
            key: now[key]
            for key, before in self._values_before.items()
            if key in now
            and not _are_same(now[key], before)
            and not (key in self._caches and _are_same(now[key], self._caches[key]))
        }

    def _check_metric(self, key: tuple[str, str]) -> None:
        """Raises SpecError where an attribute is a part of a metric, which is no part of a network."""
        prefix, _ = key
        metric = dict(self._modules)[prefix]
        if any(kind.__module__ == "torchmetrics.metric" for kind in type(metric).__mro__):
            raise SpecError(
                f"model attribute {prefix!r}",
                got=f"torchmetrics' {type(metric).__name__}, which adds up the batches of a worker",
                need="metrics over the samples of all workers",
                hint='job.evaluate(test, {"accuracy": brim.metrics.accuracy()}), metrics() in a '
                "training file, or torchmetrics.functional for the samples of one batch",
            )

    def get(self) -> dict[str, dict[str, Any]]:
        """Return the values that forward passes have set once, by modules: newcomers need them.

        Each worker sets it for itself. Where that came of other samples, they do not agree.
        """
        return _by_module(self._caches)

    def get_changed(self) -> dict[str, dict[str, Any]]:
        """Return the values that the script has set, by modules: all workers have the same."""
        return _by_module(self._changed(self._plain_ones()))

    def put(
        self,
        caches: Mapping[str, Mapping[str, Any]],
        changed: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Take the values that `get` and `get_changed` gave elsewhere.

        Args:
            caches: those that forward passes have set once.
            changed: those that the script has set; None where nobody noted them.
        """
        modules = dict(self._modules)
        if changed is not None:
            for prefix, name in self._changed(self._plain_ones()):
                setattr(modules[prefix], name, _copy(self._values_before[prefix, name]))
        for key, value in _by_key(caches).items():
            if key in self._values_before:
                self._caches[key] = _copy(value)
        for (prefix, name), value in (_by_key(caches) | _by_key(changed or {})).items():
            if (prefix, name) in self._values_before:
                setattr(modules[prefix], name, _copy(value))

    # Tensors --------------------------------------------------------------------------------------

    def forget(self, *, starts_round: bool = False) -> list[str]:
        """Remove from modules the tensors that the last micro-batch left.

        A tensor that the micro-batch before left with equal values stays.

        A cache keeps what it holds. Anything else may be overwritten; who reads it gets a
        SpecError.

        Args:
            starts_round: what was seen before counts no more: the loop may have set other tensors.

        Returns:
            The names of the attributes that were taken.
        """
        if starts_round:
            self._leftovers = {}
        self._check_new_buffers()
        removed = []
        for prefix, module, name, value in list(self._all()):
            if not _holds_tensors(value):
                continue
            key = (prefix, name)
            if key in self._leftovers and _has_changed(self._leftovers[key], value):
                setattr(module, name, _without(value, self._leftovers[key], _named(prefix, name)))
                removed.append(_named(prefix, name))
            self._leftovers[key] = _snapshot(value)
        return removed

    def _check_new_buffers(self) -> None:
        """Check that buffers which forward passes make are constants.

        Raises:
            SpecError: one has other values than the micro-batch before left.
        """
        for prefix, module in self._modules:
            for name in {*module._buffers.keys()} - self._buffers[prefix]:
                value = module._buffers[name]
                key = (prefix, name)
                if key in self._leftovers and _has_changed(self._leftovers[key], value):
                    raise SpecError(
                        f"buffer {_named(prefix, name)!r}",
                        got="one that forward makes, and changes from batch to batch",
                        need="buffers that the model has from the start: newcomers and "
                        "checkpoints have those",
                        hint="register_buffer in __init__, with its full shape",
                    )
                self._leftovers[key] = _snapshot(value)


class _Removed:
    """Stands where a micro-batch left something that the next one must not see."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        name = object.__getattribute__(self, "_name")
        raise SpecError(
            f"model attribute {name!r}",
            got="a forward pass that reads a tensor that another micro-batch, or the loop, left there",
            need="a result that does not depend on which micro-batches a worker had before",
            hint=f"{_TO_CARRY}; what the loop sets there may also be a number",
        )

    @classmethod
    def __torch_function__(
        cls, _: Any, __: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> NoReturn:
        next(value for value in _flat(args) if isinstance(value, cls))._refuse()

    def __getattr__(self, _: str) -> NoReturn:
        self._refuse()


_OPERATORS = (
    *(
        "abs",
        "add",
        "and",
        "bool",
        "call",
        "contains",
        "float",
        "ge",
        "getitem",
        "gt",
        "index",
        "int",
        "invert",
    ),
    *(
        "iter",
        "le",
        "len",
        "lt",
        "matmul",
        "mul",
        "neg",
        "or",
        "pow",
        "radd",
        "rmatmul",
        "rmul",
        "rpow",
        "rsub",
    ),
    *("rtruediv", "setitem", "sub", "truediv"),
)
for _operator in _OPERATORS:
    setattr(_Removed, f"__{_operator}__", _Removed._refuse)


def _without(value: Any, previous: Any, name: str) -> Any:
    """Return what stands in place of a value that has changed: of a dict, these entries alone.

    A forward pass may copy a dict and put its own entries over those of another micro-batch.
    """
    if type(value) is not dict:
        return _Removed(name)
    return {
        key: _Removed(f"{name}[{key!r}]")
        if key in previous and _has_changed(previous[key], part)
        else part
        for key, part in value.items()
    }


def _flat(value: Any) -> Iterator[Any]:
    for item in value:
        if isinstance(item, (tuple, list)):
            yield from _flat(item)
        else:
            yield item


def _named(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _by_module(values: Values) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (prefix, name), value in values.items():
        found.setdefault(prefix, {})[name] = value
    return found


def _by_key(found: Mapping[str, Mapping[str, Any]]) -> Values:
    return {
        (prefix, name): value for prefix, values in found.items() for name, value in values.items()
    }


def _are_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


def is_plain(value: Any) -> bool:
    if isinstance(value, _CONTAINERS):
        parts = value.values() if isinstance(value, dict) else value
        return all(is_plain(part) for part in parts)
    if isinstance(value, np.generic):  # as what np.exp and np.maximum return
        value = value.item()
    return type(value) in _PLAIN


def _copy(value: Any) -> Any:
    return type(value)(value) if isinstance(value, (list, dict, set, deque)) else value


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_left, value.values()))
    return _is_left(value) or (
        isinstance(value, (list, tuple, deque)) and any(map(_is_left, value))
    )


def _is_left(value: Any) -> bool:
    """Return whether a value is a tensor that a forward pass may have left.

    Parameters are looked after elsewhere, sparse tensors are constants.
    """
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return False
    return value.layout is torch.strided and not value.is_meta


def _snapshot(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().clone() if _is_left(value) else None
        case Mapping():
            return {key: _snapshot(part) for key, part in value.items()}
        case list() | tuple() | deque():
            return [_snapshot(part) for part in value]
    return value


def _has_changed(previous: Any, now: Any) -> bool:
    """Return whether the same place holds other numbers.

    Other shapes or keys are another place, as in caches by size.
    """
    match previous:
        case Tensor():
            alike = (
                isinstance(now, Tensor)
                and now.shape == previous.shape
                and now.dtype == previous.dtype
            )
            return alike and not torch.equal(previous, now)
        case dict():
            return isinstance(now, Mapping) and any(
                key in now and _has_changed(part, now[key]) for key, part in previous.items()
            )
        case list():
            if not isinstance(now, (list, tuple, deque)):
                return False
            return len(now) != len(previous) or any(map(_has_changed, previous, now))
    return False
