"""Identities: the certificate of each end of a TLS connection, and its demands of the other.

An authority (`wire.authority`) signs the certificate of each identity of its run or cluster. A
certificate has two names: a URI that says whose it is, and a host name that says what it may serve
as, so that an agent cannot stand in the place of its master. Addresses are in none of them: hosts
change theirs.

A host that joins has no certificate yet, only a token: a secret, and the fingerprint by which it knows
the authority.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
from base64 import b32encode
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from brim.errors import EnvironmentFault
from brim.host.anonymous import anonymous_file
from brim.host.process import close_in_children

LIFETIME = 24 * 3600.0  # seconds for which a certificate is good
RENEW_AFTER = LIFETIME / 2  # seconds after which its owner asks for another

SCHEDULER = "scheduler"  # the role of a scheduler, towards clients and nodes

# Bytes, both ways together, after which a connection is opened again, with other keys. OpenSSL neither
# counts what a key has encrypted nor agrees on another by itself, and Python cannot ask it to. Under
# one key AES-GCM is good for 2**24.5 records of 16 KiB (RFC 8446, 5.5): 2**38.5 bytes, one way.
MOST_OF_A_CONNECTION = 1 << 38

OUT_OF_TIME = (9, 10)  # of OpenSSL's reasons: a certificate is not valid yet, or any more

_SCHEME = "brim://"
_DOMAIN = "brim.internal"  # a domain that is nobody's on the Internet
_FINGERPRINT_BYTES = 20
_FINGERPRINT = re.compile("[a-z2-7]{32}")  # so many bytes in base32
_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
# gRPC verifies the name of the server that it calls, and calls addresses.
_SERVER_NAME = "grpc.ssl_target_name_override"


class NotTheAuthority(EnvironmentFault):
    """The server's certificate was not signed by the authority that the token names."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The owner of a certificate.

    Args:
        scope: `cluster`, or `run/RUN_ID`: whose authority signed it.
        role: what it may serve as, such as `master` or `agent`.
        name: of this one among several with the role; may be empty.
    """

    scope: str
    role: str
    name: str = ""

    @property
    def uri(self) -> str:
        """Return it as it is written in the certificate.

        >>> Subject("run/flights-1", "agent", "host 2").uri
        'brim://run/flights-1/agent/host%202'
        """
        return f"{_SCHEME}{self.scope}/{self.role}" + (
            f"/{quote(self.name, safe='')}" if self.name else ""
        )

    @classmethod
    def from_uri(cls, uri: str) -> Subject:
        """Return the owner that a URI names.

        >>> Subject.from_uri("brim://cluster/node/n1")
        Subject(scope='cluster', role='node', name='n1')

        Raises:
            ValueError: it names none.
        """
        words = uri.removeprefix(_SCHEME).split("/")
        of_scope = 2 if words[0] == "run" else 1
        if not uri.startswith(_SCHEME) or len(words) not in (of_scope + 1, of_scope + 2):
            raise ValueError(f"{uri!r} names no identity")
        scope, (role, *name) = "/".join(words[:of_scope]), words[of_scope:]
        return cls(scope, role, unquote(name[0]) if name else "")


def server_name(role: str) -> str:
    """Return the host name in certificates of a role, for which a caller asks.

    >>> server_name("master")
    'master.brim.internal'
    """
    return f"{role}.{_DOMAIN}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Key and certificates that an end of a connection shows; all three are PEM.

    Args:
        key: private.
        certificate: of the key.
        authority: its own certificate.
    """

    key: bytes
    certificate: bytes
    authority: bytes

    @property
    def pem(self) -> bytes:
        """Return all of it, as a file has it; only its owner may read that."""
        return self.key + self.certificate + self.authority

    @classmethod
    def from_pem(cls, pem: bytes) -> Identity:
        """Raises ValueError where this is no identity."""
        key, *certificates = pem.split(_BEGIN_CERTIFICATE)
        if b"PRIVATE KEY" not in key or len(certificates) != 2:
            raise ValueError("not a key with two certificates")
        certificate_pem, authority = (
            _BEGIN_CERTIFICATE + certificate for certificate in certificates
        )
        return cls(key, certificate_pem, authority)


def fingerprint_of(authority: bytes) -> str:
    """Return the fingerprint of an authority: 160 bits of the SHA-256 of its certificate.

    Args:
        authority: its certificate, PEM.
    """
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.decode())).digest()
    return b32encode(digest[:_FINGERPRINT_BYTES]).decode().lower()


def token_with(secret: str, fingerprint: str) -> str:
    """Return the token to print.

    >>> token_with("8c1f", "mzxw6ytb")
    '8c1f.mzxw6ytb'
    """
    return f"{secret}.{fingerprint}"


def split_token(token: str) -> tuple[str, str]:
    """Return the secret and the fingerprint of a token; the latter is empty where it has none.

    Nothing that cannot be a fingerprint is taken off: all of it may be the secret.

    >>> split_token("8c1f.mzxw6ytbmzxw6ytbmzxw6ytbmzxw6ytb"), split_token("8c1f"), split_token("a.b")
    (('8c1f', 'mzxw6ytbmzxw6ytbmzxw6ytbmzxw6ytb'), ('8c1f', ''), ('a.b', ''))
    """
    secret, _, fingerprint = token.rpartition(".")
    return (secret, fingerprint) if _FINGERPRINT.fullmatch(fingerprint) else (token, "")


# What each end asks of the other ------------------------------------------------------------------


def server_context(identity: Identity, *, with_strangers: bool = False) -> ssl.SSLContext:
    """Return the context of an end that is called.

    Args:
        with_strangers: callers may have no certificate, and are for the server to limit. One of
            another authority, or one that has expired, ends the connection all the same.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # each connection is verified: a certificate may expire between two
    context.load_verify_locations(cadata=identity.authority.decode())
    context.verify_mode = ssl.CERT_OPTIONAL if with_strangers else ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])  # gRPC's; callers that ask for none are fine
    show(context, identity)
    return context


def open_context(identity: Identity) -> ssl.SSLContext:
    """Return a server's context for callers without certificates: they show tokens later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # each connection is verified: a certificate may expire between two
    show(context, identity)
    return context


def client_context(authority: bytes, identity: Identity | None = None) -> ssl.SSLContext:
    """Return the context of an end that calls; it must say which `server_name` it calls.

    Args:
        authority: whose servers are trusted: its certificate, PEM.
        identity: of the caller; None: it has none yet.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    if identity is not None:
        show(context, identity)
    return context


def show(context: ssl.SSLContext, identity: Identity) -> None:
    """Have a context show an identity from the next handshake on.

    Raises OSError where this process has no descriptor left: `ssl` takes keys from files alone.
    """
    descriptor = anonymous_file("identity")
    try:
        os.write(descriptor, identity.pem)  # a few kilobytes of memory: all of it
        context.load_cert_chain(f"/dev/fd/{descriptor}")
    finally:
        os.close(descriptor)


def grpc_credentials(identity: Identity) -> Any:
    """Return the same for a channel of gRPC, which needs `grpc_options` too."""
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=identity.authority,
        private_key=identity.key,
        certificate_chain=identity.certificate,
    )


def grpc_options(role: str) -> list[tuple[str, str]]:
    """Return the options of a channel to a server with this role."""
    return [(_SERVER_NAME, server_name(role))]


def subject_of(connection: ssl.SSLSocket | ssl.SSLObject) -> Subject | None:
    """Return the owner of a connection's other end; None: it showed no certificate."""
    certificate_fields = connection.getpeercert() or {}
    names: Any = certificate_fields.get("subjectAltName", ())
    return next((Subject.from_uri(value) for kind, value in names if kind == "URI"), None)


def authority_at(host: str, port: int, *, fingerprint: str, timeout: float) -> bytes:
    """Return the certificate of the authority of a server, if it is the one with this fingerprint.

    Nothing is said to the server: whether it has its own key, the next connection must verify, for
    which this certificate is what it trusts.

    Args:
        timeout: seconds for each step of it.

    Raises:
        NotTheAuthority: it has another.
        OSError: it does not answer, or not by TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=timeout) as line,
        context.wrap_socket(line) as connection,
    ):
        close_in_children(connection)
        chain = _certificates_of(connection)
    for certificate in chain[1:]:
        if fingerprint and fingerprint_of(certificate) == fingerprint:
            return certificate
    raise NotTheAuthority(
        f"what listens at {host} port {port} is not what the token is for: its authority has "
        f"another fingerprint than {fingerprint or '(none in the token)'}"
    )


def _certificates_of(connection: ssl.SSLSocket) -> list[bytes]:
    """Return the certificates that the other end shows, PEM, its own first."""
    if hasattr(connection, "get_unverified_chain"):  # from Python 3.13
        return [
            ssl.DER_cert_to_PEM_cert(certificate).encode()
            for certificate in connection.get_unverified_chain()
        ]
    inner: Any = connection._sslobj  # type: ignore[attr-defined]
    return [certificate.public_bytes().encode() for certificate in inner.get_unverified_chain()]
