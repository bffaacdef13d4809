"""`brim demo`: real training on this machine that shows brim's claims."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli.shared.tables import table
from brim.cli.shared.usage import EXIT_DONE, EXIT_FAILED, warn
from brim.demo import Demo
from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.host.clock import monotonic
from brim.host.installation import command_for
from brim.runs.options import option
from brim.user_code.plugins import DEMOS, how_to_install, load_plugin, plugins

_FIRST_JOB = "first-job"


def _names() -> list[str]:
    return [_FIRST_JOB, *plugins(DEMOS)]


def _demos() -> Iterator[tuple[str, Demo]]:
    """Every demo that can be run; one that cannot be imported says so and breaks no other."""
    for name in _names():
        try:
            yield name, _demo_called(name)
        except EnvironmentFault as error:
            warn(str(error))


def _demo_called(name: str) -> Demo:
    """Return the demo.

    Raises:
        SpecError: there is no such demo.
        EnvironmentFault: the package that has it cannot be imported.
    """
    if name == _FIRST_JOB:
        from brim.demo.first_job import FIRST_JOB

        return FIRST_JOB
    plugin = plugins(DEMOS).get(name)
    if plugin is None:
        install = how_to_install(DEMOS, name)
        names = _names()
        need = "the package that has it" if install else f"one of {', '.join(names)}"
        hint = install or did_you_mean(name, names)
        raise SpecError("NAME", got=repr(name), need=need, hint=hint)
    found: Demo = load_plugin(plugin)
    return found


@click.command()
@click.argument(
    "name",
    required=False,
    shell_complete=lambda ctx, param, incomplete: [
        name for name in _names() if name.startswith(incomplete)
    ],
)
@option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the results to this directory.",
)
@option(
    "--quick", is_flag=True, help="Run a smaller version for a first look; its times prove nothing."
)
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def demo(name: str | None, out: Path | None, quick: bool, as_json: bool) -> int:
    """Run a demo on this machine: real training that shows what brim claims.

    \b
    brim demo                                (list the demos)
    brim demo first-job
    brim demo experiment-1 --out out         (of the package brim-lab)

    Exit code 0 only if every claim of the demo held.
    """
    if name is None:
        demos = dict(_demos())
        rows = [(title_of, entry.minutes, entry.title) for title_of, entry in demos.items()]
        click.echo(
            json.dumps({"demos": list(demos)}) if as_json else table(("demo", "takes", ""), rows)
        )
        return EXIT_DONE
    from brim.storage.files import write_whole

    chosen = _demo_called(name)
    _require_extras(chosen)
    # As Ctrl-C: what the demo started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = _folder(name, out)
    started = monotonic()

    def tell(text: str) -> None:
        click.echo(f"[{monotonic() - started:4.0f} s] {text}", err=True)

    result = chosen.run(folder, tell, quick)
    numbers = {"demo": name, **result.numbers, "figure": str(result.figure)}
    write_whole(folder / f"{name}.json", (json.dumps(numbers, indent=1) + "\n").encode())
    if as_json:
        click.echo(json.dumps(numbers))
    else:
        click.echo(table(*result.table))
        click.echo(
            f"\nfigure   {result.figure}\nnumbers  {folder / name}.json\n\n{result.sentence}"
        )
    return EXIT_DONE if numbers["held"] else EXIT_FAILED


def _require_extras(demo: Demo) -> None:
    """Raises SpecError where something that the demo needs is not installed."""
    missing = sorted(
        {extra for name, extra in demo.needs.items() if importlib.util.find_spec(name) is None}
    )
    if missing:
        raise SpecError(
            "brim demo",
            got="no such packages",
            need=f"the extras {', '.join(missing)}",
            hint=command_for(*dict.fromkeys(demo.needs.values())),
        )


def _folder(name: str, out_folder: Path | None) -> Path:
    """A directory of this demo's own.

    Raises:
        SpecError: there is something in it.
    """
    from brim.host.clock import SystemClock
    from brim.runs.directories import new_run_dir

    folder = (out_folder or new_run_dir(f"demo-{name}", SystemClock().wall())).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise SpecError(
            "--out", got=f"{str(folder)!r} ({error.strerror})", need="a directory"
        ) from None
    if used:
        raise SpecError(
            "--out",
            got=f"{str(out_folder)!r}, which is not empty",
            need="a new or an empty directory",
        )
    return folder
