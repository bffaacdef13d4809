"""A Keras model as the network of a job.

Keras' torch backend keeps all state in Parameters, also what no gradient trains: moving averages,
counters, seeds. In a job such state is a buffer, which brim adds up over micro-batches. Random
numbers come from torch's generator, which brim seeds for every micro-batch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from brim.errors import SpecError

_SEED_BOUND = 2**31 - 1
_STATE = "keras_state_"  # begins the name of a buffer


def is_keras(thing: object) -> bool:
    """Return whether this is a Keras object: a model, a layer, or an optimizer."""
    if "keras" not in sys.modules:
        return False
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(thing).__mro__)


def keras_parts(model: nn.Module) -> list[Any]:
    """Return the Keras models and layers in a network that are in no other one of them.

    >>> keras_parts(nn.Linear(1, 1))
    []
    """
    if "keras" not in sys.modules:
        return []
    found, inside = [], set[int]()
    for module in model.modules():  # a module comes before its parts
        if id(module) not in inside and is_keras(module):
            found.append(module)
            inside |= {id(part) for part in module.modules()}
    return found


def choose_backend() -> None:
    """Have Keras compute with torch, where it is not imported yet and nothing else was chosen."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")


def check_backend() -> None:
    """Check that Keras, which is imported, computes with torch.

    Raises:
        SpecError: it computes with something else.
    """
    name = sys.modules["keras"].backend.backend()
    if name != "torch":
        raise SpecError(
            "Keras",
            got=f"the backend {name!r}",
            need="its torch backend, chosen before Keras is imported",
            hint="import brim.keras above import keras, or set KERAS_BACKEND=torch",
        )


def adopt(model: Any, optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
    """Prepare a Keras model, or a layer, for a job; once more changes nothing.

    Args:
        model: built; trained by `optimizers`, if any.
        optimizers: of torch, over the model's parameters; what becomes a buffer is taken out.

    Raises:
        SpecError: it has no weights yet, or carries state from sample to sample.
    """
    check_backend()
    layers = model._flatten_layers()
    _check_layers(model, layers)
    state = {id(variable): variable for layer in layers for variable in _own_state(layer)}
    # By their memory: a model that shares a layer with another one has Parameters of its own there.
    memory = {variable._value.data_ptr() for variable in state.values()}
    for module in model.modules():
        if isinstance(module, nn.ParameterDict):
            for key in [key for key, value in module.items() if value.data_ptr() in memory]:
                del module[key]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p.data_ptr() not in memory]
    buffers = {id(buffer) for module in model.modules() for buffer in module.buffers(recurse=False)}
    for variable in state.values():
        if isinstance(variable._value, nn.Parameter):
            # Variable.assign copies in place, so that Keras and brim have one tensor.
            variable._value = variable._value.detach()
        if id(variable._value) not in buffers:
            model.register_buffer(f"{_STATE}{len(model._buffers)}", variable._value)
    _draw_seeds_from_torch()


def _own_state(layer: Any) -> list[Any]:
    """Return the variables of a layer itself that are not weights, frozen or not."""
    layer.torch_params  # noqa: B018 - Keras makes its ParameterDict when it is first looked at
    return [*layer._non_trainable_variables, *(seed.state for seed in layer._seed_generators)]


def _check_layers(model: Any, layers: Sequence[Any]) -> None:
    unbuilt = next((layer for layer in layers if not layer.built), None)
    if unbuilt is not None:
        raise SpecError(
            f"Keras model {model.name!r}",
            got=f"a layer without weights yet, {unbuilt.name!r}",
            need="a model that is built: its weights are what is trained",
            hint="begin it with keras.Input(shape), or call it on a few samples first",
        )
    stateful = next((layer for layer in layers if getattr(layer, "stateful", False)), None)
    if stateful is not None:
        raise SpecError(
            f"Keras layer {stateful.name!r}",
            got="stateful=True",
            need="a layer that starts each batch from scratch: the state of a batch's samples is on "
            "the worker that had them",
            hint="stateful=False, or a loop of your own with job.carry",
        )


def _draw_seeds_from_torch() -> None:
    """Have every SeedGenerator of this process draw from torch's generator.

    Its own counter would depend on the micro-batches that a worker has had. Its seed stays the
    first half of what it gives.
    """
    generator = import_module("keras").random.SeedGenerator
    if generator.next is not _next_seed:
        generator.next = _next_seed


def _next_seed(self: Any, ordered: bool = True) -> torch.Tensor:
    seed = self.state.value[0]
    drawn = torch.randint(_SEED_BOUND, (), dtype=seed.dtype).to(seed.device)
    return torch.stack([seed, drawn])


@contextlib.contextmanager
def copied_by_structure() -> Iterator[dict[int, Any]]:
    """Have `copy.deepcopy` copy Keras models part by part, not through their files.

    A copy through a file has none of the objects that others refer to.

    Yields:
        The memo for `copy.deepcopy`.
    """
    if "keras" not in sys.modules:
        yield {}
        return
    saveable = import_module("keras.src.saving.keras_saveable").KerasSaveable
    usual = saveable.__reduce__
    del saveable.__reduce__
    try:
        yield {id(module): module for module in list(sys.modules.values())}
    finally:
        saveable.__reduce__ = usual


def forward(model: nn.Module, inputs: Any) -> Any:
    """Call a Keras model in the mode that torch knows: Keras takes it as an argument."""
    if getattr(model, "_call_has_training_arg", False):
        return model(inputs, training=model.training)
    return model(inputs)


def forward_in_a_file(model: Any, inputs: Any) -> Any:
    """Call the Keras model of a training file, whose `loss(output, target)` sees the output alone.

    Raises:
        SpecError: the model has losses of its own, which that loss would leave out.
    """
    output = forward(model, inputs)
    if model.training and model.losses:
        raise SpecError(
            f"Keras model {model.name!r}",
            got="losses of its own (a regularizer, or add_loss)",
            need="a loss of output and target, which is all that a training file sees",
            hint="brim.keras.fit, or a loop of your own: job.step(loss + sum(model.losses))",
        )
    return output
