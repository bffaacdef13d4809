"""A trained model from a checkpoint: the training file makes the network, the checkpoint has its weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from brim.domain.job import JobSpec
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.storage.checkpoints import Store
from brim.storage.places import open_place
from brim.train.checkpoint import state_of
from brim.train.context import shared_environment
from brim.train.data import fitted
from brim.train.returned import check_model
from brim.train.tables.tree import joined
from brim.train.training_file import call, device_of, functions_of, load

__all__ = ["model_of", "trained_model"]


def model_of(spec: JobSpec) -> nn.Module:
    """As `trained_model`, in a process that has other things to do: chance, variables and import path stay as they are.

    Raises: as `trained_model`.
    """
    environment, path = dict(os.environ), list(sys.path)
    os.environ |= shared_environment(spec, "")  # what `brim.param` reads
    try:
        with torch.random.fork_rng():
            return trained_model(functions_of(load(spec.file), spec), spec)
    finally:
        os.environ.clear()
        os.environ |= environment
        sys.path[:] = path


def trained_model(module: ModuleType, spec: JobSpec) -> nn.Module:
    """The model of a training file with the weights of `spec.inference`, ready to be used.

    Raises:
        SpecError: the checkpoint is of another model.
        EnvironmentFault: the checkpoint is damaged.
        UserCodeError: the file raised.
    """
    assert spec.inference is not None
    fitted.use(Path(spec.inference.run))
    torch.manual_seed(mix(spec.seed))
    model: nn.Module = call(lambda: module.model())
    check_model(model)
    stored = Store(open_place(spec.inference.checkpoints)).load(spec.inference.step)
    _put(model, joined(state_of(stored))["model"], spec.inference.checkpoint)
    return model.to(device_of(spec)).eval()


def _put(model: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in sorted(own.keys() | weights.keys()):
        made, stored = _shape(own.get(name)), _shape(weights.get(name))
        if made != stored:
            raise SpecError(
                f"model(): tensor {name!r}",
                got=made,
                need=f"{stored}, as in {where}",
                hint="use the training file, its data and its --set as they were when it was trained",
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"shape {list(tensor.shape)}"
