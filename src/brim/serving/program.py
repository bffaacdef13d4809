"""The program that turns inputs into predictions, without its weights.

The weights change, and the program stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from brim.errors import EnvironmentFault, SpecError
from brim.serving.inputs import Inputs
from brim.serving.keyed import KeyedLookup, with_lookups
from brim.serving.manifest import BundledTable
from brim.storage.files import write_through
from brim.train.entry.lightning import LightningFile
from brim.train.entry.training_file import forward_of
from brim.train.evaluation import Forward
from brim.train.inference.export import content_of, trace, traced
from brim.train.inference.predictions import output_columns

State = dict[str, Tensor]  # by name
_KINDS = (nn.Embedding, nn.EmbeddingBag)
# Elements of an embedding's weight from which on it is a file of rows: copying fewer takes less
# than a millisecond.
_MIN_ROW_FILE_ELEMENTS = 1 << 16


class Served(nn.Module):
    """A model as its training file calls it, with the file's predict(output).

    Args:
        model: the network.
        forward: `forward(model, inputs)`; None calls the model.
        predict: of the training file, or None.
    """

    def __init__(
        self, model: nn.Module, forward: Forward | None, predict: Callable[[Any], Any] | None
    ) -> None:
        super().__init__()
        self.model = model
        self._forward, self._predict = forward, predict

    def forward(self, inputs: Inputs) -> dict[str, Any]:
        output = self.model(inputs) if self._forward is None else self._forward(self.model, inputs)
        predictions = output if self._predict is None else self._predict(output)
        return dict(predictions) if isinstance(predictions, Mapping) else {"output": predictions}


def served_of(module: ModuleType, model: nn.Module) -> Served:
    """Return the served part of a training file's model."""
    forward = forward_of(module)
    if isinstance(module, LightningFile):
        fitting = module.fitting

        def forward(model: nn.Module, inputs: Inputs) -> Any:
            return fitting.predict(model, {"batch": inputs})

    return Served(with_lookups(model), forward, getattr(module, "predict", None)).eval()


def tables_of(served: nn.Module) -> list[BundledTable]:
    """Name the weights that are files of rows."""
    found = [
        (f"{name}.weight", isinstance(module, KeyedLookup))
        for name, module in served.named_modules()
        if isinstance(module, KeyedLookup)
        or (isinstance(module, _KINDS) and module.weight.numel() >= _MIN_ROW_FILE_ELEMENTS)
    ]
    return [
        BundledTable(name=name, file=f"rows-{index}.safetensors", keyed=keyed)
        for index, (name, keyed) in enumerate(found)
    ]


def save_program(path: Path, served: Served, inputs: Inputs) -> str:
    """Write a program of torch.export that has no weights.

    Returns:
        Why there is none: the model cannot be traced, or its trace gives other bits; empty where
            there is one.

    Raises:
        OSError: the disk does not take it.
    """
    try:
        program = traced("bundle", lambda: trace(served, inputs))
        with torch.no_grad():
            expected, actual = served(inputs), program.module()(inputs)
        if expected.keys() != actual.keys() or not all(
            torch.equal(expected[name], actual[name]) for name in actual
        ):
            return "its trace gives other numbers"
        for name, tensor in program.state_dict.items():
            empty = tensor.new_empty(0)
            program.state_dict[name] = (
                nn.Parameter(empty, requires_grad=False)
                if isinstance(tensor, nn.Parameter)
                else empty
            )
        content = traced("bundle", lambda: content_of(program))
    except SpecError as error:
        return error.got
    write_through(path, content)
    return ""


def load_program(path: Path) -> nn.Module:
    """Load the program of `save_program`.

    Raises:
        EnvironmentFault: this torch cannot read it.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises what it likes
        message = str(error).partition("\n")[0]
        raise EnvironmentFault(
            f"torch {torch.__version__} cannot read {path}: {message}"
        ) from error
    # What a request may hold is checked before; checking it again takes longer than computing a
    # row.
    unguarded = "check_guards" in inspect.signature(program.module).parameters
    module: nn.Module = program.module(check_guards=False) if unguarded else program.module()
    module._forward_pre_hooks.clear()
    return module


class Program:
    """A program and the weights that it has just now. One thread at a time may run it.

    Args:
        module: with parameters of the names that a `State` has.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state: State | None = None

    def run(self, state: State, inputs: Inputs, rows: int) -> dict[str, Tensor]:
        """Return the columns of predictions.

        Raises:
            SpecError: the model gives no tensor with a row for each row.
        """
        if state is not self._state:
            self._put(state)
        with torch.inference_mode():
            return output_columns(self._module(inputs), None, rows)

    def _put(self, state: State) -> None:
        self._state = None
        for name, tensor in state.items():
            place, _, last = name.rpartition(".")
            try:
                module = self._module.get_submodule(place)
            except AttributeError:  # a trace leaves out what it does not use
                continue
            if last in module._parameters:
                module._parameters[last] = (
                    nn.Parameter(tensor, requires_grad=False)
                    if not isinstance(tensor, nn.Parameter)
                    else tensor
                )
            elif last in module._buffers:
                module._buffers[last] = tensor
        self._state = state
