"""W&B: one W&B run for a run, by an id that follows from it.

Offline, its newest directory is complete.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import wandb

from brim.loggers.protocol import Entry, LoggedRun


class WandB:
    """Logs to the project `WANDB_PROJECT` (else: brim).

    With `WANDB_MODE=offline`, to files in the run's directory.

    W&B sends what it is given in its own time and cannot be asked to hurry. So what it has is found
    out at each start: online the service knows the last step that it got, offline what an earlier
    process left is replaced. Steps that the run did again keep the values of the first time.
    """

    def begin(self, run: LoggedRun) -> int | None:
        offline = wandb.Settings().mode == "offline"
        if offline:
            _remove_earlier(run)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "brim"),
            id=run.id,
            name=run.name,
            dir=str(run.directory),
            config=dict(run.spec),
            resume="allow",
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        self._next = self._run.starting_step
        return self._next - 1

    def rewind(self, step: int) -> None:
        pass  # see the docstring

    def log(self, entry: Entry) -> None:
        if entry.step >= self._next:
            self._next = entry.step
            self._run.log(dict(entry.values), step=entry.step)

    def flush(self) -> None:
        pass  # see the docstring

    def end(self, exit: str) -> None:
        self._run.finish(0 if exit in ("done", "suspended") else 1)


def _remove_earlier(run: LoggedRun) -> None:
    """Remove the offline files of an earlier process of this run.

    Its end may be missing, and all of it is written again.
    """
    for folder in Path(run.directory, "wandb").glob(f"offline-run-*-{run.id}"):
        shutil.rmtree(folder, ignore_errors=True)  # its writer may not have ended yet
