"""`brim track`: a run's records sent to TensorBoard, MLflow, W&B or a logger of one's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.host.clock import monotonic, sleep
from brim.runs import completing
from brim.runs.options import LOGGERS, STATE

_INTERVAL = 0.5  # seconds between two looks at a run that is under way
_MASTER_TIMEOUT = (
    15.0  # seconds without a master after which a run that did not end is taken to be dead
)


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completing.runs)
@LOGGERS
@STATE
def track(run: str | None, loggers: tuple[str, ...], state: Path | None) -> int:
    """Send RUN's records to a logger, from where it stopped; without RUN, the latest run's.

    \b
    brim track --logger tensorboard
    brim track flights-20260102-030405 --logger mlflow
    brim track flights-1 --logger mlflow    (a job of the scheduler; goes on until it ends)

    Each step is sent once, however often you start this. Without --logger, the records go to the
    loggers that the run had.
    """
    from brim.loggers.follower import Follower, recorded_loggers
    from brim.loggers.named import check_loggers, make_logger
    from brim.runs.directories import find_run

    run_dir = find_run(run, state=state)
    names = check_loggers(loggers) or tuple(recorded_loggers(run_dir))
    if not names:
        raise SpecError(
            "--logger",
            got="nothing, and a run that had no logger",
            need="tensorboard, mlflow, wandb or FILE.py:NAME",
            hint="brim track --logger tensorboard",
        )
    followers = [Follower(run_dir, name, partial(make_logger, name)) for name in names]
    counts = [0] * len(followers)
    waiting = _Waiting(run_dir)
    is_over = False
    while not is_over:
        is_over = all(follower.ended for follower in followers) or waiting.is_dead()
        for index, follower in enumerate(followers):
            counts[index] += follower.poll()
        if not all(follower.ended for follower in followers):
            sleep(_INTERVAL)
    for name, follower, count in zip(names, followers, counts, strict=True):
        follower.close()
        click.echo(
            f"{name}: {count:,} entries, up to step {follower.step:,} of {run_dir}", err=True
        )
    return EXIT_DONE


class _Waiting:
    """The time for which a run has had no master: one that dies is replaced within moments."""

    def __init__(self, run_dir: Path) -> None:
        self._journal = run_dir / "journal"
        self._silent_since: float | None = None

    def is_dead(self) -> bool:
        from brim.storage.journal import has_writer

        now = monotonic()
        if has_writer(self._journal):
            self._silent_since = None
            return False
        self._silent_since = self._silent_since or now
        return now - self._silent_since > _MASTER_TIMEOUT
