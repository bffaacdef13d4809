"""Loggers by name.

Missing parts of a logger are told before anything starts.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from brim.errors import SpecError, did_you_mean
from brim.host.installation import command_for
from brim.loggers.protocol import Logger
from brim.user_code.from_file import is_in_file, load_callable, split

# name -> (module, class, the package that must be installed, the extra that brings it)
LOGGERS = {
    "tensorboard": ("brim.loggers.tensorboard", "TensorBoard", "tensorboard", "tensorboard"),
    "mlflow": ("brim.loggers.mlflow", "MLflow", "mlflow", "mlflow"),
    "wandb": ("brim.loggers.wandb", "WandB", "wandb", "wandb"),
}
_METHODS = ("begin", "rewind", "log", "flush", "end")
_LOGGER_ROLE = "a class or function that takes nothing and gives a logger"


def canonical(name: str) -> str:
    """The name as another process, in another directory, understands it."""
    if not is_in_file(name):
        return name
    file, _, function = name.rpartition(":")
    return f"{Path(file).resolve()}:{function}"


def check_logger(name: str, *, field: str = "--logger") -> None:
    """Refuse a logger that could not be started.

    Raises:
        SpecError: there is no such logger, its package is not installed, or the file has none of
            that name.
        UserCodeError: the user's file raises.
    """
    if is_in_file(name):
        split(name, field=field)
        load_callable(name, field=field, role=_LOGGER_ROLE)
        return
    if name not in LOGGERS:
        need = f"{', '.join(LOGGERS)} or FILE.py:NAME"
        raise SpecError(field, got=repr(name), need=need, hint=did_you_mean(name, LOGGERS))
    _, _, package, extra = LOGGERS[name]
    if importlib.util.find_spec(package) is None:
        raise SpecError(
            f"{field} {name}",
            got=f"no package {package}",
            need=f"the extra '{extra}'",
            hint=command_for(extra),
        )


def check_loggers(names: Iterable[str]) -> tuple[str, ...]:
    """The loggers that were asked for, each once, as another process understands them.

    Raises:
        SpecError: one that could not be started.
        UserCodeError: the file of one raises.
    """
    for name in names:
        check_logger(name)
    return tuple(dict.fromkeys(map(canonical, names)))


def make_logger(name: str, *, field: str = "--logger") -> Logger:
    """The logger called `name`.

    Raises:
        SpecError: see `check_logger`; or what the user's function gave is no logger.
        UserCodeError: the user's file raises.
    """
    check_logger(name, field=field)
    if not is_in_file(name):
        module, attribute, _, _ = LOGGERS[name]
        return cast(Logger, getattr(importlib.import_module(module), attribute)())
    found = load_callable(name, field=field, role=_LOGGER_ROLE)()
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise SpecError(
            f"{field} {name}",
            got=f"a {type(found).__name__} without {', '.join(missing)}",
            need="a logger: begin, rewind, log, flush and end",
            hint="docs/guides/loggers.md shows one",
        )
    return cast(Logger, found)
