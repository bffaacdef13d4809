"""Warm-up: the template's work that no worker has to do again.

Imports, the user's file, first times.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import ModuleType

import torch

from brim.domain.job import JobSpec
from brim.train.compiled import is_compiled
from brim.train.inference import Task
from brim.train.memory import give_back
from brim.train.tasks import prepare_task
from brim.train.training_file import Prepared, functions_of, load, warm_up
from brim.train.training_file import prepare as prepare_training

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def gpus_untouched() -> Iterator[None]:
    """Have torch count GPUs without CUDA meanwhile.

    Where CUDA was asked, no fork can use it.
    """
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BY_NVML]
        else:
            os.environ[_BY_NVML] = before


def import_torch() -> None:
    """Load what torch loads lazily.

    The first optimizer of a process imports a second's worth of modules.

    One thread: a fork of a process whose OpenMP has started more waits for ever for those that it
    does not have. A worker sets its own number once it is born.
    """
    torch.set_num_threads(1)
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    for optimizer in (torch.optim.SGD([parameter], lr=0.1), torch.optim.Adam([parameter])):
        optimizer.step()


def prepare_file(spec: JobSpec) -> Prepared | Task | None:
    """Run the training file.

    Where it is to be trained, put one micro-batch through a copy of its model.

    A file that says `preload = False` is only imported: then every worker calls its functions for
    itself.

    Raises:
        SpecError, UserCodeError: they do not fit together.
    """
    module = load(spec.file)
    if not getattr(module, "preload", True):
        return None
    prepared = prepare(module, spec)
    # A backward pass beside a GPU, or of what was compiled, starts threads, and forking them is not
    # safe.
    if (
        isinstance(prepared, Prepared)
        and not torch.cuda.is_available()
        and not is_compiled(prepared.model)
    ):
        warm_up(prepared, spec)
        give_back(all_but=0)  # or every worker would begin with what the template has used up
    return prepared


def prepare(module: ModuleType, spec: JobSpec) -> Prepared | Task:
    """Prepare what every worker of a job needs of the training file.

    Raises:
        SpecError, UserCodeError: the file, its data or a checkpoint will not do.
    """
    functions = functions_of(module, spec)
    return prepare_task(functions, spec) if spec.inference else prepare_training(functions, spec)


def forking_is_safe() -> bool:
    """Return whether a fork of this process can work.

    It cannot with a GPU, or a thread, also one of OpenMP's.
    """
    initialised: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not initialised and threading.active_count() == 1 and torch.get_num_threads() == 1


def forks_can_use_gpus() -> bool:
    """Return whether a fork of this process can use the host's GPUs.

    One fork is made to find out.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    spoiled = os.waitpid(pid, 0)[1] != 0
    return not spoiled or not torch.cuda.is_available()
