"""A program that tries the doors of a run from another host: attempts in the first line on stdin,
their results on stdout, once there is a second line.

Attempts on a worker begin before it hears anybody, which the second line says that it has.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from brim.coordination.job.participant import PeerLost
from brim.errors import BrimError
from brim.wire.control import ask
from brim.wire.identity import Identity, client_context, server_name
from brim.wire.listening import split_address
from brim.wire.messages import Ask
from brim.wire.peer import connect
from brim.wire.run_identity import MASTER, WORKER

_PATIENCE = 20.0  # seconds
_SLOWLY = 0.2  # seconds between two bytes of who is slow
_TLS = range(0x14, 0x18)  # the first byte of what its own protocol says
THEFT = b"round 2 state for w3"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # of gRPC
Words = list[bytes]


def _greeting(text: bytes) -> bytes:
    """As a worker makes it, but for the proof."""
    return struct.pack("<H32s", len(text), bytes(32)) + text


def _gradient() -> bytes:
    """A greeting for a trade of gradients, and the first part of one."""
    return _greeting(b"round 1 slices 1 0") + struct.pack("<QII", 1, 0, 0) + bytes(1 << 16)


def _got(line: socket.socket) -> str:
    """`refused`: the connection ended; `nothing`: it did not; `got it`: words of brim came."""
    try:
        while received := line.recv(1 << 16):
            if isinstance(line, ssl.SSLSocket) or received[0] not in _TLS:
                return "got it"
    except TimeoutError:
        return "nothing"
    except OSError:
        pass
    return "refused"


def _plain(address: str, words_sent: Words) -> str:
    with socket.create_connection(split_address(address), timeout=_PATIENCE) as line:
        with contextlib.suppress(OSError):  # it was sent away before it had said all
            for word in words_sent:
                line.sendall(word)
        return _got(line)


def _slow(address: str, words_sent: bytes) -> str:
    """Each byte comes in time, all of them do not."""
    end = time.monotonic() + _PATIENCE
    with socket.create_connection(split_address(address), timeout=_PATIENCE) as line:
        line.settimeout(_SLOWLY)
        for byte in words_sent * 100:
            try:
                line.sendall(bytes([byte]))
                if not line.recv(1000):
                    return "refused"
            except TimeoutError:
                if time.monotonic() > end:
                    return "nothing"
            except OSError:
                return "refused"
    return "got it"


def _encrypted(address: str, role: str, certificate: dict[str, str], words_sent: Words) -> str:
    pem = {name: text.encode() for name, text in certificate.items()}
    identity = Identity(**pem) if len(pem) > 1 else None
    context = client_context(pem["authority"], identity)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        line = socket.create_connection(split_address(address), timeout=_PATIENCE)
        with context.wrap_socket(line, server_hostname=server_name(role)) as line:
            for word in words_sent:
                line.sendall(word)
            return _got(line)
    except TimeoutError:
        return "nothing"
    except OSError:
        return "refused"


def _asked(address: str, token: str) -> str:
    try:
        ask(address, token=token, question=Ask(verb="status"), timeout=_PATIENCE)
    except BrimError as error:
        return "refused" if "the token is wrong" in str(error) else str(error)
    return "got it"


def _called(address: str, secret: bytes) -> str:
    try:
        connect(
            address,
            THEFT.decode(),
            secret,
            timeout=_PATIENCE,
            patience=_PATIENCE,
            cancelled=lambda: False,
        ).close()
    except PeerLost:
        return "refused"
    return "got it"


def attempts_on(target: dict[str, Any]) -> dict[str, dict[str, Callable[[], str]]]:
    """Each attempt, at the port of the master and at that of a worker, as far as they are named."""
    master, worker = target["master"], target.get("worker", "")
    identities: dict[str, dict[str, str]] = target["identities"]
    recorded: dict[str, str] = target.get("recorded", {})
    greetings = {"master": _HELLO, "worker": _HELLO}
    greetings |= {name: base64.b64decode(recording) for name, recording in recorded.items()}
    rows: dict[str, dict[str, Callable[[], str]]] = {
        "no encryption": {
            "master": partial(_plain, master, [_HELLO]),
            "worker": partial(_plain, worker, [_greeting(THEFT)]),
        },
        **{
            kind: {
                "master": partial(_encrypted, master, MASTER, certificate, [_HELLO]),
                "worker": partial(_encrypted, worker, WORKER, certificate, [_greeting(THEFT)]),
            }
            for kind, certificate in identities.items()
        },
        "a token of another run": {
            "master": partial(_asked, master, target["other_token"]),
            "worker": partial(_called, worker, target["other_secret"].encode()),
        },
        "the theft of the state: `round 2 state for w3`": {
            "worker": partial(_plain, worker, [THEFT + b"\n"]),
        },
        "a forged gradient": {"worker": partial(_plain, worker, [_gradient()])},
        "the words of a real connection, once more": {
            name: partial(_plain, address, [greetings[name]])
            for name, address in (("master", master), ("worker", worker))
            if name in recorded
        },
        "silence": {
            name: partial(_plain, address, [])
            for name, address in (("master", master), ("worker", worker))
        },
        "a byte now and then": {
            name: partial(_slow, address, greetings[name])
            for name, address in (("master", master), ("worker", worker))
        },
        "a frame without end": {
            name: partial(_plain, address, [b"\x16\x03\x01\xff\xff" + bytes(1 << 20)])
            for name, address in (("master", master), ("worker", worker))
        },
    }
    doors = {"master"} | ({"worker"} if worker else set())
    open_to = {
        attempt_name: {name: row[name] for name in row if name in doors}
        for attempt_name, row in rows.items()
    }
    return {attempt_name: row for attempt_name, row in open_to.items() if row}


def main() -> None:
    target = json.loads(sys.stdin.readline())
    with ThreadPoolExecutor(64) as pool:
        trying: dict[str, dict[str, Future[str]]] = {
            attempt_name: {name: pool.submit(attempt) for name, attempt in row.items()}
            for attempt_name, row in attempts_on(target).items()
        }
        sys.stdin.readline()
        found = {
            attempt_name: {name: result.result() for name, result in row.items()}
            for attempt_name, row in trying.items()
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
