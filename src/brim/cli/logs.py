"""`brim logs`: what the processes of a run printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.options import option
from brim.cli.usage import EXIT_DONE
from brim.errors import SpecError, did_you_mean

__all__ = ["logs"]

INTERVAL = 0.2


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@option("--worker", metavar="W", help="Of this worker alone, such as w1.")
def logs(run: str | None, follow: bool, worker: str | None) -> int:
    """What the processes of RUN printed, each line under its worker's name.

    \b
    brim logs
    brim logs latest -f --worker w1
    """
    from brim.cli.runs import find_run

    run_dir = find_run(run)
    folder = run_dir / "logs"
    if worker is not None and not (folder / f"{worker}.log").is_file():
        known = [path.stem for path in folder.glob("*.log")]
        raise SpecError(
            "--worker",
            got=repr(worker),
            need=f"a worker of {run_dir}",
            hint=did_you_mean(worker, known) if known else "no worker has printed anything",
        )
    tail = _Tail(folder, worker)
    for line in tail.fresh():
        click.echo(line)
    while follow and not _ended(run_dir):
        time.sleep(INTERVAL)
        for line in tail.fresh():
            click.echo(line)
    return EXIT_DONE


class _Tail:
    """Remembers how far each log was read."""

    def __init__(self, folder: Path, worker: str | None) -> None:
        self._folder, self._pattern = folder, f"{worker or '*'}.log"
        self._offsets: dict[Path, int] = {}

    def fresh(self) -> Iterator[str]:
        """Lines completed since the last call; a last line without an end waits for it."""
        for path in sorted(self._folder.glob(self._pattern), key=_natural):
            with open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                yield f"{path.stem} | {line}"


def _natural(path: Path) -> tuple[int, str]:
    """w2 before w10."""
    return len(path.stem), path.stem


def _ended(run_dir: Path) -> bool:
    from brim import client
    from brim.errors import EnvironmentFault

    try:
        client.status(run_dir)
    except EnvironmentFault:
        return True
    return False
