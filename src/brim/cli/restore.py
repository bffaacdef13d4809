"""`brim restore`: bring back the content of a `brim backup`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.shared.state import lock_state
from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.quantities import counted
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import local_time, wall
from brim.runs.options import STATE, option


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Move what is in the state directory aside, instead of refusing."
)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def restore(file: Path, force: bool, as_json: bool, state: Path | None) -> int:
    """Restore what `brim backup` wrote to FILE, in a state directory where no scheduler runs.

    \b
    brim restore brim-2026-11-22.tar.gz && brim up
    brim restore brim-2026-11-22.tar.gz --force      (what is there goes to before-restore-…)

    Unfinished jobs continue from their checkpoints if their run directories are there, and start
    from scratch if not.
    """
    from brim.client import default_state_dir
    from brim.storage.backup import finish_restore, is_half_restored, prepare_restore, read_manifest

    state = (state or default_state_dir()).resolve()
    manifest = read_manifest(file)
    with _locked(state):
        if is_half_restored(state):
            finish_restore(state)
            warn("an earlier brim restore was killed; it was brought to its end first")
        if (state / "scheduler.db").exists() and not force:
            need = "a directory without scheduler.db; run directories may stay"
            hint = "add --force, which moves its files aside, to before-restore-… in it"
            raise SpecError("--state", got=f"{state}, which has a database", need=need, hint=hint)
        now = wall()
        aside = f"before-restore-{local_time(now):%Y%m%d-%H%M%S}"
        restored = prepare_restore(file, state, now=now, aside=aside)
        state_kept = finish_restore(state)
    if as_json:
        import msgspec

        click.echo(
            json.dumps(
                {"aside": str(state_kept) if state_kept else None, **msgspec.to_builtins(restored)}
            )
        )
        return EXIT_DONE
    written = f"{local_time(manifest.written):%Y-%m-%d %H:%M:%S}"
    click.echo(
        f"restored {counted(manifest.jobs, 'job')} as of {written} in {state}; brim up continues them",
        err=True,
    )
    if state_kept:
        click.echo(f"what was there is in {state_kept}", err=True)
    for jobs, fate in (
        (restored.go_on, "continue from their checkpoints"),
        (restored.begin_anew, "start from scratch, since their run directories are not there"),
        (restored.unknown, "are not in the backup: their directories stay, and belong to no job"),
    ):
        if jobs:
            click.echo(f"{fate}: {', '.join(jobs)}", err=True)
    if manifest.state != str(state):
        warn(
            f"the backup is of {manifest.state}; on another host, describe the cluster again: "
            "brim up --cluster FILE"
        )
    return EXIT_DONE


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    descriptor = lock_state(state)
    if descriptor is None:
        raise EnvironmentFault(f"a scheduler runs in {state}: brim down --state {state} ends it")
    try:
        yield
    finally:
        os.close(descriptor)
