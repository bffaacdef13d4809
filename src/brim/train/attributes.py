"""Plain attributes of modules, which nobody carries to other workers: they must stay as they are while training."""

from __future__ import annotations

from torch import nn

from brim.errors import SpecError

__all__ = ["Attributes"]

_PLAIN = (bool, int, float, str)


class Attributes:
    """The numbers and strings that a network's modules keep in attributes, but for `training` and names with `_`.

    Args:
        model: the network, at the start.

    >>> model = nn.Linear(2, 1)
    >>> model.calls = 0
    >>> attributes = Attributes(model)
    >>> model.calls += 1
    >>> attributes.check()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    brim.errors.SpecError: model attribute 'calls': got 1, which was 0 before training, need ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = self._now()

    def _now(self) -> dict[tuple[str, str], object]:
        return {
            (prefix, name): value
            for prefix, module in self._model.named_modules()
            for name, value in vars(module).items()
            if type(value) in _PLAIN and name != "training" and not name.startswith("_")
        }

    def check(self) -> None:
        """Check that the modules' attributes are what they were at first.

        Raises:
            SpecError: one is not, so that it depends on which micro-batches this worker had.
        """
        now = self._now()
        if now == self._before:
            return
        prefix, name = next(key for key in {**self._before, **now} if now.get(key) != self._before.get(key))
        whole = f"{prefix}.{name}" if prefix else name
        raise SpecError(
            f"model attribute {whole!r}",
            got=f"{now.get((prefix, name))!r}, which was {self._before.get((prefix, name))!r} before training",
            need="an attribute that training leaves alone: each worker would have another value of it",
            hint="make it a buffer (register_buffer), or count in the loop by job.committed",
        )
