"""Finding what was trained: a run or one of its checkpoints, and the spec of a job that uses it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brim.cli.runs import check_source, find_run, holds_run, recorded_spec
from brim.domain.inference import CHUNK, Inference
from brim.domain.job import JobSpec, default_micro_batches
from brim.errors import SpecError

__all__ = ["absolute", "find_trained", "job_with"]


def find_trained(name: str) -> tuple[Path, Path, JobSpec]:
    """The run, the checkpoint and the spec of training behind a run's name or a checkpoint's path.

    Raises:
        SpecError: there is no such run or checkpoint, it is damaged, or the training file is gone.
    """
    from brim.storage.checkpoints import newest_sound
    from brim.telemetry.history import read_history

    path = Path(name)
    if path.name.startswith("step-") and path.is_dir():
        run_dir = path.resolve().parent.parent
        if not holds_run(run_dir):
            raise SpecError(
                name,
                got="a checkpoint outside of a run",
                need="one in the directory of its run, which names the training file",
                hint="RUN/checkpoints/step-…: brim checkpoints RUN lists them",
            )
        checkpoint = path.resolve()
    else:
        run_dir = find_run(name)
        found, problems = newest_sound(run_dir / "checkpoints")
        for problem in problems:
            click.echo(f"brim: {problem}", err=True)
        if found is None:
            got = "only damaged checkpoints" if problems else "a run without a checkpoint"
            raise SpecError(
                str(run_dir), got=got, need="a run that has one", hint=f"brim checkpoints {run_dir}"
            )
        checkpoint = found[0].resolve()
    spec = recorded_spec(run_dir, read_history(run_dir))
    if not spec.file or spec.inference:
        raise SpecError(
            name,
            got="a loop of one's own" if spec.command else "a run that trained nothing",
            need="a run of brim train: its file says how to make the model and read the data",
            hint="torch can load what your loop saved",
        )
    check_source(spec)
    return run_dir.resolve(), checkpoint, spec


def job_with(spec: JobSpec, wanted: Inference, values: dict[str, Any]) -> JobSpec:
    """The spec of a job that uses a model, where what was not given is as in training.

    Raises:
        SpecError: values that are wrong by themselves or beside each other.
    """
    workers = values["workers"] or spec.workers
    parts = default_micro_batches(workers)
    return replace(
        spec,
        inference=wanted,
        device=values["device"] or spec.device,
        workers=workers,
        micro_batches=parts,
        global_batch_size=parts * CHUNK,
        epochs=1,
        checkpoint_every=0,
        faults=values["faults"],
        transport="auto",
        agents=1,
    )


def absolute(path: str) -> str:
    """A local path from the root: the job runs where the training did. URLs stay as they are."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
