"""Training: the names that a training script imports, and the worker that runs it.

The package can be called: `brim.train("flights.py")` trains a file. Importing any of its modules
binds the name `brim.train` to the package, so a function of that name would be there or not,
depending on who imported what before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, file: Any, /, **options: Any) -> Any:
        """Train the model of a file, as `brim train FILE` does, and wait for the end.

        See `brim.runs.verbs.train`.
        """
        from brim.runs.verbs import train

        return train(file, **options)


sys.modules[__name__].__class__ = _Package
