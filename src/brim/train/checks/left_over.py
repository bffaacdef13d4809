"""Left-overs of an earlier loop that duplicate brim's work.

They show in a loss or in the script.

Each of these trains, the same on all workers, but not as the script meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from brim.train.checks.comparisons import compares_samples, depends_on_data

_SUM = 2  # how torch writes down reduction="sum"
_DEPTH = 4  # a sum of losses is a few additions deep
_SCALED = 1024.0  # a GradScaler begins with 65,536, and halves it where gradients overflow


def of_loss(loss: Tensor, *, samples: int = 0, is_part: bool = True) -> str:
    """Say in words which left-overs are in a loss.

    Empty where nothing is.

    Args:
        loss: a scalar of one micro-batch, with its graph.
        samples: of the micro-batch; 0 where that is not known.
        is_part: whether a step has more samples than these.

    >>> import torch
    >>> prediction = torch.ones(4, requires_grad=True)
    >>> of_loss(torch.nn.functional.mse_loss(prediction, torch.zeros(4)))
    ''
    >>> of_loss(torch.nn.functional.mse_loss(prediction, torch.zeros(4)) / 4)[:32]
    'the loss is a mean that is divid'
    >>> total = torch.nn.functional.mse_loss(prediction, torch.zeros(4), reduction="sum")
    >>> of_loss(total)[:32], of_loss(total / 4)
    ('the loss is a sum over samples (', '')
    """
    last: Any = loss.grad_fn
    if last is None:
        return ""
    if last.name() == "DivBackward0" and _is_loss(last.next_functions[0][0]):
        return (
            "the loss is a mean that is divided by something, which makes its gradients as much "
            "smaller: brim weighs "
            "micro-batches itself, by their samples"
        )
    if last.name() == "MulBackward0" and (scale := _scale_of(last)):
        return (
            f"the loss is multiplied by {scale:,.0f}, as a GradScaler does, and nothing divides "
            "its gradients again: "
            "give the loss itself to job.step, and the scaler to brim.join(scaler=...)"
        )
    if any(_reduction_of(term) == _SUM or _sums(term, samples) for term in _terms(last, _DEPTH)):
        return (
            'the loss is a sum over samples (reduction="sum"), where brim needs their mean: what '
            "is trained is the "
            "mean of the micro-batches' sums, which depends on --micro-batches"
        )
    if is_part and compares_samples(loss, samples):
        return (
            f"the loss compares the {samples} samples of a micro-batch with one another (negatives "
            "within a batch, a miner of pairs, statistics over samples): they see no others of the "
            "step; --micro-batches 1, or brim.join(..., micro_batches=1), lets one worker see all "
            "of them, and fewer micro-batches more"
        )
    return ""


def of_hooks(model: nn.Module) -> str:
    """Say in words which hooks of parameters see only a part of a step's gradient.

    Empty where there are none.

    >>> model = nn.Linear(2, 1)
    >>> handle = model.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    >>> of_hooks(model).partition(" sees")[0]
    "a hook on the gradient of 'weight'"
    """
    name = next(
        (name for name, parameter in model.named_parameters() if _has_hook(parameter)), None
    )
    if name is None:
        return ""
    return (
        f"a hook on the gradient of {name!r} sees that of a micro-batch, which is weighed by its "
        "samples, and not that of the step: what it clamps or scales depends on --micro-batches "
        "(clip_norm= of brim.join clips the sum)"
    )


def of_buffers(changes: Iterable[tuple[str, Tensor, Tensor]], *, samples: int) -> str:
    """Say in words which buffer of a network a micro-batch's samples have places in.

    That is a queue or a memory of samples, or their number. Empty where there is none.

    Args:
        changes: name of each buffer, its values before the micro-batch and now.
        samples: of the micro-batch.

    >>> queue = torch.zeros(4, 2)
    >>> now = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    >>> of_buffers([("queue", queue, now)], samples=2).partition(" (2)")[0]
    "the samples of a micro-batch change buffer 'queue' by their number"
    >>> of_buffers([("running_mean", queue, queue + 1)], samples=2)
    ''
    """
    name = next((n for n, before, now in changes if _is_of_samples(before, now, samples)), None)
    if name is None:
        return ""
    return (
        f"the samples of a micro-batch change buffer {name!r} by their number ({samples}): all "
        "micro-batches of a step start from the same buffers, of which the step keeps the mean "
        "change, or of whole numbers the largest value; so a counter goes on by one micro-batch in "
        "each step, and a queue or memory of samples keeps means; with brim.join(..., "
        "micro_batches=1) one worker does as the plain script"
    )


def _is_of_samples(before: Tensor, now: Tensor, samples: int) -> bool:
    """Return whether a buffer changed by the number of samples, or in so many rows or columns."""
    if samples < 2 or before.is_complex() or before.dtype == torch.bool:
        return False
    if before.numel() == 1:
        return float(now) - float(before) == samples
    is_changed = now != before
    return any(
        size >= 2 * samples
        and int(is_changed.movedim(axis, 0).reshape(size, -1).any(1).sum()) == samples
        for axis, size in enumerate(before.shape[:2])
    )


def _has_hook(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _sums(node: Any, samples: int) -> bool:
    """Return whether a node adds up samples' values, as `reduction="none"` leaves it.

    A sum of products with a constant may be a mean whose weights are its own.
    """
    if samples < 2 or not node.name().startswith("SumBackward"):
        return False
    sizes = [int(size) for size in node._saved_self_sym_sizes]
    product_factor = node.next_functions[0][0]
    if not sizes or sizes[0] != samples or not depends_on_data(product_factor):
        return False
    if product_factor.name() != "MulBackward0" or all(
        entry is not None for entry, _ in product_factor.next_functions
    ):
        return True
    factor = product_factor._saved_other
    return not isinstance(factor, Tensor) or factor.numel() == 1


def _is_loss(node: Any) -> bool:
    named = node is not None and ("Loss" in node.name() or "CrossEntropy" in node.name())
    return (
        named and _reduction_of(node) != _SUM
    )  # a sum that is divided by its samples is their mean


def _reduction_of(node: Any) -> int | None:
    return getattr(node, "_saved_reduction", None)


def _scale_of(product: Any) -> float:
    """Return the factor of a GradScaler: a large power of two, in a tensor of its own.

    0 where there was none.
    """
    factor = getattr(product, "_saved_other", None)
    if not isinstance(factor, Tensor) or factor.numel() != 1 or factor.requires_grad:
        return 0.0
    scale = float(factor)
    return scale if scale >= _SCALED and scale.hex().startswith("0x1.0000000000000p") else 0.0


def _terms(node: Any, depth: int) -> Iterator[Any]:
    """Yield the terms of a sum."""
    if node is None or not depth:
        return
    if not node.name().startswith(("Add", "Sub", "Neg")):
        yield node
        return
    for following, _ in node.next_functions:
        yield from _terms(following, depth - 1)


def of_script(path: str) -> str:
    """Say in words which calls of a script have no effect in a loop of brim's.

    Empty where there are none.

    Args:
        path: of a script; an unreadable one has nothing.
    """
    try:
        names = set(_names(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)))
    except (OSError, SyntaxError, ValueError):
        return ""
    found = sorted(name for name in names if "clip_grad" in name and name != "clip_grad_norm")
    if not found:
        return ""
    return (
        f"{path} calls {found[0]}, which finds no gradients to clip: they are there only while "
        "brim updates the "
        "weights, and brim.join(..., clip_norm=...) clips them"
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
