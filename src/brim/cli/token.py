"""`brim token`: by which a tenant is known to the scheduler."""

from __future__ import annotations

import os
from pathlib import Path

import click

from brim.cli.shared.handles import client_of
from brim.cli.shared.usage import EXIT_DONE
from brim.errors import SpecError
from brim.runs.options import STATE, option


@click.command()
@click.argument("tenant", metavar="TENANT")
@option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the token to a new file that only you can read. [default: print it]",
)
@option("--revoke", is_flag=True, help="Revoke the tenant's token, and give no new one.")
@STATE
def token(tenant: str, output: Path | None, revoke: bool, state: Path | None) -> int:
    """Give TENANT, a tenant of cluster.yaml, a token.

    It is shown once; the tenant's last token stops working.

    \b
    brim token ads --output ads.token     (the tenant gets the file: BRIM_TOKEN_FILE names it)
    brim token ads --revoke
    """
    from brim.storage.files import write_through
    from brim.wire.https import url_elsewhere

    client = client_of(state)
    if revoke:
        client.revoke_token(tenant)
        click.echo(f"revoked the token of tenant {tenant}", err=True)
    elif output is None:
        click.echo(client.give_token(tenant))
    else:
        _make(output)  # first: a token that nobody can keep would revoke the last one for nothing
        try:
            write_through(output, f"{client.give_token(tenant)}\n".encode())
        except BaseException:
            output.unlink()
            raise
        click.echo(
            f"wrote {output}: the tenant sets BRIM_SERVER={url_elsewhere(client.address)} and "
            "BRIM_TOKEN_FILE",
            err=True,
        )
    return EXIT_DONE


def _make(output: Path) -> None:
    """An empty file that only its owner can read."""
    try:
        os.close(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        actual = f"{str(output)!r} ({error.strerror})"
        raise SpecError("--output", got=actual, need="a new file") from None
