"""The calls of clients to a scheduler: plain on a host, encrypted between hosts.

A client knows a scheduler on another host by the cluster's authority, whose fingerprint is in its
token. A token without one is for a server that stands in front, whose certificate the client's host
trusts anyway. In either case the token goes to no server that has not shown such a certificate.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import ssl

from brim.errors import EnvironmentFault, SpecError
from brim.wire.identity import (
    OUT_OF_TIME,
    SCHEDULER,
    authority_at,
    client_context,
    server_name,
    split_token,
)
from brim.wire.listening import is_loopback, is_of_one_link, joined_address, split_address

ALL_ADDRESSES = ("0.0.0.0", "::")  # of a host
INSECURE = "BRIM_INSECURE"  # set to 1: a token may go to another host as it is

_LARGEST_PORT = 2**16 - 1
_KUBERNETES = r"kubernetes(?:://(?P<namespace>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)?/?)?"
_authorities: dict[str, bytes] = {}  # authorities, by their fingerprints


def namespace_in(url: str) -> str | None:
    """Return the namespace of Kubernetes that a URL names; empty: that of the kubeconfig.

    None: it is the URL of a scheduler.

    >>> namespace_in("kubernetes://team"), namespace_in("kubernetes"), namespace_in("https://a:1")
    ('team', '', None)
    """
    found = re.fullmatch(_KUBERNETES, url)
    return None if found is None else found["namespace"] or ""


def scheduler_url(text: str, *, field: str) -> str:
    """Return the URL of a scheduler, which may be given by its address alone; empty stays empty.

    Args:
        field: where it was written, for the error.

    Raises:
        SpecError: it is neither, or a token would pass through a network as it is.

    >>> scheduler_url("10.0.0.7:4000", field="--server")
    'https://10.0.0.7:4000'
    >>> scheduler_url("http://[::1]:4000/", field="--server")
    'http://[::1]:4000'
    >>> scheduler_url("kubernetes://team", field="--server")
    'kubernetes://team'
    """
    if not text:
        return ""
    if re.fullmatch(_KUBERNETES, text):
        return text
    scheme, found, rest = text.rpartition("://")
    scheme, address = scheme.lower(), rest.rstrip("/") if found else text
    name, _, digits = address.rpartition(":")
    right = scheme in ("", "http", "https") and name and digits.isascii() and digits.isdigit()
    if not right or int(digits) > _LARGEST_PORT or set(name) & set("/@?# "):
        raise SpecError(
            field,
            got=repr(text),
            need="the address of a scheduler, https://HOST:PORT or HOST:PORT, or kubernetes://NAMESPACE",
            hint="brim up says where it listens: --server https://10.0.0.7:4000",
        )
    host, port = split_address(address)
    if is_of_one_link(host):
        raise SpecError(
            field,
            got=f"{text!r}, an address of one link, for which each host has a name of its own",
            need="another address of the scheduler's host, or its name",
            hint="on that host: ip -6 address show scope global",
        )
    is_local = is_loopback(host)
    if scheme == "http" and not is_local and os.environ.get(INSECURE, "") != "1":
        raise SpecError(
            field,
            got=f"{text!r}, over which a token would pass through the network as it is",
            need="an https:// address",
            hint=f"for brim up --insecure on a network that you trust: export {INSECURE}=1",
        )
    return f"{scheme or ('http' if is_local else 'https')}://{joined_address(host, port)}"


def url_elsewhere(url: str) -> str:
    """Return the URL by which other hosts call a scheduler; one of all addresses has its host's name.

    >>> url_elsewhere("https://10.0.0.7:4000")
    'https://10.0.0.7:4000'
    """
    scheme, _, address = url.partition("://")
    host, port = split_address(address)
    return (
        f"{scheme}://{joined_address(os.uname().nodename, port)}" if host in ALL_ADDRESSES else url
    )


def connection_to(
    url: str, *, token: str, authority: str = "", timeout: float
) -> http.client.HTTPConnection:
    """Return a connection to a scheduler that is still to be opened, and verified as it is.

    Args:
        url: as `scheduler_url` returns it.
        token: that is going to be sent.
        authority: its certificate, PEM, where it is known; empty: look for that of the token.
        timeout: seconds for each step.

    Raises:
        EnvironmentFault: what listens there is not what the token is for; opening it raises
            ssl.SSLCertVerificationError then.
        OSError: it does not answer.
    """
    scheme, _, address = url.partition("://")
    if scheme == "http":
        return http.client.HTTPConnection(address, timeout=timeout)
    _, fingerprint = split_token(token)
    if not (authority or fingerprint):
        return http.client.HTTPSConnection(
            address, timeout=timeout, context=ssl.create_default_context()
        )
    trusted = authority.encode() or _authorities.get(fingerprint)
    if trusted is None:
        host, port = split_address(address)
        trusted = authority_at(host, port, fingerprint=fingerprint, timeout=timeout)
        _authorities[fingerprint] = trusted
    return _SchedulerConnection(address, trusted, timeout=timeout)


def hang_up(connection: http.client.HTTPConnection) -> None:
    """End a connection, and with it the wait of another thread for what comes on it."""
    with contextlib.suppress(OSError, AttributeError):  # it is closed already
        connection.sock.shutdown(socket.SHUT_RDWR)


def fault_of(error: Exception, url: str, *, token: str) -> EnvironmentFault | None:
    """Return the meaning of a connection error for the server there; None where it has none."""
    if isinstance(error, ssl.SSLCertVerificationError) and not split_token(token)[1]:
        return EnvironmentFault(
            f"nothing tells that {url} is the scheduler: {error.verify_message}, and the token has no "
            "fingerprint of the cluster's authority\n  hint: on the scheduler's host, the file `token` "
            "in the state directory has one, as do tokens of brim token TENANT"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        is_late = error.verify_code in OUT_OF_TIME
        hint = "\n  hint: are the clocks of both hosts right?" if is_late else ""
        return EnvironmentFault(
            f"what listens at {url} is not the scheduler that the token is for: "
            f"{error.verify_message}{hint}"
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return EnvironmentFault(
            f"what listens at {url} does not speak HTTPS as a scheduler does: {error.reason}"
        )
    return None


def hint_of(error: Exception, url: str) -> str:
    """Return the remedy where an error may mean that a server speaks HTTPS alone; else nothing."""
    scheme, _, address = url.partition("://")
    is_like_it = isinstance(error, ConnectionResetError)  # one of http.client is among them
    return f"; or is it https://{address}?" if scheme == "http" and is_like_it else ""


class _SchedulerConnection(http.client.HTTPConnection):
    """A connection to a scheduler whose authority is known, by any of its addresses."""

    def __init__(self, address: str, authority: bytes, *, timeout: float) -> None:
        super().__init__(address, timeout=timeout)
        self._context = client_context(authority)

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=server_name(SCHEDULER))
