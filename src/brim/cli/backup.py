"""`brim backup`: the memory of a scheduler, in one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from brim.cli.shared.usage import EXIT_DONE
from brim.domain.quantities import counted, format_bytes
from brim.errors import SpecError
from brim.host.clock import monotonic, wall
from brim.runs.options import STATE, option

_PROGRESS_INTERVAL = 2.0  # seconds between two lines of progress


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@STATE
def backup(file: Path, as_json: bool, state: Path | None) -> int:
    """Write the scheduler's state to FILE: all jobs, the cluster, tokens and the audit log.

    \b
    brim backup brim-2026-11-22.tar.gz
    brim backup backups/nightly.tar.gz --state /srv/brim

    The scheduler may be running. FILE does not have the run directories with their logs and
    checkpoints. It has tokens, so only its owner can read it.
    """
    from brim.client import default_state_dir
    from brim.storage.backup import write_backup

    state = (state or default_state_dir()).resolve()
    if not (state / "scheduler.db").is_file():
        actual, need = f"no {state}/scheduler.db", "the state directory of a scheduler"
        raise SpecError("--state", got=actual, need=need, hint="brim up")
    if not file.absolute().parent.is_dir():
        raise SpecError(
            "FILE", got=f"no directory {file.absolute().parent}", need="a directory for the backup"
        )
    manifest = write_backup(state, file.absolute(), now=wall(), progress=_Telling())
    size = file.stat().st_size
    if as_json:
        found = {"jobs": manifest.jobs, "unfinished": manifest.unfinished, "bytes": size}
        click.echo(json.dumps({"file": str(file), **found}))
        return EXIT_DONE
    contents = f"{counted(manifest.jobs, 'job')}, {manifest.unfinished} unfinished, and tokens"
    click.echo(f"backed up {contents} in {file} ({format_bytes(size)})", err=True)
    click.echo(f"not in it: run directories, with logs and checkpoints, in {state}/jobs", err=True)
    return EXIT_DONE


class _Telling:
    """Says on stderr how far a long copy is."""

    def __init__(self) -> None:
        self._last = monotonic()

    def __call__(self, part: float) -> None:
        if monotonic() - self._last > _PROGRESS_INTERVAL:
            self._last = monotonic()
            click.echo(f"copied {part:.0%} of the database", err=True)
