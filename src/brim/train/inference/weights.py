"""A trained model from a checkpoint.

The training file makes the network, the checkpoint has its weights.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from brim.data import fitted
from brim.domain.job import JobSpec
from brim.domain.seeds import mix
from brim.domain.table_parts import StoredTable
from brim.embeddings.keyed import Embedding, HeldRows, hold
from brim.embeddings.table_file import WEIGHT
from brim.embeddings.table_parts import latest, read_table
from brim.errors import EnvironmentFault, SpecError
from brim.storage.checkpoints import Store
from brim.storage.file_stores import open_place
from brim.storage.job_file import with_code_in_place
from brim.train.checks.return_checks import check_model
from brim.train.context import shared_environment
from brim.train.entry.training_file import call, device_of, functions_of, load
from brim.train.keras.network import adopt, keras_parts
from brim.train.state.checkpoint import state_of


def model_of(spec: JobSpec) -> nn.Module:
    """Return the model as `trained_model` does, in a process with other work.

    Chance, variables and import path stay as they are.

    Raises: as `trained_model`.
    """
    assert spec.inference is not None
    environment, path = dict(os.environ), list(sys.path)
    spec = with_code_in_place(Path(spec.inference.run), spec)
    os.environ |= shared_environment(spec, "")  # what `brim.param` reads
    try:
        with torch.random.fork_rng():
            return trained_model(functions_of(load(spec.file), spec), spec)
    finally:
        os.environ.clear()
        os.environ |= environment
        sys.path[:] = path


def trained_model(module: ModuleType, spec: JobSpec) -> nn.Module:
    """Return the model as `loaded_model` does, ready to be used.

    Raises: as `loaded_model`.
    """
    return loaded_model(module, spec).eval()


def loaded_model(module: ModuleType, spec: JobSpec) -> nn.Module:
    """The model of a training file with the weights of `spec.inference`, in training mode.

    For use, some layers change their weights: LoRA's merge matrices into them.

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
    for part in keras_parts(model):
        adopt(part)
    store = Store(open_place(spec.inference.checkpoints))
    stored = store.load(spec.inference.step)
    state = state_of(stored)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    keyed = {
        f"{name}.{WEIGHT}" if name else WEIGHT: module
        for name, module in model.named_modules()
        if isinstance(module, Embedding)
    }
    tables = {table.name: table for table in stored.tables}
    _put(
        {name: tensor for name, tensor in tensors.items() if name not in tables},
        state["model"],
        spec.inference.checkpoint,
    )
    for name, table in tables.items():
        if name in keyed:
            _hold(keyed[name], store, table, spec.inference.checkpoint)
        elif not table.oldest:  # else they are candidates
            _put_table(tensors.get(name), store, table, spec.inference.checkpoint)
    return model.to(device_of(spec))


def _put(tensors: dict[str, Tensor], weights: dict[str, Tensor], field: str) -> None:
    for name in sorted(tensors.keys() | weights.keys()):
        need, stored = _shape(tensors.get(name)), _shape(weights.get(name))
        if need != stored:
            raise _other_model(name, need, stored, field)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(weights[name])


@torch.no_grad()
def _put_table(tensor: Tensor | None, store: Store, table: StoredTable, field: str) -> None:
    """Put the rows of an embedding into its weight, file by file."""
    for rows in read_table(store, table):
        weight = rows.fields[WEIGHT]
        stored = f"shape {[table.rows, *weight.shape[1:]]}"
        if tensor is None or _shape(tensor) != stored:
            raise _other_model(table.name, _shape(tensor), stored, field)
        if len(rows.keys) and not 0 <= int(rows.keys[0]) <= int(rows.keys[-1]) < len(tensor):
            raise EnvironmentFault(f"{field} has rows of {table.name} that it cannot have")
        tensor.index_copy_(0, rows.keys, weight.to(tensor.dtype))


def _hold(module: Embedding, store: Store, table: StoredTable, field: str) -> None:
    """Give an embedding the rows that ids have."""
    keys, rows = latest(store, table, WEIGHT)
    if rows.shape[1:] != (module.dim,):
        need, stored = (f"rows of {dim} numbers" for dim in (module.dim, *rows.shape[1:]))
        raise _other_model(table.name, need, stored, field)
    hold(module, HeldRows(keys, rows.to(module.weight.dtype)))


def _other_model(name: str, need: str, stored: str, field: str) -> SpecError:
    return SpecError(
        f"model(): tensor {name!r}",
        got=need,
        need=f"{stored}, as in {field}",
        hint="use the training file, its data and its --set as they were when it was trained",
    )


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"shape {list(tensor.shape)}"
