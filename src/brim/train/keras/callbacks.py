"""Callbacks of Keras in a job: every worker calls them between steps and epochs, alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from brim.errors import SpecError
from brim.train.checks.attributes import is_plain

# What to use in place of callbacks that write, show or count by themselves.
_INSTEAD = {
    "BackupAndRestore": "brim's checkpoints: --checkpoint-every, and brim resume",
    "CSVLogger": "the history that fit returns, or brim track",
    "ModelCheckpoint": "model.save() after fit, EarlyStopping(restore_best_weights=True) before it, "
    "or --keep-best",
    "OrbaxCheckpoint": "brim's checkpoints: --checkpoint-every, and brim resume",
    "ProgbarLogger": "brim status",
    "RemoteMonitor": "--logger FILE.py:NAME",
    "SwapEMAWeights": "the last weights, which fit takes from the average where use_ema=True",
    "TensorBoard": "--logger tensorboard",
    "TerminateOnNaN": 'on_nan="stop"',
}
_OWN = frozenset({"params", "_params"})  # attributes of a worker itself
_COMPARISON = "monitor_op"  # a function, which Keras chooses at the end of the first epoch
_UNCALLED = (
    "on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end",
    "on_test_batch_begin", "on_test_batch_end",
)  # fmt: skip


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Check that brim can call each callback whenever Keras would.

    Raises:
        SpecError: one is called for batches, or has a better counterpart.
    """
    kind = import_module("keras").callbacks.Callback
    for callback in callbacks:
        name = type(callback).__name__
        if not isinstance(callback, kind):
            raise SpecError("callbacks", got=f"a {name}", need="a list of keras.callbacks.Callback")
        of_keras = [base.__name__ for base in type(callback).__mro__ if _is_of_keras(base)]
        instead = next((_INSTEAD[base] for base in of_keras if base in _INSTEAD), None)
        if instead is not None:
            raise SpecError(
                f"callback {name}",
                got="a callback that each worker would carry out by itself",
                need="callbacks that do the same on all workers",
                hint=instead,
            )
        hook = next((h for h in _UNCALLED if not _is_default(getattr(callback, h))), None)
        if hook is not None:
            raise SpecError(
                f"callback {name}",
                got=f"{hook}()",
                need="callbacks of epochs and of the training as a whole: workers have different "
                "micro-batches of a step",
                hint="a loop of your own, with brim.join",
            )


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


def _is_default(method: Any) -> bool:
    return hasattr(method, "_is_default")


class CarriedCallback:
    """The plain attributes of a callback, for workers that join and for checkpoints.

    Args:
        callback: of Keras.
    """

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def state_dict(self) -> dict[str, Any]:
        state = {
            name: value
            for name, value in vars(self._callback).items()
            if name not in _OWN and _is_carried(value)
        }
        if hasattr(self._callback, _COMPARISON):
            state[_COMPARISON] = self._callback.monitor_op is not None
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            if name != _COMPARISON:
                setattr(self._callback, name, value)
            elif value and self._callback.monitor_op is None:
                kept = dict(vars(self._callback))
                self._callback._set_monitor_op()  # changes the sign of others, which came as they are
                chosen = self._callback.monitor_op
                vars(self._callback).update(kept, monitor_op=chosen)


def _is_carried(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)) or is_plain(value):
        return True
    return isinstance(value, list) and all(isinstance(part, np.ndarray) for part in value)
