"""Enrolment: how a host that has an address and a token gets a certificate.

The joining end first looks for the authority that its token names, and then trusts this one alone.
Over a connection that is encrypted to a server of that authority it proves that it has the secret,
and sends the request for a certificate; what it gets back is signed for the role that the server
gives to all that enrol there.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from typing import TYPE_CHECKING

import msgspec

from brim.errors import EnvironmentFault, ProtocolError
from brim.host.process import close_in_children
from brim.wire.frames import HEAD_BYTES, frame, length_of
from brim.wire.identity import (
    Identity,
    Subject,
    authority_at,
    client_context,
    server_name,
    split_token,
)
from brim.wire.messages import Codec
from brim.wire.proofs import PROOF_BYTES, derived, is_proof, proof

if TYPE_CHECKING:
    from brim.wire.authority import Authority

GREETING = b"enrol with brim\n"  # the first bytes, by which a port tells it from other calls
_USE = "enrolment"  # of the secret
_SERVER, _JOINER = b"enrolment", b"joiner"  # whose proof it is
_NONCE_BYTES = 16
_MAX_MESSAGE_BYTES = 1 << 13  # bytes of a message
_LONGEST_NAME = 200  # characters
_TO_ENROL = 5.0  # seconds that it may take, all of it


class EnrolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a host that joins.

    Args:
        name: that it gives itself.
        request: for a certificate, PEM.
    """

    name: str
    request: bytes


class EnrolReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to it.

    Args:
        certificate: PEM; empty where there is none.
        problem: why there is none.
    """

    certificate: bytes = b""
    problem: str = ""


_requests: Codec[EnrolRequest] = Codec(EnrolRequest)
_replies: Codec[EnrolReply] = Codec(EnrolReply)


class EnrolmentServer:
    """Gives certificates to hosts that have the secret.

    It answers on streams that are encrypted already, and are few: see `brim.wire.strangers`.

    Args:
        authority: signs them.
        secret: of the token.
        role: of all that enrol.
    """

    def __init__(self, authority: Authority, *, secret: str, role: str) -> None:
        self._authority, self._secret, self._role = authority, derived(secret, _USE), role

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one caller, and end the connection."""
        try:
            with contextlib.suppress(OSError, EOFError, ProtocolError):
                async with asyncio.timeout(_TO_ENROL):
                    await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(len(GREETING) + _NONCE_BYTES)
        if not greeting.startswith(GREETING):
            return
        nonce, challenge = greeting[len(GREETING) :], secrets.token_bytes(_NONCE_BYTES)
        writer.write(proof(self._secret, _SERVER, nonce, challenge) + challenge)
        proof_given = await reader.readexactly(PROOF_BYTES)
        length = length_of(await reader.readexactly(HEAD_BYTES), limit=_MAX_MESSAGE_BYTES)
        content = await reader.readexactly(length)
        if not is_proof(proof_given, self._secret, _JOINER, nonce, challenge, content):
            reply = EnrolReply(problem="the token is of another run or cluster")
        else:
            reply = self._reply(_requests.decode(content))
        writer.write(frame(_replies.encode(reply)))
        await writer.drain()

    def _reply(self, request: EnrolRequest) -> EnrolReply:
        if not request.name.isprintable() or not 0 < len(request.name) <= _LONGEST_NAME:
            return EnrolReply(problem=f"a name has 1 to {_LONGEST_NAME} printable characters")
        subject = Subject(self._authority.scope, self._role, request.name)
        try:
            return EnrolReply(certificate=self._authority.sign(request.request, subject))
        except ProtocolError as error:
            return EnrolReply(problem=str(error))


def enrol(host: str, port: int, token: str, *, server: str, name: str, timeout: float) -> Identity:
    """Get an identity from the server of a run or cluster.

    Args:
        host, port: where it listens.
        token: `SECRET.FINGERPRINT`.
        server: its role, `master` or `scheduler`.
        name: of this host among those that join.
        timeout: seconds for each step of it.

    Raises:
        NotTheAuthority: the server is not the one that the token is for.
        EnvironmentFault: it gives none, and says why.
        OSError: it does not answer.
    """
    from brim.wire.authority import requested

    secret, fingerprint = split_token(token)
    authority = authority_at(host, port, fingerprint=fingerprint, timeout=timeout)
    key, request = requested()
    with (
        socket.create_connection((host, port), timeout=timeout) as line,
        client_context(authority).wrap_socket(line, server_hostname=server_name(server)) as call,
    ):
        close_in_children(call)
        content = _requests.encode(EnrolRequest(name=name, request=request))
        reply = _ask(call, derived(secret, _USE), content)
    if not reply.certificate:
        raise EnvironmentFault(f"{host} port {port} gave this host no certificate: {reply.problem}")
    return Identity(key, reply.certificate, authority)


def _ask(call: ssl.SSLSocket, secret: bytes, content: bytes) -> EnrolReply:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    call.sendall(GREETING + nonce)
    greeting = _exactly(call, PROOF_BYTES + _NONCE_BYTES)
    challenge = greeting[PROOF_BYTES:]
    if not is_proof(greeting[:PROOF_BYTES], secret, _SERVER, nonce, challenge):
        return EnrolReply(problem="the token is of another run or cluster")
    call.sendall(proof(secret, _JOINER, nonce, challenge, content) + frame(content))
    return _replies.decode(
        _exactly(call, length_of(_exactly(call, HEAD_BYTES), limit=_MAX_MESSAGE_BYTES))
    )


def _exactly(call: ssl.SSLSocket, size: int) -> bytes:
    """Read so many bytes. Raises ConnectionError where fewer come."""
    data = b""
    while len(data) < size:
        received = call.recv(size - len(data))
        if not received:
            raise ConnectionError("the connection was closed before a certificate came")
        data += received
    return data
