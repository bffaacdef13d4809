"""Warm-up: the template's work that no worker has to do again.

Imports, the user's file, first times.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import ModuleType

import torch

from brim.domain.job import JobSpec
from brim.tensors.compiled import is_compiled
from brim.tensors.memory import give_back
from brim.train.entry.training_file import (
    Prepared,
    Splits,
    device_of,
    functions_of,
    load,
    splits_of,
    warm_up,
)
from brim.train.entry.training_file import prepare as prepare_training
from brim.train.inference.job import Task
from brim.train.inference.tasks import prepare_task
from brim.worker import dynamo
from brim.worker.gpus import gpus_hidden


def import_torch() -> None:
    """Load the lazy parts of torch, except its compiler, which only a compiling job needs.

    One thread: a fork of a process whose OpenMP has started more waits for ever for those that it
    does not have. A worker sets its own number once it is born.
    """
    dynamo.defer()
    torch.set_num_threads(1)
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    with gpus_hidden():
        for optimizer in (torch.optim.SGD([parameter], lr=0.1), torch.optim.Adam([parameter])):
            optimizer.step()


@dataclass(frozen=True, slots=True)
class FileAndData:
    """A training file, run, and its data; the rest is on a GPU, where each worker makes its own.

    Attributes:
        functions: of the file.
        splits: of its dataset; None where a worker takes what its task asks for.
    """

    functions: ModuleType
    splits: Splits | None

    def prepare(self, spec: JobSpec) -> Prepared | Task:
        """Prepare the rest; raises as `prepare` does."""
        return _prepare(self.functions, spec, self.splits)


def prepare_file(spec: JobSpec) -> Prepared | Task | FileAndData | None:
    """Run the training file.

    Where it is to be trained, put one micro-batch through a copy of its model.

    A file that says `preload = False` is only imported: then every worker calls its functions for
    itself. Of a job on GPUs only the data is read: a fork cannot use what its parent has there.

    Raises:
        SpecError, UserCodeError: they do not fit together.
    """
    module = load(spec.file)
    if not getattr(module, "preload", True):
        return None
    if device_of(spec).type != "cpu":
        functions = functions_of(module, spec)
        return FileAndData(functions, None if spec.inference else splits_of(functions, spec))
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
    """Prepare the training file's parts for every worker of a job.

    Raises:
        SpecError, UserCodeError: the file, its data or a checkpoint will not do.
    """
    return _prepare(functions_of(module, spec), spec)


def _prepare(functions: ModuleType, spec: JobSpec, splits: Splits | None = None) -> Prepared | Task:
    if spec.inference:
        return prepare_task(functions, spec)
    return prepare_training(functions, spec, splits)


def forking_is_safe() -> bool:
    """Return whether a fork of this process can work.

    It cannot with a GPU, or a thread, also one of OpenMP's.
    """
    initialised: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not initialised and threading.active_count() == 1 and torch.get_num_threads() == 1
