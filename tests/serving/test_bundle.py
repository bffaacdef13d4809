"""A bundle answers as the model that was trained, and names its faults."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from brim.domain.job import JobSpec
from brim.errors import BrimError, EnvironmentFault, SpecError
from brim.serving.bundle import Model, changed, open_bundle
from brim.serving.export import Exported, Exporter, export_each
from brim.serving.inputs import ColumnReader
from brim.serving.manifest import MANIFEST, read_manifest
from brim.train.entry.training_file import functions_of, load
from brim.train.inference.weights import trained_model
from serving.trained import TRACED, UNTRACED, WITH_FUNCTION, run_of

STEPS = (10, 20, 30)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    return run_of(tmp_path_factory.mktemp("traced"), TRACED, steps=STEPS)


@pytest.fixture(scope="module")
def versions(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of steps 10 and 30, and deltas from 10 to 20 and from 20 to 30."""
    folder = tmp_path_factory.mktemp("versions")
    exporter = Exporter(spec)
    first = exporter.bundle(folder / "10", step=10)
    second = exporter.delta(folder / "20", base_version=str(folder / "10"), step=20)
    exporter.delta(folder / "30", base_version=second.manifest.version, step=30)
    exporter.bundle(folder / "30-whole")
    assert 0 < second.rows <= 50 < first.rows
    return folder


def trained(spec: JobSpec) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs of all rows of the training file, and the trained model's outputs for them."""
    module = functions_of(load(spec.file), spec)
    model = trained_model(module, spec)
    rows = module.dataset("train").inputs_of(spec.parameters["path"])
    inputs, _ = rows.take(np.arange(len(rows)))
    with torch.no_grad():
        return inputs, module.predict(model(inputs))["sold"]


def columns_of(path: Path) -> dict[str, list[Any]]:
    header, *lines = path.read_text().splitlines()
    cells = zip(*(line.split(",") for line in lines), strict=True)
    return {
        name: list(cell)
        for name, cell in zip(header.split(","), cells, strict=True)
        if name != "sold"
    }


def predictions(model: Model, path: object) -> Tensor:
    assert isinstance(model.reader, ColumnReader)
    return model.predict(*model.reader.read(columns_of(Path(str(path)))))["sold"]


@pytest.mark.parametrize(
    ("source", "code", "program"),
    [(TRACED, False, True), (WITH_FUNCTION, True, True), (UNTRACED, True, False)],
)
def test_raw_rows_match_the_trained_model(
    source: str, code: bool, program: bool, tmp_path: Path
) -> None:
    spec = run_of(tmp_path / "here", source, steps=(5,))
    manifest = Exporter(spec).bundle(tmp_path / "bundle").manifest
    assert (bool(manifest.code), bool(manifest.program)) == (code, program)
    assert bool(manifest.left_out) == code
    expected = trained(spec)[1]
    rows = tmp_path / "rows.csv"
    Path(str(spec.parameters["path"])).rename(rows)  # what training needed is not needed any more
    Path(spec.file).unlink()
    assert torch.equal(predictions(open_bundle(tmp_path / "bundle"), rows), expected)


def test_deltas_make_what_a_whole_bundle_has(spec: JobSpec, versions: Path) -> None:
    path = spec.parameters["path"]
    first_model = open_bundle(versions / "10")
    first = predictions(first_model, path)
    second_model = changed(first_model, versions / "20")
    third_model = changed(second_model, versions / "30")
    whole = open_bundle(versions / "30-whole")
    assert third_model.version == whole.version
    assert all(torch.equal(third_model.state[name], whole.state[name]) for name in whole.state)
    assert torch.equal(predictions(third_model, path), predictions(whole, path))
    assert torch.equal(predictions(whole, path), trained(spec)[1])
    assert not torch.equal(first, predictions(third_model, path))
    assert torch.equal(predictions(open_bundle(versions / "10"), path), first), (
        "files stay as they are"
    )


def test_a_program_is_the_same_whatever_its_weights(versions: Path) -> None:
    """So a delta need not have it."""
    assert (versions / "10" / "model.pt2").stat().st_size < 100_000
    assert not (versions / "20" / "model.pt2").exists()


def rewritten(directory: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a bundle, whose manifest says something else, with the right checksum."""
    copy.mkdir()
    for path in directory.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    fields = json.loads((copy / MANIFEST).read_bytes())
    del fields["manifest_sha256"]
    fields |= changes
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (copy / MANIFEST).write_text(json.dumps({**fields, "manifest_sha256": digest}))
    return copy


@pytest.mark.parametrize(
    "name", ["model.pt2", "dense.safetensors", "rows-0.safetensors", "columns.json"]
)
@pytest.mark.parametrize("damage", ["gone", "cut", "bit"])
def test_a_damaged_file_is_named(versions: Path, tmp_path: Path, name: str, damage: str) -> None:
    copy = rewritten(versions / "10", tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content[:-1] if damage == "cut" else content)
    with pytest.raises(EnvironmentFault, match=name):
        open_bundle(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2, this version of brim reads 1: export it again"),
        ({"step": "ten"}, "is damaged"),
        (
            {"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}},
            "which is not in this directory",
        ),
        ({"files": {}}, "it has no checksum of"),
        ({"base": "00000001-abc"}, "is a delta, which changes version 00000001-abc"),
    ],
)
def test_a_bundle_of_another_kind_is_refused(
    versions: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        open_bundle(rewritten(versions / "10", tmp_path / "copy", **changes))


def test_a_manifest_that_was_changed_by_hand(versions: Path, tmp_path: Path) -> None:
    copy = rewritten(versions / "10", tmp_path / "copy")
    (copy / MANIFEST).write_text((copy / MANIFEST).read_text().replace('"step": 10', '"step": 11'))
    with pytest.raises(EnvironmentFault, match="does not have its own checksum"):
        open_bundle(copy)


def _spoil(version: Path) -> None:
    """Overwrite all its files in place, as `cp` does."""
    for path in [path for path in version.rglob("*") if path.is_file()]:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"\0" * size)


@pytest.mark.parametrize("source", [TRACED, UNTRACED])
def test_what_becomes_of_its_files_changes_no_answer(source: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", source, steps=(10, 20, 30))
    exporter = Exporter(run)
    first = exporter.bundle(tmp_path / "10", step=10)
    second = exporter.delta(tmp_path / "20", base_version=first, step=20)
    exporter.delta(tmp_path / "30", base_version=second, step=30)
    exporter.bundle(tmp_path / "whole", step=30)
    path = run.parameters["path"]
    expected = predictions(open_bundle(tmp_path / "whole"), path)
    model = open_bundle(tmp_path / "10")
    answers_before = predictions(model, path)
    _spoil(tmp_path / "10")
    assert torch.equal(predictions(model, path), answers_before)
    model = changed(model, tmp_path / "20")
    _spoil(tmp_path / "20")
    model = changed(model, tmp_path / "30")
    _spoil(tmp_path / "30")
    assert torch.equal(predictions(model, path), expected)


@pytest.mark.parametrize("content", [None, "{}", '{"files": {}}', "[1]"])
def test_what_is_no_bundle(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(SpecError, match="need a bundle"):
        open_bundle(tmp_path)


def test_bundle_writable_by_others_is_refused(versions: Path, tmp_path: Path) -> None:
    copy = rewritten(versions / "10", tmp_path / "copy")
    copy.chmod(0o777)
    with pytest.raises(SpecError, match="other accounts may write to"):
        open_bundle(copy)


@pytest.mark.parametrize("name", ["model.pt2", "."])
def test_writable_bundle_files_are_refused(versions: Path, tmp_path: Path, name: str) -> None:
    copy = rewritten(versions / "10", tmp_path / "copy")
    (copy / name).chmod(0o666 if name != "." else 0o777)
    with pytest.raises(SpecError, match="other accounts may write to"):
        open_bundle(copy)


def test_each_version_runs_its_own_helper_modules(tmp_path: Path) -> None:
    source = UNTRACED.replace("import torch\n", "import torch\nimport served_scale\n", 1)
    runs: dict[str, JobSpec] = {}
    for scale in ("one", "two"):
        _write_helper(tmp_path / scale, scale)
        runs[scale] = run_of(tmp_path / scale, source, steps=(10,))
    bundles = []
    for scale, run in runs.items():
        _write_helper(tmp_path / scale, scale)
        bundles.append(tmp_path / f"bundle-{scale}")
        Exporter(run).bundle(bundles[-1])
    sys.modules.pop("served_scale", None)
    for bundle, scale in zip(bundles, ("one", "two"), strict=True):
        open_bundle(bundle)
        assert scale == sys.modules["served_scale"].NAME


def _write_helper(folder: Path, scale: str) -> None:
    """Have the next import in this process find the helper of this folder."""
    sys.modules.pop("served_scale", None)
    folder.mkdir(exist_ok=True)
    (folder / "served_scale.py").write_text(f"NAME = {scale!r}\n")


def test_deltas_for_other_versions_are_refused(versions: Path) -> None:
    model = open_bundle(versions / "10")
    state = {name: tensor.clone() for name, tensor in model.state.items()}
    with pytest.raises(
        EnvironmentFault, match=r"changes version 00000020-.*, and 00000010-.* is served"
    ):
        changed(model, versions / "30")
    with pytest.raises(EnvironmentFault, match="is a bundle"):
        changed(model, versions / "30-whole")
    assert all(torch.equal(model.state[name], state[name]) for name in state)


@pytest.mark.parametrize("name", ["dense.safetensors", "rows-0.safetensors"])
def test_a_damaged_delta_changes_nothing(versions: Path, tmp_path: Path, name: str) -> None:
    model = open_bundle(versions / "10")
    copy = rewritten(versions / "20", tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(EnvironmentFault, match=name):
        changed(model, copy)
    changed_model = changed(changed(model, versions / "20"), versions / "30")
    whole = open_bundle(versions / "30-whole")
    assert all(torch.equal(changed_model.state[name], whole.state[name]) for name in whole.state)


def test_a_delta_of_other_columns_does_not_fit(versions: Path, tmp_path: Path) -> None:
    copy = rewritten(versions / "20", tmp_path / "copy", columns_sha256="0")
    with pytest.raises(EnvironmentFault, match="its columns were fitted to other rows"):
        changed(open_bundle(versions / "10"), copy)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("yesterday", "need a version such as"),
        ("00000015-0123456789ab", "of whose step 15 the run has no checkpoint"),
        ("00000010-0123456789ab", "the run's checkpoint of that step is 00000010-"),
    ],
)
def test_a_delta_since_no_version_of_the_run(
    spec: JobSpec, tmp_path: Path, base: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        Exporter(spec).delta(tmp_path / "delta", base_version=base)
    assert not list(tmp_path.iterdir())


def test_a_delta_since_another_model(spec: JobSpec, versions: Path, tmp_path: Path) -> None:
    other_model = run_of(tmp_path / "other", TRACED.replace("9000", "9001"), steps=(40,))
    with pytest.raises(SpecError, match="a version of another model"):
        Exporter(other_model).delta(tmp_path / "delta", base_version=str(versions / "10"))
    with pytest.raises(SpecError, match="which is this version"):
        Exporter(spec).delta(tmp_path / "delta", base_version=str(versions / "30-whole"))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_disk_that_takes_nothing_leaves_nothing(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("brim.serving.export.write_rows", full)
    with pytest.raises(BrimError, match="No space left"):
        Exporter(spec).bundle(tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_followers_continue_beside_foreign_files(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second exporter of the same run, or one before: its directories have the names of steps,
    too.
    """
    steps, stop, exports = [10], threading.Event(), []

    def say(version: Exported) -> None:
        exports.append(version.manifest)
        if version.manifest.step == 30:
            stop.set()
        steps.append(version.manifest.step + 10)
        foreign_folder = tmp_path / f"{steps[-1]:08d}"
        foreign_folder.mkdir()
        (foreign_folder / "file").touch()

    exporter = Exporter(spec)
    monkeypatch.setattr(exporter, "steps", lambda: steps)
    export_each(exporter, tmp_path, stop=stop, say=say)
    assert [(export.step, bool(export.base)) for export in exports] == [
        (10, False),
        (20, True),
        (30, True),
    ]
    written = {read_manifest(path.parent).version for path in tmp_path.glob("*/manifest.json")}
    assert written == {export.version for export in exports}
