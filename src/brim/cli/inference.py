"""`brim evaluate` and `brim predict`: jobs that use a trained model, followed as training is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from brim.cli.follow import follow
from brim.cli.usage import warn
from brim.domain.job import DEVICES
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import FAULTS, STATE, WORKERS, choice, option
from brim.runs.starting import Ready, require_train_extra
from brim.runs.trained import find_trained, job_with, wanted_of
from brim.storage.places import absolute

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_SUFFIXES = (".parquet", ".pq", ".csv")


def _inference_options(function: Decorated) -> Decorated:
    for decorate in reversed(
        (
            option(
                "--split", metavar="NAME", help="Use the rows of the training file's dataset(NAME)."
            ),
            option(
                "--input",
                metavar="FILE",
                shell_complete=completing.files,
                help="Use the rows of a file, URL or glob that has the columns of the training "
                "data.",
            ),
            option(
                "--workers",
                type=WORKERS,
                help="How many workers: 4, or 1:4. [default: as in training]",
            ),
            option(
                "--device",
                type=choice(DEVICES),
                metavar="|".join(DEVICES),
                help="Where to compute. [default: as in training]",
            ),
            option(
                "--faults",
                type=FAULTS,
                default="",
                help='As for training: "kill rank 1 at step 3".',
            ),
            option(
                "--run-dir",
                type=click.Path(),
                metavar="DIR",
                help="Where to write the records of this job.",
            ),
            option(
                "--json",
                "as_json",
                is_flag=True,
                help="Print the summary as one JSON object on stdout.",
            ),
            STATE,
        )
    ):
        function = decorate(function)
    return function


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@_inference_options
def evaluate(trained: str, **values: Any) -> int:
    """Compute the metrics of a trained model: the newest checkpoint of RUN, or CHECKPOINT.

    \b
    brim evaluate latest
    brim evaluate latest --split train --workers 4
    brim evaluate runs/flights-1/checkpoints/step-00000575 --input december.csv

    Without --split and --input: the test split. The numbers equal those at the end of a training
    epoch, bit for bit.
    """
    return _run("evaluate", trained, values)


@click.command()
@click.argument("trained", metavar="RUN|CHECKPOINT", shell_complete=completing.runs)
@option(
    "--output",
    required=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="File to write: .parquet or .csv.",
)
@option("--keep", default="", metavar="COL,…", help="Columns of the input to copy into the output.")
@_inference_options
def predict(trained: str, output: str, keep: str, **values: Any) -> int:
    """Write a trained model's outputs for every row of a file or split, in the same order.

    \b
    brim predict latest --input december.csv --output late.parquet --workers 4
    brim predict latest --input december.csv --output late.csv --keep carrier,flight
    brim predict latest --split test --output test.parquet

    Columns: row (from 0), and output, or output_0, output_1 … of a model with several. A function
    predict(output) in the training file may name and change them. A row that cannot be read has
    nulls, and is set aside with its reason.
    """
    if not output.endswith(_SUFFIXES):
        raise SpecError(
            "--output",
            got=repr(output),
            need="a path that ends in .parquet or .csv",
            hint="--output p.csv",
        )
    folder = Path(absolute(output)).parent
    if not folder.is_dir():
        raise SpecError(
            "--output", got=repr(output), need="a folder that exists", hint=f"mkdir -p {folder}"
        )
    if not values["input"] and not values["split"]:
        raise SpecError(
            "--input", got="nothing", need="rows to predict", hint="--input FILE, or --split test"
        )
    kept = tuple(name for name in keep.split(",") if name)
    if kept and not values["input"]:
        raise SpecError(
            "--keep",
            got=repr(keep),
            need="--input, whose columns can be copied",
            hint="leave it out",
        )
    return _run("predict", trained, values, output=absolute(output), keep=kept)


def _run(
    kind: Literal["evaluate", "predict"],
    trained: str,
    values: dict[str, Any],
    *,
    output: str = "",
    keep: tuple[str, ...] = (),
) -> int:
    from brim.clock import SystemClock
    from brim.runs import directories as runs

    if values["input"] and values["split"]:
        raise SpecError(
            "--split", got="--input beside it", need="one of them", hint="leave one out"
        )
    require_train_extra()
    model = find_trained(trained, warn=warn, state=values["state"])
    wanted = wanted_of(
        model,
        kind,
        split=values["split"] or "test",
        input=absolute(values["input"]) if values["input"] else "",
        output=output,
        keep=keep,
    )
    spec = job_with(model.spec, wanted, values)
    path = values["run_dir"] or runs.new_run_dir(
        f"{kind}-{Path(spec.file).stem}", SystemClock().wall()
    )
    fresh = runs.claim(Path(path), newest=False)
    return follow(Ready(spec=spec, run_dir=fresh.path, fresh=fresh), as_json=values["as_json"])
