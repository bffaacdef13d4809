"""`brim.train`, `brim.run` and `brim.submit`: the verbs of the command line, from Python."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from brim.client import Client
from brim.errors import SpecError
from brim.runs.following import follow_to_a_good_end
from brim.runs.keywords import context_of, in_python
from brim.runs.options import COMMAND, options_given, run_options
from brim.runs.run import Run
from brim.runs.starting import make_ready
from brim.runs.submitting import hand_in, request_of, submission


class JobOptions(TypedDict, total=False):
    """The options of a job, as on the command line, where each is explained.

    Hyphens become underscores: `global_batch_size` is `--global-batch-size`. An option that is left
    out, or None, is taken from the environment (`BRIM_WORKERS`), else it has its default, as on the
    command line.
    """

    set: Mapping[str, object]
    env: Mapping[str, str] | Sequence[str]
    workers: int | str
    ps: int
    epochs: int
    global_batch_size: int
    micro_batches: int | str
    seed: int
    faults: str
    exact: bool
    audit: bool
    capture: bool
    restart: bool
    per: str
    grace: float | str
    progress: str
    clip_norm: float
    on_nan: str
    threads: int
    loaders: int
    checkpoint_every: int | str
    checkpoints: str
    runs: str
    keep: int
    keep_best: str
    heartbeat_timeout: float | str
    hang_timeout: float | str
    memory: str
    log_limit: str
    start_method: str
    transport: str
    device: str
    embeddings: str
    delay: int
    include: str | Sequence[str]


class RunOptions(JobOptions, total=False):
    """`JobOptions`, and options of runs without a scheduler."""

    run_dir: str | os.PathLike[str]
    resume: bool
    spares: int
    asynchronous: int
    listen: str
    ports: str
    agents: int
    workers_here: int
    insecure: bool
    logger: str | Sequence[str]


class SubmitOptions(JobOptions, total=False):
    """`JobOptions`, and options that only a scheduler uses."""

    deadline: str
    tenant: str
    priority: str
    key: str
    name: str
    after: str | Sequence[str]
    at: str
    array: str
    retries: int
    notify: str | Sequence[str]


def _no_command(**_: Any) -> None:
    """Commands are made for their options; their work is done below."""


_RUN = click.command("run")(run_options(_no_command))
_SUBMIT = click.command("submit")(submission(_no_command))


def _words_of(command: str | os.PathLike[str] | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command that is one string, or a list."""
    if isinstance(command, str | os.PathLike):
        return tuple(shlex.split(os.fspath(command)))
    return tuple(map(os.fspath, command))


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def train(file: str | os.PathLike[str], /, **options: Unpack[RunOptions]) -> Run:
    """Train the model of a file, as `brim train FILE` does, and wait for the end.

    Progress is shown as on the command line; in a notebook, below the cell. An interrupt (Ctrl-C,
    or a notebook's stop button) stops the run at its next step with a checkpoint; a second one
    kills it. Either raises KeyboardInterrupt once the run has ended, and
    `brim.Run("latest").resume()` continues it.

    Args:
        file: a Python file with model(), dataset(split), loss(output, target), optimizer(model)
            and, optionally, metrics().
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
        ready = make_ready(context.params, options_given(context), file=os.fspath(file))
    for note in ready.notes:
        _warn(note)
    follow_to_a_good_end(ready)
    return Run(ready.run_dir)


def run(command: str | Sequence[str], /, **options: Unpack[RunOptions]) -> Run:
    """Run a command on every worker, as `brim run -- COMMAND` does.

    It is your own training loop, which calls `brim.join`, or any other command, which is started
    again at each change and goes on from its own checkpoints.

    What rank 0 prints is shown among the progress. Everything else is as for `brim.train`.

    Args:
        command: the program and its arguments, as a list or as one string.
        options: see `RunOptions`.

    Returns:
        The run, which is done.

    Raises: as `brim.train`.

    Example:
        >>> brim.run(["python", "loop.py"], workers=4)    # doctest: +SKIP
    """
    words = _words_of(command)
    if not words:
        need = "a program and its arguments"
        raise SpecError(
            "command", got=repr(command), need=need, hint='brim.run(["python", "loop.py"])'
        )
    context = context_of(_RUN, "brim.run", options)
    with in_python():
        ready = make_ready(context.params, options_given(context), command=words)
    for note in ready.notes:
        _warn(note)
    follow_to_a_good_end(ready)
    return Run(ready.run_dir)


def submit(
    file: str | os.PathLike[str] | Sequence[str],
    /,
    *,
    state_dir: Path | None = None,
    **options: Unpack[SubmitOptions],
) -> Run:
    """Hand a job to the scheduler, as `brim submit FILE` does; returns once it is accepted.

    If the job has a deadline, this waits up to 3 s to hear whether it is promised; see
    `job.promised` of the result.

    Args:
        file: a training file, or a job.yaml with options; or a command as a list of words, with
            `restart=True` also as one string.
        state_dir: the scheduler's state directory; None means the default.
        options: see `SubmitOptions`.

    Returns:
        The job, of an array the first; `wait()` waits for its end.

    Raises:
        SpecError: an option or the file is wrong.
        EnvironmentFault: no scheduler runs there.

    Example:
        >>> brim.submit("flights.py", workers="1:4", deadline="2h").wait().metrics    # doctest: +SKIP
    """
    is_command = options.get("restart") or not isinstance(file, str | os.PathLike)
    words = () if is_command else (str(file),)
    context = context_of(_SUBMIT, "brim.submit", options, *words)
    if is_command:
        context.meta[COMMAND] = _words_of(file)
    with in_python():
        request = request_of(context, words, context.params, say_level=lambda _: None, warn=_warn)
    view = hand_in(Client(state_dir), request)
    return Run(view.job, state_dir=state_dir)
