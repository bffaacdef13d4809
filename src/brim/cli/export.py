"""`brim export`: a trained model as files, to be used without brim or to be served."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.options import choice
from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import STATE, option
from brim.runs.starting import require_train_extra
from brim.runs.trained import find_trained, wanted_of
from brim.runs.values import Value
from brim.storage.file_stores import absolute
from brim.storage.job_file import with_code_in_place

if TYPE_CHECKING:
    from brim.serving.export import Exported


_FILES = ("safetensors", "torch-export", "onnx")
_SERVED = ("bundle", "delta")


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@option(
    "--output", required=True, metavar="DIR", help="Make this directory and write the files there."
)
@option(
    "--format",
    type=Value(choice(*_FILES, *_SERVED)),
    default="safetensors",
    metavar="|".join((*_FILES, *_SERVED)),
    help="Write the weights, alone or with a program of torch.export or an ONNX graph; or write "
    "what brim serve needs: a bundle or a delta.",
)
@option(
    "--since",
    metavar="VERSION|DIR",
    help="With delta: write what changed since this version, or since the bundle or delta in DIR.",
)
@option(
    "--follow",
    is_flag=True,
    help="With bundle: also write a delta for each new checkpoint, each in its own directory "
    "below --output.",
)
@STATE
def export(
    trained: str, output: str, format: str, since: str | None, follow: bool, state: Path | None
) -> int:
    """Save a trained model, the newest checkpoint of RUN or CHECKPOINT, in files.

    \b
    brim export latest --output flights-model
    brim export latest --output flights-model --format onnx
    brim export latest --output versions/1 --format bundle
    brim export latest --output versions/2 --format delta --since versions/1
    brim export latest --output versions --format bundle --follow

    DIR gets model.safetensors (a plain state_dict), manifest.json, README.md and, with --format
    torch-export or onnx, model.pt2 or model.onnx, which take any number of rows. These load without
    brim. A bundle is what brim serve needs to answer raw rows; a delta has what changed since an
    earlier version.
    """
    require_train_extra()
    if (format == "delta") != (since is not None):
        actual = "nothing" if since is None else f"{since!r}, beside --format {format}"
        need = "the version that a delta changes" if since is None else "--format delta"
        raise SpecError("--since", got=actual, need=need, hint="--format delta --since DIR")
    if follow and format != "bundle":
        raise SpecError(
            "--follow", got=f"--format {format}", need="--format bundle", hint="leave it out"
        )
    directory = Path(absolute(output))
    if directory.exists() and (not directory.is_dir() or (any(directory.iterdir()) and not follow)):
        obstacle = "a directory with files in it" if directory.is_dir() else "a file"
        raise SpecError(
            "--output",
            got=f"{output!r}, {obstacle}",
            need="a new directory",
            hint=f"--output {output}-1",
        )
    model = find_trained(trained, warn=warn, state=state)
    inference = wanted_of(model, "predict")
    in_place = replace(with_code_in_place(model.run_dir, model.spec), bundle="")
    spec = replace(in_place, inference=inference, device="cpu", servers=0, faults=())
    base = str(absolute(since)) if since is not None and Path(since).is_dir() else since
    # The user's file may print; stdout is data.
    with contextlib.chdir(spec.directory or "."), contextlib.redirect_stdout(sys.stderr):
        if format in _FILES:
            from brim.train.inference.export import export as write

            write(spec, directory, format=format)
        else:
            from brim.serving.export import Exporter, export_each

            exporter = Exporter(spec)
            if follow:
                directory.mkdir(parents=True, exist_ok=True)
                export_each(exporter, directory, stop=_stopped(), say=_say)
            else:
                _say(
                    exporter.bundle(directory)
                    if base is None
                    else exporter.delta(directory, base_version=base)
                )
    click.echo(output)
    return EXIT_DONE


def _say(exported: Exported) -> None:
    for path in exported.manifest.left_out:
        click.echo(f"not in the bundle: {path}", err=True)
    manifest = exported.manifest
    kind = f"changed since {manifest.base}" if manifest.base else "in a bundle"
    parts = f"{counted(exported.rows, 'row')} of embeddings" if manifest.tables else "the weights"
    click.echo(f"version {manifest.version}: {parts} {kind}", err=True)


def _stopped() -> threading.Event:
    """Set by Ctrl-C and SIGTERM, which end the following of a run."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
