"""`brim.train`, `brim.run` and `brim.submit`: what the verbs of the command line do, from Python."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from brim.client import Client
from brim.errors import EnvironmentFault, SpecError
from brim.runs.following import follow
from brim.runs.keywords import context_of, in_python
from brim.runs.options import build_spec, given, job_options_but
from brim.runs.run import Run
from brim.runs.starting import make_ready
from brim.runs.submitting import request_of, submission
from brim.runs.training_file import check_command, check_training_file

__all__ = ["JobOptions", "RunOptions", "SubmitOptions", "run", "submit", "train"]

_TO_JUDGE = 3.0  # seconds that a call waits to hear whether a deadline is promised


class JobOptions(TypedDict, total=False):
    """What describes a job: the options of the same names of the command line, where each is explained.

    A name with hyphens has underscores here: `global_batch_size` is `--global-batch-size`. One that is left out, or
    None, is as on the command line: from the environment (`BRIM_WORKERS`), else its default.
    """

    set: Mapping[str, object]
    env: Mapping[str, str] | Sequence[str]
    workers: int | str
    epochs: int
    global_batch_size: int
    micro_batches: int
    seed: int
    faults: str
    exact: bool
    clip_norm: float
    on_nan: str
    threads: int
    loaders: int
    checkpoint_every: int | str
    checkpoints: str
    keep: int
    keep_best: str
    heartbeat_timeout: float | str
    hang_timeout: float | str
    start_method: str
    transport: str
    device: str


class RunOptions(JobOptions, total=False):
    """`JobOptions`, and what only a run without a scheduler has."""

    run_dir: str | os.PathLike[str]
    resume: bool
    spares: int
    listen: str
    agents: int


class SubmitOptions(JobOptions, total=False):
    """`JobOptions`, and what only a scheduler can do something with."""

    deadline: str
    tenant: str
    priority: str
    key: str


def _nothing(**_: Any) -> None:
    """Commands are made for their options; what they do is done below."""


_RUN = click.command("run")(job_options_but("as_json")(_nothing))
_SUBMIT = click.command("submit")(submission(_nothing))


def train(file: str | os.PathLike[str], /, **options: Unpack[RunOptions]) -> Run:
    """Train the model of a file, as `brim train FILE` does, and wait for the end.

    Progress is shown as on the command line, in a notebook below the cell. An interrupt (Ctrl-C, or a notebook's stop
    button) stops the run at its next step with a checkpoint, a second one kills it; either raises KeyboardInterrupt
    once it has ended, and `brim.Run("latest").resume()` goes on.

    Args:
        file: a training file: a Python file with model(), dataset(split), loss(output, target), optimizer(model) and,
            if wanted, metrics().
        options: see `RunOptions`.

    Returns:
        The run, which is done.

    Raises:
        SpecError: an option, the file or its data is wrong.
        UserCodeError: the file's code raised; `trace` has its traceback.
        EnvironmentFault: a host, a disk or a network failed.
        KeyboardInterrupt: it was interrupted.

    Example:
        >>> run = brim.train("flights.py", workers="1:4", epochs=2)    # doctest: +SKIP
        >>> run.metrics, run.model()                                   # doctest: +SKIP
    """
    context = context_of(_RUN, "brim.train", options)
    with in_python():
        check_training_file(Path(file))
        spec = build_spec(context.params, file=os.fspath(file))
        ready = make_ready(spec, subject=os.fspath(file), values=context.params, given=given(context))
    follow(ready)
    return Run(ready.run_dir)


def run(command: str | Sequence[str], /, **options: Unpack[RunOptions]) -> Run:
    """Run your own training loop, which calls `brim.join`, on every worker, as `brim run -- COMMAND` does.

    What rank 0 prints is shown beside the progress. For the rest see `brim.train`.

    Args:
        command: the program and its arguments, or one line of them.
        options: see `RunOptions`.

    Returns:
        The run, which is done.

    Raises: as `brim.train`.

    Example:
        >>> brim.run(["python", "loop.py"], workers=4)    # doctest: +SKIP
    """
    words = tuple(shlex.split(command) if isinstance(command, str) else map(os.fspath, command))
    if not words:
        need = "a program and its arguments"
        raise SpecError("command", got=repr(command), need=need, hint='brim.run(["python", "loop.py"])')
    context = context_of(_RUN, "brim.run", options)
    with in_python():
        check_command(words)
        spec = build_spec(context.params, command=words)
        subject = next((word for word in words if word.endswith(".py")), words[0])
        ready = make_ready(spec, subject=subject, values=context.params, given=given(context))
    follow(ready)
    return Run(ready.run_dir)


def submit(
    file: str | os.PathLike[str], /, *, state_dir: Path | None = None, **options: Unpack[SubmitOptions]
) -> Run:
    """Hand a job to the scheduler, as `brim submit FILE` does; returns once it is taken in.

    A job with a deadline that was judged before, or at once, is judged when this returns: `job.promised` of the run
    says how.

    Args:
        file: a training file, or a job.yaml with the words of the options.
        state_dir: of the scheduler; None: the usual place.
        options: see `SubmitOptions`.

    Returns:
        The job; `wait()` waits for its end.

    Raises:
        SpecError: an option or the file is wrong.
        EnvironmentFault: no scheduler runs there.

    Example:
        >>> brim.submit("flights.py", workers="1:4", deadline="2h").wait().metrics    # doctest: +SKIP
    """
    context = context_of(_SUBMIT, "brim.submit", options, os.fspath(file))
    with in_python():
        values = {name: value for name, value in context.params.items() if name != "file"}
        request = request_of(context, os.fspath(file), values)
    client = Client(state_dir)
    view = client.submit(request)
    if view.deadline is not None:
        # It is taken in, whatever happens now: a scheduler that dies has it in its book.
        with contextlib.suppress(EnvironmentFault):
            client.wait(view.job, until="judged", timeout=_TO_JUDGE)
    return Run(view.job, state_dir=state_dir)
