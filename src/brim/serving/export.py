"""Export: a bundle from a trained model, and a delta from two versions of it."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from brim.data import fitted
from brim.data.datasets import columnar_in
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, SpecError
from brim.serving.contents import Contents
from brim.serving.keyed import KEYS, STARTS
from brim.serving.manifest import (
    DENSE,
    BundledTable,
    BundleManifest,
    read_manifest,
    version_of,
    write_manifest,
)
from brim.serving.program import Served, save_program, served_of, tables_of
from brim.serving.rows import (
    EmbeddingRows,
    change_between,
    open_rows,
    open_tensors,
    write_change,
    write_rows,
)
from brim.storage.checkpoints import Store
from brim.storage.file_stores import open_place
from brim.storage.files import new_directory, write_through
from brim.storage.job_file import JOB_FILE
from brim.train.context import shared_environment
from brim.train.entry.training_file import call, functions_of, load
from brim.train.inference.export import example_inputs, shapes_of
from brim.train.inference.weights import trained_model
from brim.train.software import versions
from brim.train.state.transfer import weights_sha256

_POLL_INTERVAL = 0.1  # seconds between two looks for a checkpoint
COLUMNS, PROGRAM, CODE = fitted.COLUMNS, "model.pt2", "code"


@dataclass(frozen=True)
class _Weights:
    """The weights of one version."""

    version: str
    sha256: str
    step: int
    tables: list[BundledTable]
    rows: dict[str, EmbeddingRows]  # by the names of tables
    dense: dict[str, Tensor]
    columns_sha256: str


@dataclass(frozen=True)
class Exported:
    """The directory and the files of an export.

    Args:
        manifest: of the bundle or delta.
        rows: how many of all embeddings are in it.
        weights: of this version, whole.
    """

    manifest: BundleManifest
    rows: int
    weights: _Weights

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.manifest.files.values())


class Exporter:
    """Writes versions of the model that a training file makes.

    Args:
        spec: of a job that uses the model; `spec.inference` names the run and the checkpoint.

    Raises:
        SpecError, UserCodeError: the file or its data will not do.
    """

    def __init__(self, spec: JobSpec) -> None:
        assert spec.inference is not None
        os.environ |= shared_environment(spec, "")  # what `brim.param` reads
        self._spec, self._inference = spec, spec.inference
        self._module = functions_of(load(spec.file), spec)
        fitted.use(Path(spec.inference.run))
        self._data = columnar_in(call(lambda: self._module.dataset("train")))

    def steps(self) -> list[int]:
        """The steps of all checkpoints that there are now."""
        return Store(open_place(self._inference.checkpoints)).steps()

    def bundle(self, directory: Path, *, step: int | None = None) -> Exported:
        """Write a bundle.

        Args:
            step: of the checkpoint; None takes that of the spec.

        Raises:
            SpecError, UserCodeError: the checkpoint is of another model, or the file's code raised.
            EnvironmentFault: the checkpoint is damaged, or the disk did not take the bundle;
                nothing of it is left.
        """
        served, weights = self._version(step)
        with new_directory(directory) as draft:
            encoder = None if self._data is None else self._data.encoder
            inputs = call(lambda: example_inputs(self._module))
            untraced = save_program(draft / PROGRAM, served, inputs)
            needs_code = bool(untraced) or (encoder is not None and fitted.has_functions(encoder))
            if encoder is not None:
                fitted.write(draft / COLUMNS, encoder)
            code, left_out = self._take_code(draft) if needs_code else ("", [])
            if untraced:
                left_out = [f"a traced program: {untraced}", *left_out]
            for table in weights.tables:
                write_rows(draft / table.file, weights.rows[table.name])
            _write_dense(draft, weights.dense)
            manifest = self._manifest(
                weights,
                inputs=None if encoder else shapes_of(inputs),
                nulls=[]
                if self._data is None or self._data.source.typed
                else list(self._data.source.null),
                program="" if untraced else PROGRAM,
                code=code,
                left_out=left_out,
            )
            _describe(draft, manifest)
            manifest = write_manifest(draft, manifest)
        return Exported(manifest, sum(len(rows.keys) for rows in weights.rows.values()), weights)

    def delta(
        self, directory: Path, *, base_version: str | Exported, step: int | None = None
    ) -> Exported:
        """Write the changes since a version: rows of embeddings, and all other weights.

        Args:
            base_version: a version, of which the run has the checkpoint; the directory of a bundle or a
                delta; or what was written here before.
            step: as for `bundle`.

        Raises: as `bundle`; and SpecError, where there is nothing that a delta could change.
        """
        base = (
            base_version.weights if isinstance(base_version, Exported) else self._base(base_version)
        )
        _, weights = self._version(step)
        _check_base(
            base, weights, base.version if isinstance(base_version, Exported) else base_version
        )
        with new_directory(directory) as draft:
            changes = {
                name: change_between(base.rows[name], rows) for name, rows in weights.rows.items()
            }
            for table in weights.tables:
                write_change(draft / table.file, changes[table.name])
            _write_dense(draft, weights.dense)
            manifest = self._manifest(weights, base=base.version)
            _describe(draft, manifest)
            manifest = write_manifest(draft, manifest)
        rows = sum(len(change.rows.keys) + len(change.removed) for change in changes.values())
        return Exported(manifest, rows, weights)

    def _version(self, step: int | None) -> tuple[Served, _Weights]:
        step = self._inference.step if step is None else step
        spec = replace(self._spec, inference=replace(self._inference, step=step))
        model = trained_model(self._module, spec).cpu()
        sha256 = weights_sha256(model)
        served = served_of(self._module, model)
        dense = {
            name: tensor
            for name, tensor in served.state_dict().items()
            if isinstance(tensor, Tensor)
        }
        tables, rows = tables_of(served), {}
        for table in tables:
            values = dense.pop(table.name)
            rows[table.name] = EmbeddingRows(torch.arange(len(values)), values)
            if table.keyed:
                found = {name: dense.pop(table.sibling(name)) for name in (KEYS, STARTS)}
                rows[table.name] = EmbeddingRows(found[KEYS], values)
        columns = "" if self._data is None else fitted.sha256_of(self._data.encoder)
        return served, _Weights(
            version_of(step, sha256), sha256, step, tables, rows, dense, columns
        )

    def _base(self, base: str) -> _Weights:
        """The weights of the version that a delta is to change."""
        directory = Path(base)
        if not directory.is_dir():
            return self._weights_of_version(base, base)
        manifest = read_manifest(directory)
        if manifest.base:
            return self._weights_of_version(manifest.version, base)
        tensors = Contents(directory, manifest).tensors
        return _Weights(
            manifest.version,
            manifest.weights_sha256,
            manifest.step,
            manifest.tables,
            {table.name: open_rows(tensors[table.file]) for table in manifest.tables},
            open_tensors(tensors[DENSE]),
            manifest.columns_sha256,
        )

    def _weights_of_version(self, version: str, base: str) -> _Weights:
        """The weights of a version that the run has a checkpoint of."""
        number = version.partition("-")[0]
        if not number.isdecimal():
            raise SpecError(
                "--since",
                got=repr(base),
                need="a version such as 00000575-1a2b3c4d5e6f, or a bundle",
                hint=f"--since {base}/",
            )
        step, hint = int(number), "--format bundle: a whole one"
        if step not in self.steps():
            actual = f"{base!r}, of whose step {step} the run has no checkpoint"
            raise SpecError(
                "--since", got=actual, need="a version with a checkpoint, or a bundle", hint=hint
            )
        _, weights = self._version(step)
        if weights.version != version:
            actual = f"{base!r}; the run's checkpoint of that step is {weights.version}"
            raise SpecError("--since", got=actual, need="a version of this run", hint=hint)
        return weights

    def _take_code(self, draft: Path) -> tuple[str, list[str]]:
        """Copy the training file, its own modules, and its parameters.

        Return in words the files that are not copied.
        """
        file = Path(self._spec.file).resolve()
        taken_files = {file}
        for module in list(sys.modules.values()):
            path = Path(getattr(module, "__file__", None) or "/")
            if (
                path.is_relative_to(file.parent)
                and path.suffix == ".py"
                and "site-packages" not in path.parts
            ):
                taken_files.add(path)
        for path in taken_files:
            copy = draft / CODE / path.relative_to(file.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        spec = replace(self._spec, env={}, file=file.name, directory="", inference=None)
        write_through(draft / JOB_FILE, msgspec.json.encode(spec))
        left_out = ["packages that the training file imports", "files that it reads"]
        if self._spec.env:
            left_out.append(f"environment variables: {', '.join(sorted(self._spec.env))}")
        return f"{CODE}/{file.name}", left_out

    def _manifest(self, weights: _Weights, **fields: Any) -> BundleManifest:
        store = Store(open_place(self._inference.checkpoints))
        return BundleManifest(
            version=weights.version,
            step=weights.step,
            weights_sha256=weights.sha256,
            checkpoint=store.location(weights.step),
            training_file=self._spec.file,
            threads=self._spec.threads,
            versions=dict(versions()),
            columns_sha256=weights.columns_sha256,
            tables=weights.tables,
            **fields,
        )


def export_each(
    exporter: Exporter, folder: Path, *, stop: threading.Event, say: Callable[[Exported], None]
) -> None:
    """Write each new checkpoint of a run as a version, until `stop`.

    The first is a bundle, and so is each that comes when the deltas since the last bundle outgrew
    it; the others are deltas. What is older than the bundle before the last one is removed.

    Args:
        folder: for a directory for each version, named by its step.
        say: is told of each version.

    Raises: as `Exporter.bundle`.
    """
    last: Exported | None = None
    whole: list[int] = []  # steps of bundles
    written_bundles: list[tuple[int, Path]] = []  # all that was written here and is there
    written, room = 0, 0  # bytes of deltas since the last bundle, and of that bundle
    while True:
        step = max(exporter.steps(), default=0)
        if last is None or step > last.manifest.step:
            directory = folder / f"{step:08d}"
            try:
                if directory.exists():  # another exporter made it, which nobody knows anything of
                    directory = folder / f"{step:08d}-{uuid.uuid4().hex[:8]}"
                if last is None or written > room:
                    last = exporter.bundle(directory, step=step)
                    written, room = 0, last.size_bytes
                    whole.append(step)
                else:
                    last = exporter.delta(directory, base_version=last, step=step)
                    written += last.size_bytes
            except EnvironmentFault:
                if step in exporter.steps():
                    raise
            else:  # where it fails, the run has removed that checkpoint: there is a later one
                written_bundles.append((step, directory))
                say(last)
                if len(whole) > 2:
                    del whole[0]
                written_bundles = _without_older(written_bundles, oldest_step=whole[0])
        if stop.wait(_POLL_INTERVAL):
            return


def _without_older(
    written_bundles: list[tuple[int, Path]], *, oldest_step: int
) -> list[tuple[int, Path]]:
    """Remove bundles and deltas older than the bundle of a step; the rest."""
    for step, directory in written_bundles:
        if step < oldest_step:
            shutil.rmtree(directory, ignore_errors=True)
    return [bundle for bundle in written_bundles if bundle[0] >= oldest_step]


def _write_dense(draft: Path, dense: Mapping[str, Tensor]) -> None:
    save_file(
        {name: tensor.detach().clone().contiguous() for name, tensor in dense.items()},
        draft / DENSE,
    )


def _check_base(base: _Weights, weights: _Weights, base_name: str) -> None:
    def shapes(weights_of: _Weights) -> dict[str, Any]:
        dense = {
            name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in weights_of.dense.items()
        }
        return {
            **dense,
            **{
                name: (rows.values.dtype, rows.values.shape[1])
                for name, rows in weights_of.rows.items()
            },
        }

    if base.version == weights.version:
        raise SpecError(
            "--since",
            got=f"{base_name!r}, which is this version",
            need="an earlier one",
            hint="train on",
        )
    if shapes(base) != shapes(weights) or base.columns_sha256 != weights.columns_sha256:
        raise SpecError(
            "--since",
            got=f"{base_name!r}, a version of another model or of other columns",
            need="one of the same training file and run",
            hint="--format bundle: a whole one",
        )


def _describe(draft: Path, manifest: BundleManifest) -> None:
    """`README.md`, for people."""
    description = (
        f"What changed since version `{manifest.base}`"
        if manifest.base
        else "A trained model to be served"
    )
    use = (
        "Put it into the directory that `brim serve` watches."
        if manifest.base
        else "`brim serve DIR` answers from it."
    )
    left_out = "".join(f"\n- {path}" for path in manifest.left_out)
    words = f"# Version {manifest.version}\n\n{description}, of `{manifest.checkpoint}`. {use}\n"
    if left_out:
        words += f"\nNot in here:\n{left_out}\n"
    write_through(draft / "README.md", words.encode())
