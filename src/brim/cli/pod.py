"""`brim pod`: lead or join a run as a pod of an indexed Job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from brim.cli.agent import no_token
from brim.cli.shared.sections import CommandVerb
from brim.cli.shared.usage import warn
from brim.domain.options import Kind, whole
from brim.errors import SpecError
from brim.host.gpus import visible_gpus
from brim.runs import completing
from brim.runs.options import (
    ADDRESS,
    COMMAND,
    SUMMARY_FILE,
    option,
    options_given,
    scheduled_options,
)
from brim.runs.starting import require_train_extra
from brim.runs.values import Value

_AUTOMATIC = "auto"
_MOST_PODS = 10_000
_MOST_WORKERS = 256  # of a pod
_WORKERS = whole(minimum=1, maximum=_MOST_WORKERS)


def _read_workers(text: str, option: str) -> int:
    if text == _AUTOMATIC:
        return max(1, len(visible_gpus(os.environ)))
    workers: int = _WORKERS.read(text, option)
    return workers


def _read_failures(text: str, option: str) -> int | None:
    return whole(minimum=0).read(text, option) if text else None


@click.command(cls=CommandVerb)
@click.argument(
    "file",
    metavar="FILE | -- COMMAND...",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=completing.files,
)
@option(
    "--index",
    type=Value(whole(minimum=0, maximum=_MOST_PODS)),
    required=True,
    help="The number of this pod in its Job, from 0; the first one leads.",
)
@option(
    "--pods",
    type=Value(whole(minimum=1, maximum=_MOST_PODS)),
    required=True,
    help="The number of pods of the Job.",
)
@option(
    "--first",
    type=ADDRESS,
    required=True,
    help="The address at which all pods find the first one. It listens at that port.",
)
@option(
    "--workers-per-pod",
    type=Value(Kind(metavar="N|auto", read=_read_workers)),
    default="1",
    show_default=True,
    help="Run at most this many workers in each pod; auto: one for each GPU, else one.",
)
@option(
    "--failures",
    type=Value(Kind(metavar="N", read=_read_failures)),
    help="How many pods of this index have failed before. At 0 a run begins at once; else pods that "
    "may have a copy of it are waited for. [default: nobody knows]",
)
@option(
    "--run-dir",
    metavar="DIR",
    default="run",
    show_default=True,
    help="Write the run's records to this directory of the first pod.",
)
@SUMMARY_FILE
@scheduled_options
@click.pass_context
def pod(
    ctx: click.Context,
    /,
    file: tuple[str, ...],
    index: int,
    pods: int,
    first: str,
    workers_per_pod: int,
    failures: int | None,
    run_dir: str,
    summary_file: Path | None,
    **values: Any,
) -> int:
    """Lead or join a run as a pod of an indexed Job, whose pods all have this command.

    The first pod leads the run, and has FILE or COMMAND with the code; the others get it from there.
    Unless --workers says otherwise, it has as many workers as all of its pods together. The token of
    the pods is in BRIM_TOKEN. It is for templates of Jobs, such as the runtime brim of Kubeflow
    Trainer, which adds the arguments of a TrainJob: FILE, and options of brim train.

    Exit code 0 where the run is done, 1 where it has failed, 2 where it cannot be run as asked; with
    any other one, another pod should take this one's place.

    \b
    brim pod --index 0 --pods 4 --first flights-0.flights:4000 flights.py --epochs 2
    """
    from brim.runs.pod import PodPlace, take_part, write_work
    from brim.storage.files import temporary_folder

    require_train_extra()
    source, command = _work_of(file, ctx.meta.get(COMMAND, ()))
    if not os.environ.get("BRIM_TOKEN", "").strip():
        no_token("all pods of a Job have the same one: a Secret, and the Job's uid")
    place = PodPlace(
        index=index,
        pods=pods,
        workers=workers_per_pod,
        first=first,
        failures=failures,
        run_dir=run_dir,
    )
    with contextlib.ExitStack() as stack:
        job = None
        if index == 0:
            if "workers" not in options_given(ctx):
                values["workers"] = None
            folder = stack.enter_context(temporary_folder("brim-pod-"))
            most = pods * workers_per_pod
            job = write_work(folder, values, file=source, command=command, most=most, warn=warn)
        return take_part(place, job=job, summary=summary_file)


def _work_of(words: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the training file, or the command; the other one is empty.

    Raises:
        SpecError: there is none, or more than one.
    """
    if len(words) + bool(command) == 1:
        return "".join(words), tuple(command)
    raise SpecError(
        "FILE",
        got=" ".join((*words, *(("a command",) if command else ()))) or "nothing",
        need="a training file, or a command behind --",
        hint='args: [flights.py, --epochs, "2"]',
    )
