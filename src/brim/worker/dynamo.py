"""Puts off `torch._dynamo`, torch's compiler, until somebody compiles.

Each optimizer of torch imports it to keep itself out of what is compiled, and that takes about as
long again as `import torch`. Where nothing is compiled there is nothing to keep out of it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class _Deferred(ModuleType):
    """The module before it has run, which it does at the first use of anything without stand-in.

    It stays the same object: its earlier holders have the whole of it then.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # the import system asks whether it is there
        _run(self)
        return ModuleType.__getattribute__(self, name)


def defer() -> None:
    """Have `import torch._dynamo` import nothing until somebody compiles.

    Until then it has the attributes that torch needs of it: in optimizers, and where a process
    group forms.
    """
    spec = None if NAME in sys.modules else importlib.util.find_spec(NAME)
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    vars(module).update(_stand_ins(module))
    sys.modules[NAME] = module
    sys.meta_path.insert(0, _Submodules(module))


_running = threading.RLock()


def _run(module: ModuleType) -> None:
    """Run the module, once; its uses of itself meanwhile work as in any import."""
    with _running:
        finders = [finder for finder in sys.meta_path if isinstance(finder, _Submodules)]
        if not finders:
            return
        sys.meta_path.remove(finders[0])
        for name in _stand_ins(module):
            del vars(module)[name]
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)
        module.__class__ = ModuleType


def _stand_ins(module: ModuleType) -> dict[str, Any]:
    """Return the attributes of the module before it has run."""
    return {
        "disable": partial(_disable, module),
        "graph_break": _graph_break,
        "trace_rules": _TraceRules(module),
    }


def _disable(module: ModuleType, *arguments: Any, **options: Any) -> Any:
    """Do as `torch._dynamo.disable` does, for an optimizer only once there is a compiler."""
    if options != {"wrapping": False}:  # it is not torch itself that asks
        _run(module)
        return module.disable(*arguments, **options)
    function: Callable[..., Any] = arguments[0]
    disabled: Callable[..., Any] | None = None

    def call(*values: Any, **named: Any) -> Any:
        nonlocal disabled
        if isinstance(module, _Deferred):
            return function(*values, **named)
        if disabled is None:
            disabled = module.disable(*arguments, **options)
        return disabled(*values, **named)

    return call


def _graph_break(msg: str = "") -> None:
    """Do as `torch._dynamo.graph_break` does outside of compiled code: nothing."""


class _TraceRules:
    """The trace rules of the module before it has run: none, and nothing kept of them."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def clear_lru_cache(self) -> None:
        """Clear the caches of the rules, where there are any."""
        if not isinstance(self._module, _Deferred):
            self._module.trace_rules.clear_lru_cache()

    def __getattr__(self, name: str) -> Any:
        _run(self._module)
        return getattr(self._module.trace_rules, name)


class _Submodules(MetaPathFinder):
    """Runs the module before the first import of one of its own, which may then be there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        _run(self._module)
        found = sys.modules.get(name)
        return None if found is None else ModuleSpec(name, _AsItIs(found))


class _AsItIs(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
