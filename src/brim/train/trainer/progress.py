"""The progress of a Trainer, as it is carried to newcomers and into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TIMED = ("_runtime", "_per_second", "_preparation_time")  # each worker measures its own
_BEST = ("best_metric", "best_global_step")


def untimed(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logged numbers that are the same on all workers.

    >>> untimed({"eval_loss": 2.0, "eval_runtime": 0.1, "epoch": 1})
    {'eval_loss': 2.0, 'epoch': 1}
    """
    return {
        name: value
        for name, value in logs.items()
        if isinstance(value, (int, float)) and not name.endswith(_TIMED)
    }


class TrainerProgress:
    """The state of a Trainer beside its model and optimizer.

    Its log, the sums since the last entry, the best metric, and callbacks that have a state
    (`ExportableState`). Other callbacks start from scratch in a worker that joins.

    Args:
        trainer: with brim's loop.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.history: list[dict[str, float]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        trainer = self._trainer
        return {
            "history": [dict(entry) for entry in self.history],
            "loss": float(trainer._tr_loss),
            "total loss": trainer._total_loss_scalar,
            "logged": trainer._globalstep_last_logged,
            "operations": float(trainer.state.total_flos + trainer.current_flos),
            "best": {name: getattr(trainer.state, name) for name in _BEST},
            "callbacks": [callback.state()["attributes"] for callback in self._callbacks()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of another worker, or of a checkpoint."""
        trainer = self._trainer
        if state["history"] != self.history:  # else its log is this very one, with times
            self.history = [dict(entry) for entry in state["history"]]
            trainer.state.log_history = [dict(entry) for entry in state["history"]]
        trainer._tr_loss.fill_(state["loss"])
        trainer._total_loss_scalar = state["total loss"]
        trainer._globalstep_last_logged = state["logged"]
        trainer.state.total_flos, trainer.current_flos = state["operations"], 0
        for name in _BEST:
            setattr(trainer.state, name, state["best"][name])
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=False):
            vars(callback).update(attributes)

    def _callbacks(self) -> list[Any]:
        """Return the callbacks with a state, in their order."""
        handler = self._trainer.callback_handler
        return [callback for callback in handler.callbacks if hasattr(callback, "state")]
