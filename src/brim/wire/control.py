"""gRPC between agents and their master, and between people and a master.

Messages are the typed values of `messages`; gRPC carries their bytes, so there is no generated code.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from brim.errors import EnvironmentFault
from brim.wire.messages import Answer, Ask, Codec, FromAgent, FromMaster

__all__ = ["AgentStream", "JobServer", "ask", "open_stream"]

_SERVICE = "brim.Master"
_TOKEN = "brim-token"
_LARGEST = 1 << 30
_OPTIONS = [
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),  # a master that comes back is found at once
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # the backoff of one attempt must not hold up the next
]

_agent: Codec[FromAgent] = Codec(FromAgent)
_master: Codec[FromMaster] = Codec(FromMaster)
_ask: Codec[Ask] = Codec(Ask)
_answer: Codec[Answer] = Codec(Answer)

Conversation = Callable[[AsyncIterator[FromAgent], "Reply"], Awaitable[None]]
Reply = Callable[[FromMaster], Awaitable[None]]


class JobServer:
    """The master's end.

    Args:
        local: `unix:PATH`, for this host.
        remote: `HOST:PORT` for other hosts, or None; port 0 picks one.
        token: what callers must present.
        converse: called once per stream with its messages and a way to answer; returns when the stream ends.
        answer: answers people.
    """

    def __init__(
        self,
        local: str,
        remote: str | None,
        *,
        token: str,
        converse: Conversation,
        answer: Callable[[Ask], Awaitable[Answer]],
    ) -> None:
        self._token, self._converse, self._answer = token, converse, answer
        self._server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            "Join": grpc.stream_stream_rpc_method_handler(self._join, _agent.decode, _master.encode),
            "Ask": grpc.unary_unary_rpc_method_handler(self._ask, _ask.decode, _answer.encode),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self._bind(local)
        self.address = local
        if remote is not None:
            self.address = f"{remote.rpartition(':')[0]}:{self._bind(remote)}"

    def _bind(self, address: str) -> int:
        try:
            port: int = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise EnvironmentFault(f"cannot listen on {address}: {error}") from error
        return port

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=0.5)

    async def _authorise(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get(_TOKEN, "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "wrong or missing token")

    async def _join(self, requests: AsyncIterator[FromAgent], context: Any) -> None:
        await self._authorise(context)
        await self._converse(requests, context.write)

    async def _ask(self, request: Ask, context: Any) -> Answer:
        await self._authorise(context)
        return await self._answer(request)


class AgentStream:
    """The agent's end of its conversation with the master."""

    def __init__(self, channel: Any, call: Any) -> None:
        self._channel, self._call = channel, call

    async def send(self, message: FromAgent) -> None:
        """Raises EnvironmentFault where the master is gone."""
        try:
            await self._call.write(message)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise EnvironmentFault("the master is gone") from error

    async def messages(self) -> AsyncIterator[FromMaster]:
        """What comes; ends when the stream does, which says nothing of the job.

        Raises:
            EnvironmentFault: the master does not let this agent in.
        """
        try:
            async for message in self._call:
                yield message
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                fault = "the master did not let this agent in: is the token right?"
                raise EnvironmentFault(fault) from error

    async def finish(self) -> None:
        """Say nothing more, and wait until the master has heard everything."""
        await self._call.done_writing()
        async for _ in self.messages():
            pass

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def open_stream(address: str, *, token: str) -> AgentStream:
    """Call the master of a job, now or once it is there: the caller bounds the wait for its messages."""
    channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    join = channel.stream_stream(
        f"/{_SERVICE}/Join", request_serializer=_agent.encode, response_deserializer=_master.decode
    )
    call = join(metadata=((_TOKEN, token),), wait_for_ready=True)
    return AgentStream(channel, call)


def ask(address: str, *, token: str, question: Ask, timeout: float = 10.0) -> Answer:
    """Ask a master something, from a program that has no event loop.

    Raises:
        EnvironmentFault: it does not answer in time.
    """
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary(
            f"/{_SERVICE}/Ask", request_serializer=_ask.encode, response_deserializer=_answer.decode
        )
        # A master that is dead is back soon. The wait is ours: gRPC's own deadline is a time of day, which may jump.
        asked = call.future(question, metadata=((_TOKEN, token),), wait_for_ready=True)
        answered = threading.Event()
        asked.add_done_callback(lambda _: answered.set())
        if not answered.wait(timeout):
            asked.cancel()
            raise EnvironmentFault(f"the master at {address} did not answer in {timeout:.0f} s")
        try:
            answer: Answer = asked.result()
        except grpc.RpcError as error:
            raise EnvironmentFault(f"the master at {address} does not answer: {error.details()}") from error
    return answer
