"""Networks and optimizers of a script that its job does not have.

brim carries to other workers what `brim.join` was given. A script that trains something else beside
it is warned, or refused, as soon as this shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from brim.errors import SpecError
from brim.train.checks.comparisons import nodes_of

_NAMED = 3  # shapes in a warning


def of_loss(loss: Tensor, parameters: Iterable[nn.Parameter], *, by_rows: bool) -> str:
    """Say in words which parameters in a loss's graph the job does not have; empty where none is.

    Args:
        loss: a scalar with its graph.
        parameters: of the job.
        by_rows: some of them show in no graph.

    >>> one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> inputs = torch.ones(1, 2)
    >>> of_loss(one(inputs).mean(), one.parameters(), by_rows=False)
    ''
    >>> of_loss((one(inputs) - other(inputs)).mean(), one.parameters(), by_rows=False)[:70]
    'the loss depends on 2 parameters that brim.join was not given (of shap'
    """
    ids = {id(parameter) for parameter in parameters}
    leaves = (getattr(node, "variable", None) for node in nodes_of(loss))
    found = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    strangers = [leaf for leaf in found if id(leaf) not in ids]
    if strangers and len(strangers) == len(found) and not by_rows:
        return (
            "the loss depends on no parameter of the model given to brim.join, so nothing of it is "
            "trained: build the model once, before brim.join, and call that one"
        )
    if not strangers:
        return ""
    shapes = ", ".join(str(list(leaf.shape)) for leaf in strangers[:_NAMED])
    rest = ", ..." if len(strangers) > _NAMED else ""
    count = "1 parameter" if len(strangers) == 1 else f"{len(strangers)} parameters"
    return (
        f"the loss depends on {count} that brim.join was not given (of shape {shapes}{rest}): brim "
        "neither trains nor carries them to other workers; "
        "brim.join([model, other], optimizer) takes several networks"
    )


def refuse_other_optimizers(
    optimizers: Iterable[torch.optim.Optimizer], is_amid_batch: Callable[[], bool], *, owner: object
) -> None:
    """Have optimizers that the job does not have refused where they step while a batch is computed.

    Args:
        optimizers: those of the job.
        is_amid_batch: whether a batch was handed out whose loss has not come.
        owner: with this object the check ends.
    """
    ids = frozenset(map(id, optimizers))

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) not in ids and is_amid_batch():
            raise SpecError(
                "your training loop",
                got=f"a step of an optimizer ({type(optimizer).__name__}) that brim.join was not "
                "given",
                need="only the job's own optimizers, which brim steps: each worker computes other "
                "batches",
                hint="brim.join([model, other], [optimizer, other_optimizer]), and "
                "job.step(loss, optimizer=...) for each",
            )

    weakref.finalize(owner, register_optimizer_step_pre_hook(check).remove)
