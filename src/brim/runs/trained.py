"""Finding trained models: a run or one of its checkpoints, and the spec of a job that uses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from brim.domain.checkpointing import Interval
from brim.domain.inference import CHUNK, Inference
from brim.domain.job import JobSpec, default_micro_batches
from brim.errors import SpecError
from brim.runs.directories import (
    check_source,
    find_run,
    holds_run,
    recorded_spec,
    with_kept_code,
)

if TYPE_CHECKING:
    from brim.storage.checkpoints import Store


_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Trained:
    """A run that trained a model, and the checkpoint that has it.

    Args:
        place: directory or URL of the run's checkpoints.
        where: the name of the checkpoint for people.
    """

    run_dir: Path
    spec: JobSpec
    place: str
    step: int
    where: str


def find_trained(name: str, *, warn: Callable[[str], None], state: Path | None = None) -> Trained:
    """Find the run that trained a model, and the checkpoint with its weights.

    The name of a run means its newest sound checkpoint; a checkpoint may also be named by its
    directory.

    Args:
        warn: is told of what the user should know, such as a training file that has changed since.
        state: of the scheduler whose job it may be; None: the usual place.

    Raises:
        SpecError: there is no such run or checkpoint, or the training file is gone.
        EnvironmentFault: its checkpoints cannot be read.
    """
    from brim.storage.checkpoints import Store
    from brim.storage.file_stores import location_of, open_place
    from brim.storage.job_file import change_of_source
    from brim.telemetry.history import read_history

    chosen = _STEP.fullmatch(Path(name).name)
    if chosen:
        run_dir = Path(name).resolve().parent.parent
        if not Path(name).is_dir() or not holds_run(run_dir):
            raise SpecError(
                name,
                got="no directory of a checkpoint in a run",
                need="RUN/checkpoints/step-…: the run names the training file and its data",
                hint="brim checkpoints RUN lists them",
            )
    else:
        run_dir = find_run(name, state=state, checkpoints=True)
    spec = recorded_spec(run_dir, read_history(run_dir))
    if not spec.file or spec.inference:
        raise SpecError(
            name,
            got="a run of your own loop" if spec.command else "a run that trained nothing",
            need="a run of brim train, whose file builds the model and reads the data",
            hint="torch can load what your loop saved"
            if spec.command
            else "name the run that trained the model",
        )
    run_dir = run_dir.resolve()
    spec = with_kept_code(run_dir, spec, warn=warn)
    check_source(spec)
    if changed := change_of_source(run_dir, spec):
        warn(changed)
    place = str(Path(name).resolve().parent) if chosen else location_of(spec.checkpoints, run_dir)
    store = Store(open_place(place))
    step = int(chosen[1]) if chosen else _newest(store, name, warn)
    return Trained(run_dir, spec, place, step, store.location(step))


def _newest(store: Store, name: str, warn: Callable[[str], None]) -> int:
    found, problems = store.newest_sound()
    for problem in problems:
        warn(problem)
    if found is None:
        actual = "only damaged checkpoints" if problems else "a run without a checkpoint"
        raise SpecError(
            name, got=actual, need="a run that has one", hint=f"brim checkpoints {name}"
        )
    return found.step


def wanted_of(trained: Trained, kind: Literal["evaluate", "predict"], **fields: Any) -> Inference:
    """Return the inference for the model; `fields` as `Inference` has it."""
    return Inference(
        kind=kind,
        run=str(trained.run_dir),
        checkpoints=trained.place,
        step=trained.step,
        checkpoint=trained.where,
        **fields,
    )


def job_with(spec: JobSpec, inference: Inference, values: dict[str, Any]) -> JobSpec:
    """The spec of a job that uses a model, with the training's values as defaults.

    Raises:
        SpecError: values that are wrong by themselves or beside each other.
    """
    workers = values["workers"] or spec.workers
    parts = default_micro_batches(workers)
    return replace(
        spec,
        inference=inference,
        device=values["device"] or spec.device,
        workers=workers,
        micro_batches=parts,
        global_batch_size=parts * CHUNK,
        epochs=1,
        exact=True,
        checkpoints="",
        checkpoint_every=Interval(),
        keep_best=None,
        memory=None,  # that of training, which cannot be changed here
        faults=values["faults"],
        servers=0,
        spares=0,  # a job this short would mostly wait for them to start
        transport="auto",
        agents=1,
    )
