"""The part of torch.compile in a model."""

from __future__ import annotations

from torch import nn


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile has a part in a model.

    Its first passes start threads, which no fork survives.
    """
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
