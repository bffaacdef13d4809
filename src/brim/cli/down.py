"""`brim down`: pause all jobs and stop the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim.runs.options import STATE

_TO_GO_DOWN = 120.0  # seconds
_POLL_INTERVAL = 0.05


@click.command()
@click.option(
    "--kill",
    is_flag=True,
    help="Kill the jobs' processes now instead of pausing them at their next step.",
)
@STATE
def down(kill: bool, state: Path | None) -> int:
    """Pause every job with a checkpoint and stop the scheduler; `brim up` continues them.

    \b
    brim down
    brim down --kill      (jobs go on from their last checkpoints)

    A scheduler that cannot write to its database ends alone; its jobs train on, unless you say
    --kill.
    """
    from brim.client import default_state_dir
    from brim.storage.contact import SCHEDULER_LOCK
    from brim.storage.files import is_locked

    state = (state or default_state_dir()).resolve()
    client = client_of(state)
    cluster = client.cluster()
    views = [] if cluster.holds else client.jobs(unfinished=True)
    running = [view.job for view in views if view.state == "running"]
    client.down(kill=kill)
    end = monotonic() + _TO_GO_DOWN
    while is_locked(state / SCHEDULER_LOCK):
        if monotonic() > end:
            raise EnvironmentFault(
                f"jobs still run after {_TO_GO_DOWN:.0f} s: brim down --kill ends them now"
            )
        sleep(_POLL_INTERVAL)
    if cluster.holds:
        fate = "were killed" if kill else "keep training"
        click.echo(
            f"the scheduler is down. It could not use its database, so this was not recorded: its jobs "
            f"{fate}, and the next brim up takes them over",
            err=True,
        )
        return EXIT_DONE
    click.echo(f"the scheduler is down; {_fate_of(running, kill=kill)}", err=True)
    return EXIT_DONE


def _fate_of(jobs: Sequence[str], *, kill: bool) -> str:
    """Say what became of the jobs that were running.

    >>> _fate_of(["a-1", "b-2"], kill=False), _fate_of([], kill=True)
    ('2 jobs suspended: a-1, b-2', 'no job was running')
    """
    if not jobs:
        return "no job was running"
    return f"{counted(len(jobs), 'job')} {'killed' if kill else 'suspended'}: {', '.join(jobs)}"
