"""Jobs that use a trained model, followed as training is: `brim evaluate` and `brim predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from brim.cli.shared.follow import follow
from brim.cli.shared.usage import warn
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import JSON, STATE, job_option, option
from brim.runs.starting import Ready, require_train_extra
from brim.runs.trained import find_trained, job_with, wanted_of
from brim.storage.file_stores import absolute

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def inference_options(function: Decorated) -> Decorated:
    """Give a verb the options of the use of a model."""
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
            job_option(
                "workers",
                default=None,
                help="Use this many workers: 4, or 1:4. [default: as in training]",
            ),
            job_option(
                "device", default=None, help="Compute on this device. [default: as in training]"
            ),
            job_option(
                "faults", help='Break things on purpose, as in training: "kill rank 1 at step 3".'
            ),
            option(
                "--run-dir",
                type=click.Path(),
                metavar="DIR",
                help="Write the records of this job to DIR.",
            ),
            JSON,
            STATE,
        )
    ):
        function = decorate(function)
    return function


def infer(
    kind: Literal["evaluate", "predict"],
    trained: str,
    values: dict[str, Any],
    *,
    output: str = "",
    keep: tuple[str, ...] = (),
) -> int:
    """Start a job that uses a model, and follow it to its end; the exit code.

    Args:
        trained: names the run or the checkpoint.
        values: of `inference_options`.
        output: where predictions go.
        keep: columns of the input that go there, too.

    Raises:
        SpecError: it cannot be started as asked.
    """
    from brim.host.clock import SystemClock
    from brim.runs import directories as runs

    if values["input"] and values["split"]:
        raise SpecError(
            "--split", got="--input beside it", need="one of them", hint="leave one out"
        )
    require_train_extra()
    model = find_trained(trained, warn=warn, state=values["state"])
    inference = wanted_of(
        model,
        kind,
        split=values["split"] or "test",
        input=absolute(values["input"]) if values["input"] else "",
        output=output,
        keep=keep,
    )
    spec = job_with(model.spec, inference, values)
    path = values["run_dir"] or runs.new_run_dir(
        f"{kind}-{Path(spec.file).stem}", SystemClock().wall()
    )
    fresh = runs.claim(Path(path), newest=False)
    return follow(Ready(spec=spec, run_dir=fresh.path, fresh=fresh), as_json=values["as_json"])
