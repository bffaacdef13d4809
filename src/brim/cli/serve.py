"""`brim serve`: predictions over HTTP."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

import click

from brim.cli.shared.usage import EXIT_DONE
from brim.domain.options import whole
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.runs import completing
from brim.runs.options import ADDRESS, INSECURE, check_insecure, option
from brim.runs.starting import require_train_extra
from brim.runs.values import Value
from brim.storage.contact import token_in
from brim.wire.listening import is_loopback, split_address


@click.command()
@click.argument("bundle", metavar="BUNDLE", shell_complete=completing.files)
@option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:0",
    show_default=True,
    help="Listen for clients at this address: by HTTPS where other hosts can reach it.",
)
@option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show clients the certificate in FILE: PEM, followed by the authorities that signed it. A "
    "file that changes is read again.",
)
@option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the certificate's key from FILE. [default: from the file of --certificate]",
)
@INSECURE
@option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Refuse requests without the token in FILE. [default: none, and only this host may ask]",
)
@option(
    "--batch-rows",
    type=Value(whole(minimum=0)),
    default=2048,
    show_default=True,
    help="Compute waiting requests together, up to this many rows; 0: each request by itself.",
)
@option(
    "--batch-wait",
    type=Value(whole(minimum=0)),
    default=0,
    show_default=True,
    metavar="MS",
    help="Wait this long for more requests before computing a batch.",
)
def serve(
    bundle: str,
    listen: str,
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    token_file: Path | None,
    batch_rows: int,
    batch_wait: int,
) -> int:
    """Answer requests with the predictions of BUNDLE.

    BUNDLE is a bundle, or a directory of versions, of which the newest is served.

    \b
    brim export latest --output versions/1 --format bundle
    brim serve versions
    curl http://127.0.0.1:PORT/predict -H 'Content-Type: application/json' \\
        -d '{"rows": [{"color": "red"}]}'
    brim serve versions --listen 0.0.0.0:8443 --token-file token --certificate server.pem

    A directory is watched: a newer bundle, or a delta for the version that is served, takes over
    once it is there, and no request is lost. GET /health, /version and /metrics show its
    state. Ctrl-C or SIGTERM ends it.
    """
    require_train_extra()
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        need = "the extra 'cluster'"
        raise SpecError("uvicorn", got="no such package", need=need, hint=command_for("cluster"))
    host, port = split_address(listen)
    token = "" if token_file is None else token_in(token_file, field="--token-file")
    _check_reach(listen, certificate, key, token=token, insecure=insecure)
    from brim.serving.server import serve as run
    from brim.wire.certificate_file import CertificateFile

    def say(text: str) -> None:
        click.echo(text, err=True)

    with contextlib.redirect_stdout(sys.stderr):  # a training file may print
        run(
            Path(bundle),
            host=host,
            port=port,
            token=token,
            certificate=CertificateFile(certificate, key) if certificate else None,
            most=batch_rows,
            wait=batch_wait / 1e3,
            say=say,
        )
    return EXIT_DONE


def _check_reach(
    listen: str, certificate: Path | None, key: Path | None, *, token: str, insecure: bool
) -> None:
    """Raises SpecError where other hosts could ask, or read the traffic, unintendedly."""
    check_insecure(listen, insecure=insecure)
    is_near = is_loopback(split_address(listen)[0])
    if not token and not is_near:
        raise SpecError(
            "--listen",
            got=f"{listen!r}, which other hosts can reach, and no token",
            need="a token for requests from other hosts",
            hint="head -c 16 /dev/urandom | xxd -p > token; brim serve … --token-file token",
        )
    if certificate is None and not (is_near or insecure):
        raise SpecError(
            "--listen",
            got=f"{listen!r}, which other hosts can reach, and no certificate: the token and all rows "
            "would pass through the network as they are",
            need="a certificate to show clients",
            hint="--certificate FILE, or on a network that you trust: --insecure",
        )
    if certificate is not None and insecure:
        raise SpecError(
            "--insecure", got="it beside --certificate", need="one of them", hint="leave one out"
        )
    if key is not None and certificate is None:
        raise SpecError("--key", got=str(key), need="its certificate", hint="--certificate FILE")
