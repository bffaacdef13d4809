"""`brim export`: a trained model as files that load without brim."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from brim.cli.usage import EXIT_DONE, warn
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import STATE, choice, option
from brim.runs.starting import require_train_extra
from brim.runs.trained import find_trained, wanted_of
from brim.storage.places import absolute

__all__ = ["export"]

_FORMATS = ("safetensors", "torch-export", "onnx")


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@option("--output", required=True, metavar="DIR", help="Directory to make.")
@option(
    "--format",
    type=choice(_FORMATS),
    default="safetensors",
    metavar="|".join(_FORMATS),
    help="What to write beside the weights: a program of torch.export, or an ONNX graph.",
)
@STATE
def export(trained: str, output: str, format: str, state: Path | None) -> int:
    """Save a trained model, the newest checkpoint of RUN or CHECKPOINT, in files that load without brim.

    \b
    brim export latest --output flights-model
    brim export latest --output flights-model --format onnx

    DIR gets model.safetensors (a plain state_dict), manifest.json, README.md and, with --format torch-export or onnx,
    model.pt2 or model.onnx, which take any number of rows.
    """
    from dataclasses import replace

    require_train_extra()
    directory = Path(absolute(output))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "a directory with files in it" if directory.is_dir() else "a file"
        raise SpecError(
            "--output", got=f"{output!r}, {what}", need="a new directory", hint=f"--output {output}-1"
        )
    model = find_trained(trained, warn=warn, state=state)
    wanted = wanted_of(model, "predict")
    spec = replace(model.spec, inference=wanted, device="cpu", servers=0, faults=())
    from brim.train.export import export as write

    # The user's file may print; stdout is data.
    with contextlib.chdir(spec.directory or "."), contextlib.redirect_stdout(sys.stderr):
        write(spec, directory, format=format)
    click.echo(output)
    return EXIT_DONE
