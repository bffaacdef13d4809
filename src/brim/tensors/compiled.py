"""Compilation of models by torch.compile and torch.jit."""

from __future__ import annotations

import torch
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


def run_scripted_as_written() -> None:
    """Have scripted and traced functions compute the same bits in each call.

    torch.jit compiles a function once more after its first calls. Its gradients are then rounded in
    another way: a worker at its first call would disagree with the others. Functions compiled
    before this call stay compiled.
    """
    torch._C._set_graph_executor_optimize(False)
