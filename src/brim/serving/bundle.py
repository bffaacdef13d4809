"""A version of a model, opened: raw rows in, predictions out."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from brim.data import fitted
from brim.data.datasets import columnar_in
from brim.data.encoding import Encoder
from brim.domain.seeds import mix
from brim.errors import EnvironmentFault
from brim.serving.contents import Contents
from brim.serving.export import COLUMNS
from brim.serving.inputs import ColumnReader, Inputs, TensorReader
from brim.serving.keyed import KEYS, STARTS, starts_of
from brim.serving.manifest import DENSE, BundleManifest, read_manifest
from brim.serving.program import Program, State, load_program, served_of
from brim.serving.rows import RowChange, Sides, check_change, open_change, open_tensors
from brim.storage.job_file import read_job
from brim.train.context import shared_environment
from brim.train.entry.training_file import call, functions_of, load


@dataclass(frozen=True, eq=False)
class Model:
    """One version of a model.

    Args:
        manifest: of the bundle, or of the delta that made it this version.
        program: what computes; versions of one bundle share it.
        reader: of requests.
        state: the weights.
        sides: of the rows.
        contents: of the bundle: its code may ask for more of them at any time.
    """

    manifest: BundleManifest
    program: Program
    reader: ColumnReader | TensorReader
    state: State
    sides: Sides
    contents: Contents

    @property
    def version(self) -> str:
        return self.manifest.version

    def predict(self, inputs: Inputs, rows: int) -> dict[str, Tensor]:
        """Return the columns of predictions; one thread at a time may ask."""
        return self.program.run(self.state, inputs, rows)


def open_bundle(directory: Path) -> Model:
    """Open a bundle, checking every byte; its files are not needed afterwards.

    Raises:
        SpecError: this is no bundle.
        EnvironmentFault: it is damaged, or of another version of brim or torch.
        UserCodeError: its training file raised.
    """
    manifest = read_manifest(directory)
    if manifest.base:
        raise EnvironmentFault(
            f"{directory} is a delta, which changes version {manifest.base}: serve the directory "
            "with both"
        )
    contents = Contents(directory, manifest)
    folder = contents.folder
    encoder, module = _with_code(folder, manifest) if manifest.code else (None, None)
    if manifest.program:
        module = load_program(folder / manifest.program)
    assert module is not None, "a bundle has a program or the code of one"
    if encoder is None and (folder / COLUMNS).exists():
        encoder = fitted.encoder_in(folder / COLUMNS)
    reader = (
        TensorReader(manifest.inputs) if encoder is None else ColumnReader(encoder, manifest.nulls)
    )
    sides = Sides({table.name: contents.tensors[table.file] for table in manifest.tables})
    state = _state_of(open_tensors(contents.tensors[DENSE]), sides, manifest)
    return Model(manifest, Program(module), reader, state, sides, contents)


def _with_code(directory: Path, manifest: BundleManifest) -> tuple[Encoder | None, nn.Module]:
    """Return the training file's products: columns with functions, and the model."""
    spec = replace(read_job(directory), file=str(directory / manifest.code))
    os.environ |= shared_environment(spec, "")
    fitted.use(directory)
    _forget_code()
    _code.append(Path(spec.file).resolve().parent)
    file = functions_of(load(spec.file), spec)
    torch.manual_seed(mix(spec.seed))
    module = served_of(file, call(lambda: file.model()))
    if not (directory / COLUMNS).exists():
        return None, module
    data = columnar_in(call(lambda: file.dataset("train")))
    return (None if data is None else data.encoder), module


_code: list[Path] = []  # the directory of the code that was loaded last


def _forget_code() -> None:
    """Forget the modules of earlier versions.

    The next version then imports its own, which may have the same names.
    """
    while _code:
        directory = _code.pop()
        if str(directory) in sys.path:
            sys.path.remove(str(directory))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(directory):
                del sys.modules[name]


def _state_of(dense: State, sides: Sides, manifest: BundleManifest) -> State:
    state = dense | {name: rows.values for name, rows in sides.now.items()}
    for table in manifest.tables:
        if table.keyed:
            keys = sides.now[table.name].keys
            state |= {table.sibling(KEYS): keys, table.sibling(STARTS): starts_of(keys)}
    return {
        name: nn.Parameter(tensor, requires_grad=False) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def changed(model: Model, directory: Path) -> Model:
    """Apply a delta: return the next version of a model.

    No computation with a version older than `model` may be under way.

    Raises:
        SpecError: this is no delta.
        EnvironmentFault: it is damaged, or changes another version; `model` stays as it is.
    """
    manifest = read_manifest(directory)
    if manifest.base != model.version:
        relation = f"changes version {manifest.base}" if manifest.base else "is a bundle"
        raise EnvironmentFault(f"{directory} {relation}, and {model.version} is served")
    tensors = Contents(directory, manifest).tensors
    dense = open_tensors(tensors[DENSE])
    changes = {table.name: open_change(tensors[table.file]) for table in manifest.tables}
    problem = _why_not(model, manifest, dense, changes)
    if problem:
        raise EnvironmentFault(f"{directory} does not fit version {model.version}: {problem}")
    model.sides.change(changes)
    return replace(model, manifest=manifest, state=_state_of(dense, model.sides, manifest))


def _why_not(
    model: Model, manifest: BundleManifest, dense: State, changes: dict[str, RowChange]
) -> str:
    if manifest.columns_sha256 != model.manifest.columns_sha256:
        return "its columns were fitted to other rows"
    if _kinds(manifest) != _kinds(model.manifest):
        return f"it changes {sorted(changes)}, the embeddings are {sorted(model.sides.now)}"
    keyed = {table.name: table for table in manifest.tables if table.keyed}
    side_names = {table.sibling(name) for table in keyed.values() for name in (KEYS, STARTS)}
    for name in sorted(model.state.keys() - changes.keys() - side_names | dense.keys()):
        own_shape, other_shape = (_shape_of(state.get(name)) for state in (model.state, dense))
        if own_shape != other_shape:
            return f"{name!r} is {other_shape} there, {own_shape} here"
    for name, change in changes.items():
        problem = check_change(model.sides.now[name], change)
        if problem:
            return f"{name!r}: {problem}"
        own_keys = model.sides.now[name].keys
        if name not in keyed and (
            len(change.removed)
            or (len(change.rows.keys) and int(change.rows.keys[-1]) >= len(own_keys))
        ):
            return f"{name!r} has rows by their numbers, which do not come and go"
    return ""


def _kinds(manifest: BundleManifest) -> dict[str, bool]:
    return {table.name: table.keyed for table in manifest.tables}


def _shape_of(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{list(tensor.shape)} of {tensor.dtype}"
