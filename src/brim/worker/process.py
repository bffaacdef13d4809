"""A worker process: one rank, holding the model."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from brim.errors import InternalError
from brim.host.process import print_by_line
from brim.tensors.compiled import run_scripted_as_written
from brim.tensors.memory import give_back, keep_what_is_freed
from brim.train.context import WorkerContext, context_from_environment, import_own_code
from brim.train.entry.imports import be_script
from brim.train.entry.training_file import Prepared, load, train, warm_up
from brim.train.failures import report
from brim.train.inference.job import Task, infer
from brim.user_code.python_program import PythonProgram, program_of
from brim.worker import dynamo, warm
from brim.worker.gpus import hide_gpus, take_own_gpu
from brim.worker.warm import FileAndData


def run_file(prepared: Prepared | Task | FileAndData | None, context: WorkerContext) -> int:
    """Do a job's work with a training file (level 1); the exit status."""
    spec = context.spec

    run_scripted_as_written()

    def work() -> None:
        torch.set_num_threads(
            1
        )  # as in the template: what is prepared there and here must be the same
        if isinstance(prepared, FileAndData):
            ready = prepared.prepare(spec)
        else:
            ready = prepared or warm.prepare(load(spec.file), spec)
        torch.set_num_threads(spec.threads)
        if isinstance(ready, Prepared):
            warm_up(ready, spec)
            give_back()
            train(ready, spec, context)
        else:
            infer(ready, spec, context)

    return _guarded(context, work)


def run_script(program: PythonProgram, context: WorkerContext) -> int:
    """Run the user's own loop (level 2) in this process."""
    torch.set_num_threads(context.spec.threads)
    run_scripted_as_written()  # before the script calls any: it may do so twice before it joins
    from brim.train.entry import join

    join.born_with(context)
    # What it draws before it joins must be the same on all workers.
    be_script(program, context.spec.seed)

    def work() -> None:
        try:
            program.run()
        except SystemExit as leaving:
            if leaving.code not in (None, 0) or join.has_left():
                raise
        join.close()

    return _guarded(context, work)


def _guarded(context: WorkerContext, work: Callable[[], Any]) -> int:
    """Run to the end.

    Report a failure that no restart will mend, and die of one that a restart will.
    """
    keep_what_is_freed()
    if context.spec.device == "cpu":
        hide_gpus()
    else:
        take_own_gpu(context.place)
    try:
        work()
    except SystemExit as leaving:
        if leaving.code not in (None, 0):  # theirs: brim leaves with 0
            report(context, leaving)
            return 1
        os.nice(
            19
        )  # taking this process apart is 15 ms of work for the kernel: those who train go first
        return 0
    except BaseException as error:  # noqa: BLE001 - the outermost loop of this role
        report(context, error)
        return 1
    return 0


def main() -> None:
    """The start of a worker that is not forked."""
    context = context_from_environment()
    if context is None:
        raise InternalError("python -m brim.worker.process is started by an agent, not by hand")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print_by_line()
    dynamo.defer()
    import_own_code(context.spec)
    program = program_of(context.spec)
    status = run_script(program, context) if program else run_file(None, context)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        status
    )  # as one that was forked: taking torch apart would close the link long before the end


if __name__ == "__main__":
    main()
