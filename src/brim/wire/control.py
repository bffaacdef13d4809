"""gRPC between agents and their master, and between people and a master.

Messages are the typed values of `messages`; gRPC carries their bytes, so there is no generated
code.

Between hosts all of it is encrypted (TLS 1.3), and both ends show certificates of the run's
authority first; within a host it goes over a Unix socket. Either way both ends prove that they have
the run's token before anything else is said, and neither says it: a caller's first call takes no
message, and gives a challenge with the master's own proof. Its second call begins with the answer to
that challenge, as metadata, so that the master reads nothing of a caller that has not proved itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec

from brim.errors import EnvironmentFault
from brim.host.clock import monotonic, sleep
from brim.wire import terminals
from brim.wire.identity import grpc_credentials, grpc_options, server_name
from brim.wire.listening import joined_address, split_address
from brim.wire.messages import Answer, Ask, Codec, FromAgent, FromMaster
from brim.wire.private import PrivateFolder
from brim.wire.proofs import PROOF_BYTES, derived, is_proof, proof, workers_secret
from brim.wire.relay import Relay
from brim.wire.run_files import GREETING, KeptFolder, RecordsToFollow, RunFileServer
from brim.wire.run_identity import AGENT, MASTER, RunIdentity, run_identity, stranger_of
from brim.wire.terminals import TerminalServer

_SERVICE = "brim.Master"
_UNIX = "unix:"
_USE = "master"  # of the token
_NONCE, _CHALLENGE, _PROOF = "brim-nonce-bin", "brim-challenge-bin", "brim-proof-bin"
_NONCE_BYTES = 16
_MASTER, _CALLER = b"master", b"caller"  # whose proof it is: one end's is of no use to the other
_MOST_CHALLENGES = 1024  # that nobody has answered yet; with more, the first of them is forgotten
_TO_LOOK = 10.0  # seconds that one look for who listens at an address may take
_POLL_INTERVAL = 0.05  # seconds between two looks for who listens at an address
_NOT_OURS = "what listens there is not the master of this run, or the token is wrong"
_UNKNOWN = "this challenge is not of this master, or is over"
_MAX_MESSAGE_BYTES = 1 << 30
_MOST_CONNECTIONS = 256
# behind the name of the local socket: that of the one that callers of the port are led to
_REMOTE = "-remote"
_FILES = "-files"  # and that of the one that takes in files
_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),  # a master that comes back is found at once
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # the backoff of one attempt must not hold up the next
]
_RECEIVE_LIMIT = ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)
_LONGEST_DETAIL = 2_000  # characters
_LARGEST_ANSWER = 1 << 20  # bytes of what a master says of its run, which are a few thousand
# Who asks need not trust the master: it may be that of a tenant.
_ANSWERED = ("grpc.max_receive_message_length", _LARGEST_ANSWER)
_OF_SERVERS = [
    *_OPTIONS,
    _RECEIVE_LIMIT,
    ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 10_000),  # an agent has a call under way all the time
    ("grpc.max_concurrent_streams", 8),
]

_agent: Codec[FromAgent] = Codec(FromAgent)
_master: Codec[FromMaster] = Codec(FromMaster)
_ask: Codec[Ask] = Codec(Ask)
_answer: Codec[Answer] = Codec(Answer)


class _AnyAnswer(msgspec.Struct, frozen=True):
    """The part of an answer that counts for any question but that for the status."""

    ok: bool
    detail: str = ""


class _StacksAnswer(_AnyAnswer, frozen=True):
    """The answer to a question for stacks: nothing but texts, since the master may be a tenant's."""

    status: dict[str, str] = {}


_answer_codec: Codec[_AnyAnswer] = Codec(_AnyAnswer)
_stacks_codec: Codec[_StacksAnswer] = Codec(_StacksAnswer)


def _decoder_for(question: Ask) -> Callable[[bytes], Answer]:
    """Return the decoder of the answer: only the requested type is made."""

    def decode(answer: bytes) -> Answer:
        reply = _answer_codec.decode(answer)
        return Answer(ok=reply.ok, detail=reply.detail[:_LONGEST_DETAIL])

    def decode_stacks(answer: bytes) -> Answer:
        reply = _stacks_codec.decode(answer)
        return Answer(ok=reply.ok, detail=reply.detail[:_LONGEST_DETAIL], status=dict(reply.status))

    decoders = {"status": _answer.decode, "stacks": decode_stacks}
    return decoders.get(question.verb, decode)


Conversation = Callable[[AsyncIterator[FromAgent], "Reply"], Awaitable[None]]
Reply = Callable[[FromMaster], Awaitable[None]]


class NotTheMaster(EnvironmentFault):
    """The process that listens at an address does not have the run's token, or we do not."""


class _Challenges:
    """Challenges that callers must answer.

    Each can be answered once.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonces: dict[bytes, bytes] = {}  # of the callers, by challenge

    def give(self, nonce: bytes) -> bytes:
        """A challenge, behind the proof that its master is of this run."""
        if len(self._nonces) == _MOST_CHALLENGES:
            del self._nonces[next(iter(self._nonces))]
        challenge = secrets.token_bytes(_NONCE_BYTES)
        self._nonces[challenge] = nonce
        return proof(self._secret, _MASTER, nonce, challenge) + challenge

    def knows(self, challenge: bytes) -> bool:
        return challenge in self._nonces

    def is_answered(self, challenge: bytes, proof_given: bytes) -> bool:
        return is_proof(proof_given, self._secret, _CALLER, self._nonces.pop(challenge), challenge)


class JobServer:
    """The master's end.

    Args:
        local: `unix:PATH`, for this host; the folder of the socket is ours alone.
        remote: listens on the port for other hosts, and stays open for the next master; None: there
            is none.
        token: of the run; callers must prove that they have it.
        converse: called once per stream with its messages and a way to answer; returns when the
            stream ends.
        answer: answers people.
        files: the folder in which the run keeps what workers of other hosts write; None where they
            have another place for it.
        bundle: the code of the job, for hosts that join.
        records: makes the view of the run's records for a follower of another host.
        has_terminal: the job is interactive.

    Raises:
        EnvironmentFault: it cannot listen there.
    """

    def __init__(
        self,
        local: str,
        remote: socket.socket | None,
        *,
        token: str,
        converse: Conversation,
        answer: Callable[[Ask], Awaitable[Answer]],
        files: KeptFolder | None = None,
        bundle: bytes = b"",
        records: Callable[[], RecordsToFollow] | None = None,
        has_terminal: bool = False,
    ) -> None:
        self._challenges = _Challenges(derived(token, _USE))
        self._converse, self._answer = converse, answer
        self._door = _Door(local)
        of_terminal = str(Path(self._door.address.removeprefix(_UNIX)).with_name(terminals.SOCKET))
        self._terminal: TerminalServer | None = None
        if has_terminal:
            self._terminal = TerminalServer(of_terminal, workers_secret(token))
        # Two servers: strangers who crowd one of them out do not reach the other.
        self._servers = [self._server(self._door.address)]
        self._relay: Relay | None = None
        self._files: RunFileServer | None = None
        if remote is not None:
            remote_path = self._door.address + _REMOTE
            self._servers.append(self._server(remote_path))
            of_files = self._door.address.removeprefix(_UNIX) + _FILES
            self._relay = Relay(
                remote,
                remote_path.removeprefix(_UNIX),
                other_paths={GREETING[:4]: of_files, terminals.GREETING[:4]: of_terminal},
                limit=_MOST_CONNECTIONS,
                identity=run_identity(workers_secret(token), MASTER),
            )
            self._files = RunFileServer(files, of_files, workers_secret(token), bundle, records)

    def _server(self, address: str) -> Any:
        server = grpc.aio.server(options=_OF_SERVERS)
        # No handler reads a message before it has authorised its caller: gRPC holds a few kilobytes
        # of it meanwhile.
        handlers = {
            "Greet": grpc.stream_unary_rpc_method_handler(self._greet),
            "Join": grpc.stream_stream_rpc_method_handler(
                self._join, _agent.decode, _master.encode
            ),
            "Ask": grpc.stream_unary_rpc_method_handler(self._ask, _ask.decode, _answer.encode),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise EnvironmentFault(f"cannot listen on {address}: {error}") from error
        return server

    def keep_code(self, bundle: bytes) -> None:
        """Let hosts that join have this code from now on, where it was not known before."""
        if self._files is not None:
            self._files.bundle = bundle

    def called_at(self) -> float:
        """Return when another host, or a stranger, called for the last time (monotonic clock)."""
        return self._relay.called_at if self._relay is not None else -math.inf

    async def start(self) -> None:
        for server in self._servers:
            await server.start()
        if self._files is not None:
            await self._files.start()
        if self._terminal is not None:
            await self._terminal.start()
        if self._relay is not None:
            await self._relay.start()

    async def see_followers_off(self) -> None:
        """Wait, not for ever, until the followers of the run's records have all of them."""
        if self._files is not None:
            await self._files.see_followers_off()

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop(grace=0.5) for server in self._servers))
        if self._relay is not None:
            self._relay.stop()
        if self._files is not None:
            self._files.stop()
        if self._terminal is not None:
            self._terminal.stop()
        self._door.close()

    async def _greet(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        nonce = _metadata(context, _NONCE)
        if len(nonce) != _NONCE_BYTES:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not a caller of this version")
        return self._challenges.give(nonce)

    async def _authorise(self, context: Any) -> None:
        challenge = _metadata(context, _CHALLENGE)
        if not self._challenges.knows(challenge):
            await context.abort(grpc.StatusCode.UNAVAILABLE, _UNKNOWN)
        if not self._challenges.is_answered(challenge, _metadata(context, _PROOF)):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "wrong token")

    async def _join(self, requests: AsyncIterator[FromAgent], context: Any) -> None:
        await self._authorise(context)
        await self._converse(requests, context.write)

    async def _ask(self, requests: AsyncIterator[Ask], context: Any) -> Answer:
        await self._authorise(context)
        return await self._answer(await anext(requests))


class AgentStream:
    """The agent's end of its conversation with the master.

    Args:
        address: of the master.
        token: of the run.

    Raises:
        EnvironmentFault: another user may listen at this address.
    """

    def __init__(self, address: str, *, token: str) -> None:
        self._secret = derived(token, _USE)
        self._door = _Door(address)
        self._identity = _identity_for(address, token)
        self._finding = asyncio.ensure_future(
            _channel_to(self._door.address, self._identity, _RECEIVE_LIMIT)
        )
        self._call = asyncio.ensure_future(self._open())

    async def _open(self) -> Any:
        channel = await self._finding
        caller = _ProvingCaller(self._secret)
        greet = channel.stream_unary(f"/{_SERVICE}/Greet")
        answered = caller.answered(await greet(metadata=caller.greeting, wait_for_ready=True))
        join = channel.stream_stream(
            f"/{_SERVICE}/Join",
            request_serializer=_agent.encode,
            response_deserializer=_master.decode,
        )
        return join(metadata=answered, wait_for_ready=True)

    async def reach(self) -> None:
        """Wait until a master of this run listens there; its words may take longer.

        Raises:
            NotTheMaster: another process does.
        """
        await asyncio.shield(self._finding)

    async def send(self, message: FromAgent) -> None:
        """Raises EnvironmentFault where the master is gone."""
        try:
            call = await asyncio.shield(self._call)
            await call.write(message)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise EnvironmentFault("the master is gone") from error

    async def messages(self) -> AsyncIterator[FromMaster]:
        """Yield the master's messages.

        The end of the stream says nothing of the job.

        Raises:
            NotTheMaster: it does not let this agent in, or is none.
        """
        try:
            call = await asyncio.shield(self._call)
            async for message in call:
                yield message
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise NotTheMaster(
                    "the master did not let this agent in: is the token right?"
                ) from error

    async def finish(self) -> None:
        """Say nothing more, and wait until the master has heard everything."""
        await (await asyncio.shield(self._call)).done_writing()
        async for _ in self.messages():
            pass

    async def close(self) -> None:
        if not self._call.cancel() and self._call.exception() is None:
            self._call.result().cancel()
        if not self._finding.cancel() and self._finding.exception() is None:
            await self._finding.result().close()
        self._door.close()


def open_stream(address: str, *, token: str) -> AgentStream:
    """Call the master of a job, now or once it is there.

    The caller bounds the wait for its messages.
    """
    return AgentStream(address, token=token)


def ask(address: str, *, token: str, question: Ask, timeout: float = 10.0) -> Answer:
    """Ask a master something, from a program that has no event loop.

    Raises:
        EnvironmentFault: it does not answer in time, or is not the master of a run with this token.
    """
    end = monotonic() + timeout
    with contextlib.closing(_Door(address)) as door, _channel(address, door, token, end) as channel:
        greet = channel.stream_unary(f"/{_SERVICE}/Greet")
        answer_question = channel.stream_unary(
            f"/{_SERVICE}/Ask",
            request_serializer=_ask.encode,
            response_deserializer=_decoder_for(question),
        )
        while True:
            caller = _ProvingCaller(derived(token, _USE))
            try:
                reply = _result_of(
                    greet.future(iter(()), metadata=caller.greeting, wait_for_ready=True), end
                )
                metadata = caller.answered(reply)
                call = answer_question.future(
                    iter((question,)), metadata=metadata, wait_for_ready=True
                )
                answer: Answer = _result_of(call, end)
            except TimeoutError as error:
                fault = f"the master at {address} did not answer in {timeout:.0f} s"
                raise EnvironmentFault(fault) from error
            except grpc.RpcError as error:
                if _is_of_another_life(error):
                    continue
                fault = f"the master at {address} does not answer: {error.details()}"
                raise EnvironmentFault(fault) from error
            return answer


async def ask_later(address: str, *, token: str, question: Ask, timeout: float = 10.0) -> Answer:
    """Ask a master something, from a program that asks many in one event loop.

    Args:
        address: `HOST:PORT`; a name is looked up now.

    Raises:
        EnvironmentFault: it does not answer in time, or is not the master of a run with this token.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _ask_until_answered(address, token, question)
    except TimeoutError as error:
        fault = f"the master at {address} did not answer in {timeout:.0f} s"
        raise EnvironmentFault(fault, retryable=True) from error
    except grpc.RpcError as error:
        fault = f"the master at {address} does not answer: {error.details()}"
        raise EnvironmentFault(fault, retryable=True) from error


async def _ask_until_answered(address: str, token: str, question: Ask) -> Answer:
    """Ask until a master answers. Raises grpc.RpcError, NotTheMaster."""
    with contextlib.closing(_Door(address)) as door:
        identity = _identity_for(address, token)
        channel = await _channel_to(door.address, identity, _ANSWERED)
        try:
            caller = _ProvingCaller(derived(token, _USE))
            greet = channel.stream_unary(f"/{_SERVICE}/Greet")
            answered = caller.answered(await greet(metadata=caller.greeting, wait_for_ready=True))
            ask_it = channel.stream_unary(
                f"/{_SERVICE}/Ask",
                request_serializer=_ask.encode,
                response_deserializer=_decoder_for(question),
            )
            call = ask_it(iter((question,)), metadata=answered, wait_for_ready=True)
            answer: Answer = await call
            return answer
        finally:
            await channel.close()


def _channel(address: str, door: _Door, token: str, end: float) -> Any:
    """Return a channel to the master at an address.

    Raises:
        EnvironmentFault: no process has listened there by this time, or not the master of this run.
    """
    identity = _identity_for(address, token)
    if identity is None:
        return grpc.insecure_channel(door.address, options=[*_OPTIONS, _ANSWERED])
    found = _look_for(address, identity.client, end)
    options = [*_OPTIONS, _ANSWERED, *grpc_options(MASTER)]
    return grpc.secure_channel(found, grpc_credentials(identity.identity), options=options)


def _identity_for(address: str, token: str) -> RunIdentity | None:
    """Return the identity of a caller of a master; None where the call does not leave this host."""
    if address.startswith(_UNIX):
        return None
    return run_identity(workers_secret(token), AGENT)


async def _channel_to(address: str, identity: RunIdentity | None, largest: tuple[str, int]) -> Any:
    """Return a channel to the master at an address, once it listens there.

    Args:
        largest: the option that bounds the master's answer.

    Raises:
        NotTheMaster: another process listens there.
    """
    options: list[tuple[str, Any]] = [*_OPTIONS, largest]
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    found = await _find(address, identity.client)
    options += grpc_options(MASTER)
    return grpc.aio.secure_channel(found, grpc_credentials(identity.identity), options=options)


# gRPC keeps calling where the certificate is wrong, and does not tell it from a master that
# is not there yet. So a caller looks before, with a connection of its own; and calls the host that
# it found there, since gRPC has a way of its own to look names up.


async def _find(address: str, context: ssl.SSLContext) -> str:
    """Wait until the master of this run listens at an address; return that of its host.

    Raises:
        NotTheMaster: another process listens there.
    """
    host, port = split_address(address)
    while True:
        try:
            async with asyncio.timeout(_TO_LOOK):  # where nothing answers at all, call again
                _, writer = await asyncio.open_connection(
                    host, port, ssl=context, server_hostname=server_name(MASTER)
                )
        except OSError as error:
            if reason := stranger_of(error):
                raise NotTheMaster(f"{_NOT_OURS}: {reason}") from error
            await asyncio.sleep(_POLL_INTERVAL)
            continue
        found, peer_address = writer.get_extra_info("peername")[:2]
        writer.transport.abort()
        return joined_address(found, peer_address)


def _look_for(address: str, context: ssl.SSLContext, end: float) -> str:
    """Wait until the master of this run listens at an address; return that of its host.

    Raises:
        NotTheMaster: another process does.
        EnvironmentFault: none has by this time.
    """
    address_pair, name = split_address(address), server_name(MASTER)
    while True:
        try:
            remaining = max(_POLL_INTERVAL, end - monotonic())
            with socket.create_connection(address_pair, timeout=remaining) as line:
                found, peer_address = line.getpeername()[:2]
                context.wrap_socket(line, server_hostname=name).close()
            return joined_address(found, peer_address)
        except OSError as error:
            if reason := stranger_of(error):
                raise NotTheMaster(f"{_NOT_OURS}: {reason}") from error
            if monotonic() >= end:
                raise EnvironmentFault(
                    f"the master at {address} does not answer: {error}"
                ) from error
        sleep(_POLL_INTERVAL)


def _result_of(call: Any, end: float) -> Any:
    """Return the answer to a call, or raise its error.

    The deadline is ours: gRPC's is a time of day, which may jump.

    A master that is dead is back soon, and the call waits for it.
    """
    answered = threading.Event()
    call.add_done_callback(lambda _: answered.set())
    if not answered.wait(max(0.0, end - monotonic())):
        call.cancel()
        raise TimeoutError
    return call.result()


def _is_of_another_life(error: grpc.RpcError) -> bool:
    """Return whether the master died after its challenge, and another one answers."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and error.details() == _UNKNOWN


class _ProvingCaller:
    """One call's side of the mutual proof."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._nonce = secret, secrets.token_bytes(_NONCE_BYTES)
        self.greeting = ((_NONCE, self._nonce),)

    def answered(self, reply: bytes) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata of the second call, which answer the master's challenge.

        Raises NotTheMaster.
        """
        proof_given, challenge = reply[:PROOF_BYTES], reply[PROOF_BYTES:]
        if not is_proof(proof_given, self._secret, _MASTER, self._nonce, challenge):
            raise NotTheMaster(_NOT_OURS)
        return (_CHALLENGE, challenge), (
            _PROOF,
            proof(self._secret, _CALLER, self._nonce, challenge),
        )


class _Door:
    """An address as gRPC takes it; the folder of a Unix socket is held open meanwhile."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._folder: PrivateFolder | None = None
        if address.startswith(_UNIX):
            path = Path(address.removeprefix(_UNIX))
            self._folder = PrivateFolder(path.parent, called=True)
            self.address = _UNIX + self._folder.path(path.name)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()


def _metadata(context: Any, key: str) -> bytes:
    value = dict(context.invocation_metadata()).get(key, b"")
    return value if isinstance(value, bytes) else b""
