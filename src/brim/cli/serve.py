"""`brim serve`: predictions over HTTP."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import sys
from pathlib import Path

import click

from brim.cli.usage import EXIT_DONE
from brim.domain.options import whole
from brim.errors import SpecError
from brim.runs import completing
from brim.runs.options import ADDRESS, option
from brim.runs.starting import require_train_extra
from brim.runs.values import Value
from brim.storage.contact import token_in


@click.command()
@click.argument("bundle", metavar="BUNDLE", shell_complete=completing.files)
@option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:0",
    show_default=True,
    help="Listen for clients at this address.",
)
@option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Refuse requests without the token in FILE. [default: none, and only this host may ask]",
)
@option(
    "--batch-rows",
    type=Value(whole(least=0)),
    default=2048,
    show_default=True,
    help="Compute waiting requests together, up to this many rows; 0: each request by itself.",
)
@option(
    "--batch-wait",
    type=Value(whole(least=0)),
    default=0,
    show_default=True,
    metavar="MS",
    help="Wait this long for more requests before computing a batch.",
)
def serve(
    bundle: str, listen: str, token_file: Path | None, batch_rows: int, batch_wait: int
) -> int:
    """Answer requests with the predictions of BUNDLE.

    BUNDLE is a bundle, or a directory of versions, of which the newest is served.

    \b
    brim export latest --output versions/1 --format bundle
    brim serve versions
    curl http://127.0.0.1:PORT/predict -H 'Content-Type: application/json' \\
        -d '{"rows": [{"color": "red"}]}'

    A directory is watched: a newer bundle, or a delta for the version that is served, takes over
    once it is there, and no request is lost. GET /health, /version and /metrics show its
    state. Ctrl-C or SIGTERM ends it.
    """
    require_train_extra()
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        need = "the extra 'cluster'"
        raise SpecError(
            "uvicorn", got="no such package", need=need, hint="pip install 'brim[cluster]'"
        )
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    token = "" if token_file is None else token_in(token_file, field="--token-file")
    if not token and not _is_loopback(host):
        raise SpecError(
            "--listen",
            got=f"{listen!r}, which other hosts can reach, and no token",
            need="a token for requests from other hosts",
            hint="head -c 16 /dev/urandom | xxd -p > token; brim serve … --token-file token",
        )
    from brim.serving.server import serve as run

    def say(text: str) -> None:
        click.echo(text, err=True)

    with contextlib.redirect_stdout(sys.stderr):  # a training file may print
        run(
            Path(bundle),
            host=host,
            port=int(port),
            token=token,
            most=batch_rows,
            wait=batch_wait / 1e3,
            say=say,
        )
    return EXIT_DONE


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
