"""Level 2: three changed lines make one's own loop elastic."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from brim.domain.job import WORLD_MAX, JobSpec, default_micro_batches
from brim.errors import SpecError
from brim.tensors.compiled import run_scripted_as_written
from brim.train.context import WorkerContext, context_from_environment, spec_of_a_loner
from brim.train.failures import report
from brim.train.job import Job
from brim.train.keras.network import check_backend, is_keras
from brim.train.keras.optimizer import with_keras

# Variables by which launchers tell a process how many there are.
_LAUNCHERS = {
    "WORLD_SIZE": "torchrun",
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpirun",
}

# Modules around a model which sum gradients, or share out the model, between processes, or which
# do the backward pass themselves, as Lightning Fabric's does.
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "_FabricModule"}
)

_born_with: WorkerContext | None = None
_started_with: WorkerContext | None = None
_joined: Job | None = None
_may_join = True


def born_with(context: WorkerContext) -> None:
    """Tell a forked process the environment of a process started from scratch."""
    global _born_with, _joined
    _born_with, _joined = context, None


def spec_here() -> JobSpec:
    """Return the options of the job that this process was started for, before it joins."""
    context = _context_here()
    return spec_of_a_loner() if context is None else context.spec


def _context_here() -> WorkerContext | None:
    """Return this process's context, which can be read from its environment once."""
    global _started_with
    if _born_with is None and _started_with is None:
        _started_with = context_from_environment()
    return _born_with or _started_with


@contextlib.contextmanager
def nobody_joins() -> Iterator[None]:
    """Make this process no worker, despite any module imported meanwhile."""
    global _may_join
    _may_join = False
    try:
        yield
    finally:
        _may_join = True


def join(
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheduler: Any = None,
    *,
    scheduler_interval: str | None = None,
    monitor: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int | None = None,
    micro_batches: int | None = None,
    clip_norm: float | None = None,
    on_nan: str | None = None,
    threads: int | None = None,
    audit: bool | None = None,
) -> Job:
    """Join the job that this process was started for; if it was started by hand, train alone.

    Options that `brim run` also has may be given here, on the command line, or in both places if
    they agree. So `python loop.py` and `brim run -- python loop.py` train in the same way.

    Args:
        model: the network, or several, on the device that they train on. All workers start from the
            first worker's weights; seed them if runs must agree. A Keras model is a network too.
        optimizer: over its parameters; several step in the given order. For one Keras model, one of
            `keras.optimizers` will do.
        scheduler: a learning-rate scheduler, or several; brim steps them.
        scheduler_interval: when the scheduler steps, `step` or `epoch`. None means every step for
            OneCycleLR and CyclicLR, and every epoch for others.
        monitor: name of the `job.log` value that ReduceLROnPlateau looks at; None if only one is
            logged.
        scaler: for losses in float16; brim scales, unscales and updates.
        seed: seeds the order of samples and the random numbers of micro-batches. Default: 0.
        micro_batches: number of parts that each step is cut into, whatever the number of workers; a
            single worker accumulates gradients over that many. Default: 8.
        clip_norm: upper bound of the gradient's 2-norm over all parameters.
        on_nan: what happens to a step whose loss is not a number: `warn`, `skip` or `stop`.
        threads: torch threads of this process. Default: 1, since sums depend on it.
        audit: False computes no micro-batch twice, by which brim finds results that depend on more
            than weights, seed and samples.

    Returns:
        The job; loop over `job.batches(...)` and call `job.step(loss)` for each.

    Raises:
        SpecError: an option or optimizer is not supported, or this process has already joined.
    """
    global _joined
    if not _may_join:
        raise SpecError(
            "brim.join", got="a call of a module that is imported", need="a call of the script"
        )
    if isinstance(micro_batches, str):
        raise SpecError(
            "brim.join(micro_batches=)",
            got=repr(micro_batches),
            need="a whole number from 1: a script does not know the most workers that it will have",
            hint="brim run --workers 1:4 --micro-batches auto -- ...",
        )
    _check_model(model)
    optimizer = with_keras(model, optimizer)
    _check_optimizer(optimizer)
    context = _context_here()
    if context is not None and _joined is not None:
        raise SpecError(
            "brim.join",
            got="a second call",
            need="one job in a script under brim run",
            hint="to train several times, as a search does, have one command do so and start "
            "`brim run` for each, or train them all alone: python script.py",
        )
    thread = threading.current_thread()
    if context is not None and thread is not threading.main_thread():
        error = SpecError(
            "brim.join",
            got=f"a call in the thread {thread.name!r}",
            need="a call in the main thread: signals reach no other one",
            hint="train in the main thread, and have other threads do the other work",
        )
        report(context, error)  # an exception ends this thread alone
        raise error
    options: dict[str, Any] = {
        "seed": seed, "micro_batches": micro_batches, "clip_norm": clip_norm, "on_nan": on_nan, "threads": threads,
        "audit": audit,
    }  # fmt: skip
    chosen = {name: value for name, value in options.items() if value is not None}
    if context is not None:
        spec = _combined(context.spec, chosen)
        context = replace(context, spec=spec)
    else:
        _check_alone()
        spec = replace(spec_of_a_loner(), **chosen)
    torch.set_num_threads(spec.threads)
    run_scripted_as_written()
    job = Job(
        model,
        optimizer,
        spec=spec,
        context=context,
        scheduler=scheduler,
        scheduler_interval=scheduler_interval,
        monitor=monitor,
        scaler=scaler,
    )
    _joined = job
    if _born_with is None:
        _watch_the_end(context)
    return job


def close() -> None:
    """The script of this process has ended: see `Job.close`.

    Raises:
        SpecError: it left its loop early.
    """
    if _joined is not None:
        _joined.close()


def has_left() -> bool:
    """Return whether this worker was asked to leave its job."""
    return _joined is not None and _joined.has_left


def _combined(spec: JobSpec, chosen: dict[str, Any]) -> JobSpec:
    """Combine the options of the command line and the script.

    Where the command line has a default, the script decides.

    Raises:
        SpecError: they say different things.
    """
    usual = spec_of_a_loner()
    for name, value in chosen.items():
        ordered, field = getattr(spec, name), name.replace("_", "-")
        default = getattr(usual, name)
        if name == "micro_batches":
            default = default_micro_batches(spec.workers)
        if ordered != value and ordered != default:
            raise SpecError(
                f"brim.join({name}=)",
                got=repr(value),
                need=f"{ordered!r}, as --{field} on the command line has it",
                hint=f"leave out --{field}, or {name}= in the script",
            )
    return replace(spec, **chosen)


def _check_model(model: object) -> None:
    """Check that a network was given, and no wrapper that sums its gradients.

    Raises:
        SpecError: it is something else.
    """
    for item in model if isinstance(model, (list, tuple)) else [model]:
        if isinstance(item, torch.optim.Optimizer):
            raise SpecError(
                "brim.join",
                got=f"an optimizer ({type(item).__name__}) in place of the model",
                need="the model first",
                hint="brim.join(model, optimizer)",
            )
        if is_keras(item):
            check_backend()
        if not isinstance(item, nn.Module):
            raise SpecError(
                "brim.join",
                got=f"{_described(item)} in place of the model",
                need="a torch.nn.Module, or a list of several",
                hint="brim.join(model, optimizer)",
            )
        for name, module in item.named_modules():
            wrapper = next(
                (kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), ""
            )
            if wrapper:
                raise SpecError(
                    "brim.join",
                    got=f"a model in {wrapper}" + (f", at {name!r}" if name else ""),
                    need="the model itself: brim sums the gradients of its workers",
                    hint="brim.join(model.module, optimizer), or leave out the wrapper",
                )


def _check_optimizer(optimizer: object) -> None:
    """Check that an optimizer was given, or several; their kinds are checked later.

    Raises:
        SpecError: it is something else.
    """
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    wrong = [item for item in optimizers if not isinstance(item, torch.optim.Optimizer)]
    if optimizers and not wrong:
        return
    raise SpecError(
        "brim.join",
        got=f"{_described(wrong[0]) if wrong else 'no optimizer'} in place of the optimizer",
        need="a torch.optim.Optimizer, or a list of several",
        hint="brim.join(model, torch.optim.Adam(model.parameters()))",
    )


def _described(thing: object) -> str:
    """Return a thing in words for a message about arguments.

    >>> _described(nn.Linear), _described(None), _described(3)
    ('the class Linear', 'None', 'an object of type int')
    """
    if thing is None:
        return "None"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"an object of type {type(thing).__name__}"


def _check_alone() -> None:
    """Check that no launcher of another library has started this process as one of several.

    Raises:
        SpecError: one has: each of its processes would train everything by itself.
    """
    if os.environ.get(WORLD_MAX, "1") != "1":
        raise SpecError(
            "brim.join",
            got="a command at the restart level, whose processes know nothing of one another",
            need="the exact level, at which brim.join trains on all workers",
            hint=f"--no-restart -- python {os.path.basename(sys.argv[0])}",
        )
    for name, launcher in _LAUNCHERS.items():
        count = os.environ.get(name, "")
        if count.isdecimal() and int(count) > 1:
            raise SpecError(
                "brim.join",
                got=f"a process that {launcher} has started as one of {count} ({name}={count})",
                need="brim as the launcher: these processes would each train the whole job, apart "
                "from one another",
                hint=f"brim run --workers {count} -- python {sys.argv[0]}",
            )


_is_watched = False


def _watch_the_end(context: WorkerContext | None) -> None:
    """End the job with the script.

    An exception of the script ends the job, with its traceback first. So does a script that ends
    before its loop does.
    """
    global _is_watched
    if _is_watched:
        return
    _is_watched = True
    usual = sys.excepthook
    failed = False

    def tell(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        nonlocal failed
        failed = True
        if context is None:
            usual(kind, error, trace)
        else:
            report(context, error)

    def at_exit() -> None:
        try:
            if not failed and not has_left():
                close()
        except SpecError as error:
            print(f"brim: {error}", file=sys.stderr)  # noqa: T201 - nobody is left to raise it to
            if context is not None:
                report(context, error)

    sys.excepthook = tell
    atexit.register(at_exit)
