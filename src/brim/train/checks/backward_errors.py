"""Errors of torch's backward pass that come of how a loop is written, in words with a way out."""

from __future__ import annotations

import re

from brim.errors import SpecError


def explanation_of(error: RuntimeError) -> SpecError | None:
    """Explain an error of a backward pass: a tensor was changed in place, or a graph is gone.

    Returns:
        The error in words; None where the loop is not the cause.
    """
    text = str(error)
    if "modified by an inplace operation" in text:
        found = re.search(r"\[\S*?(\w+Tensor) (\[[\d, ]*\])\]", text)
        operand = f" ({found[1]} of shape {found[2]})" if found else ""
        return SpecError(
            "job.step",
            got=f"a loss of which a tensor{operand} was changed in place after it was computed",
            need="tensors that stay as they are until job.step(loss), where the backward pass is",
            hint="a tensor for each loss, such as torch.ones_like(output) and "
            "torch.zeros_like(output) where the plain loop has label.fill_(...)",
        )
    if "backward through the graph a second time" in text:
        return SpecError(
            "job.step",
            got="a loss whose graph, or a part of it, an earlier job.step has used up",
            need="a graph of its own for each loss",
            hint="detach what earlier batches left (job.carry carries a hidden state), compute what "
            "two losses share once for each, or give their sum to job.step",
        )
    return None
