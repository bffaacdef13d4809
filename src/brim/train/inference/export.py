"""A trained model as files that load without brim: a directory that is whole or absent."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from brim.data.datasets import columnar_in
from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.storage.files import new_directory, write_through
from brim.train.context import shared_environment
from brim.train.entry.lightning import LightningFile
from brim.train.entry.training_file import call, functions_of, load
from brim.train.evaluation import feed_of
from brim.train.inference.weights import loaded_model
from brim.train.software import versions
from brim.train.state.transfer import weights_sha256

WEIGHTS, MANIFEST, README = "model.safetensors", "manifest.json", "README.md"
_EXAMPLE_ROWS = 4  # not 0 or 1, which a tracer would take for constants
_STATE = f"""from safetensors.torch import load_file
model.load_state_dict(load_file("{WEIGHTS}"))  # model: your own class, as in the training file"""
_EXPORTED = """import torch
model = torch.export.load("model.pt2").module()
output = model(inputs)  # any number of rows"""
_ONNX = """import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
output = session.run(None, {name: array for name, array in inputs.items()})"""


def export(spec: JobSpec, directory: Path, *, format: str) -> None:
    """Write the model of `spec.inference` to a new directory.

    Args:
        spec: of a job that uses a model.
        directory: it must not exist, or be empty.
        format: `safetensors` (the state_dict alone), or besides it `torch-export` or `onnx`.

    Raises:
        SpecError: the model cannot be written in this format.
        EnvironmentFault: the disk did not take it; nothing of it is left.
    """
    os.environ |= shared_environment(spec, "")  # what `brim.param` reads
    module = functions_of(load(spec.file), spec)
    model = loaded_model(module, spec).cpu()
    with new_directory(directory) as draft:
        state = {
            name: tensor.detach().clone().contiguous()
            for name, tensor in model.state_dict().items()
        }
        digest = weights_sha256(model)
        write_through(draft / WEIGHTS, save(state))
        details = FORMATS[format](draft, model.eval(), module)
        _describe(draft, spec, state, {"weights_sha256": digest, **details})


def _state_alone(draft: Path, model: nn.Module, module: ModuleType) -> dict[str, Any]:
    return {}


def _torch_export(draft: Path, model: nn.Module, module: ModuleType) -> dict[str, Any]:
    inputs = example_inputs(module)
    program = traced("torch-export", lambda: trace(model, inputs))
    write_through(draft / "model.pt2", content_of(program))
    loaded = torch.export.load(draft / "model.pt2").module()
    with torch.no_grad():
        differs = _largest_difference(model(inputs), loaded(inputs))
    return {"inputs": shapes_of(inputs), "largest_difference": differs, "load": _EXPORTED}


def content_of(program: Any) -> memoryview:
    """Return the file of a program of torch.export.

    It is made in memory: writing it is then ours, and what the disk says is an error of Python.
    """
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getbuffer()


def _onnx(draft: Path, model: nn.Module, module: ModuleType) -> dict[str, Any]:
    for package in ("onnx", "onnxscript"):
        _require(package)
    inputs = example_inputs(module)
    names = list(inputs) if isinstance(inputs, dict) else ["inputs"]

    def make() -> Any:
        return torch.onnx.export(
            trace(model, inputs),
            dynamo=True,
            input_names=names,
            output_names=["output"],
            verbose=False,
        )

    program = traced("onnx", make)
    program.save(draft / "model.onnx")  # what the disk does not take is no fault of the model's
    return {"inputs": shapes_of(inputs), "load": _ONNX}


FORMATS: dict[str, Callable[[Path, nn.Module, ModuleType], dict[str, Any]]] = {
    "safetensors": _state_alone,
    "torch-export": _torch_export,
    "onnx": _onnx,
}


def _require(package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise SpecError(
            package,
            got="no such package",
            need="the extra 'onnx'",
            hint=f"{command_for('onnx')}; or --format torch-export",
        )


def trace(model: nn.Module, inputs: Any) -> Any:
    return torch.export.export(model, (inputs,), dynamic_shapes=(_dynamic(inputs),))


def traced(format: str, function: Callable[[], Any]) -> Any:
    """Run a tracer; its failures are the model's, and told in its own words."""
    logging.disable(
        logging.WARNING
    )  # tracers tell of packages that are not there, and of their own insides
    try:
        # When they fail they print the graph as far as they came.
        with (
            torch.no_grad(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            return function()
    except Exception as error:  # tracers raise what they like
        cause = error.__cause__ or error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        raise SpecError(
            f"--format {format}",
            got=f"{type(cause).__name__}: "
            f"{lines[0] if lines else 'no reason given'}{_place(cause)}",
            need="a model whose forward() does not depend on the values of its inputs",
            hint="change that line (torch.where, torch.cond), or --format safetensors: the weights "
            "alone",
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _place(error: BaseException) -> str:
    """Say where in the user's code a tracer stopped, if its message says so."""
    places = [line.strip() for line in str(error).splitlines() if line.strip().startswith('File "')]
    torch_folder = str(Path(torch.__file__).parent)
    user_places = [place for place in places if torch_folder not in place]
    return f" ({user_places[-1]})" if user_places else ""


def example_inputs(module: ModuleType) -> Any:
    """Return inputs of a few rows.

    They are those of the data, or zeros where the columns say what they look like.
    """
    dataset = call(lambda: module.dataset("train"))
    columnar = columnar_in(dataset)
    if columnar is not None:
        return columnar.example(_EXAMPLE_ROWS)
    sample = call(lambda: feed_of(dataset, seed=0).first(_EXAMPLE_ROWS))
    if isinstance(module, LightningFile):
        sample = sample["batch"]
    return sample[0] if isinstance(sample, (tuple, list)) else sample


def _dynamic(inputs: Any) -> Any:
    """The same tree, with the first dimension of each tensor left open."""
    rows = torch.export.Dim("rows")

    def walk(node: Any) -> Any:
        match node:
            case Tensor():
                return {0: rows}
            case dict():
                return {key: walk(item) for key, item in node.items()}
            case tuple() | list():
                return type(node)(walk(item) for item in node)
        return None

    return walk(inputs)


def shapes_of(inputs: Any) -> Any:
    match inputs:
        case Tensor():
            return {"dtype": dtype_name(inputs), "shape": ["rows", *inputs.shape[1:]]}
        case dict():
            return {key: shapes_of(item) for key, item in inputs.items()}
        case tuple() | list():
            return [shapes_of(item) for item in inputs]
    return str(type(inputs).__name__)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _largest_difference(first: Any, second: Any) -> float | None:
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    return float((first - second).abs().max())


def _describe(
    draft: Path, spec: JobSpec, state: dict[str, Tensor], details: dict[str, Any]
) -> None:
    """`manifest.json` for programs, `README.md` for people."""
    assert spec.inference is not None
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(draft.iterdir())
    }
    load_with = details.pop("load", "")
    manifest = {
        "checkpoint": spec.inference.checkpoint,
        "training_file": spec.file,
        "parameters": spec.parameters,
        "versions": versions(),
        "files": files,
        "tensors": {
            name: {"dtype": dtype_name(tensor), "shape": list(tensor.shape)}
            for name, tensor in state.items()
        },
        **details,
    }
    write_through(draft / MANIFEST, json.dumps(manifest, indent=2).encode())
    words = [
        f"# A model trained by brim: {Path(spec.file).stem}",
        f"Weights of `{spec.inference.checkpoint}`. Nothing here needs brim.",
        f"```python\n{_STATE}\n```",
        *([f"```python\n{load_with}\n```"] if load_with else []),
        *([f"Inputs: `{json.dumps(details['inputs'])}`"] if "inputs" in details else []),
        f"`{MANIFEST}` has shapes, dtypes, checksums and versions.",
    ]
    write_through(draft / README, ("\n\n".join(words) + "\n").encode())
