"""A program that tries every door of brim as another account of the host: attempts on stdin,
their results on stdout.

Its imports come before it becomes the other account, which may not be able to read the
interpreter's folders.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.idna  # noqa: F401 which the interpreter looks for when it connects
import errno
import http.client
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

import brim.wire.authority  # noqa: F401
from brim.coordination.job.participant import PeerLost
from brim.errors import BrimError
from brim.wire.control import ask
from brim.wire.messages import Ask
from brim.wire.peer import connect

_PTRACE_ATTACH = 16
_PATIENCE = 15.0  # seconds
_TO_HEAR = 7.0  # seconds: a worker sends strangers away after five
Row = dict[str, str]


def _become(account: int) -> None:
    os.chdir("/")
    os.setgroups([])
    os.setresgid(account, account, account)
    os.setresuid(account, account, account)


def outcome_of(attempt: Callable[[], Any]) -> str:
    """The result of an attempt in one word; `got it` where nothing stopped it."""
    try:
        attempt()
    except PermissionError:
        return "refused"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "got it"


def _called(path: str) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as caller:
            caller.connect(path)


def _asked(address: str, method: str, path: str, token: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return str(status)


def _api(target: dict[str, Any], method: str, path: str) -> Row:
    """By HTTP, with each token."""
    return {
        name: _asked(target["address"], method, path, token)
        for name, token in target["tokens"].items()
    }


def _of_the_master(address: str, right: str) -> Row:
    async def without_token() -> str:
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                await channel.stream_unary("/brim.Master/Ask")(iter([b"x"]), timeout=_PATIENCE)
            except grpc.aio.AioRpcError as error:
                return "refused" if error.details() else error.code().name
        return "got it"

    def status(token: str) -> str:
        try:
            ask(address, token=token, question=Ask(verb="status"), timeout=_PATIENCE)
        except BrimError as error:
            return "refused" if "token is wrong" in str(error) else str(error)
        return "answered"

    return {"none": asyncio.run(without_token()), "wrong": status("wrong"), "right": status(right)}


def _of_a_worker(address: str) -> Row:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TO_HEAR) as caller:
        caller.sendall(b"round 2 state for w3\n" * 40)
        try:
            received = caller.recv(1000)
        except (ConnectionError, TimeoutError):  # it may look only once it waits for another worker
            received = b""
    try:
        connect(
            address,
            "round 2 state for w3",
            b"wrong",
            timeout=_PATIENCE,
            patience=_TO_HEAR,
            cancelled=lambda: False,
        )
        wrong = "got it"
    except PeerLost:
        wrong = "nothing"
    return {"none": "got it" if received else "nothing", "wrong": wrong}


def _traced(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, pid, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def _listening(port: int) -> None:
    for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        with socket.socket() as server:
            if option:
                server.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                server.bind(("127.0.0.1", port))
                server.listen()
                return
            except OSError as error:
                last = error
    raise PermissionError from last


def _all(attempts: list[Callable[[], Any]]) -> Row:
    """One word, where all attempts came to the same."""
    return {"none": " and ".join(sorted({outcome_of(attempt) for attempt in attempts}))}


def _opened(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _written(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def tried(target: dict[str, Any]) -> dict[str, Row]:
    """Each door, and its result by token."""
    pids, files = target["pids"], target["files"]
    control, job = target["control"], target["job"]
    return {
        "HTTP API: read a job of a tenant": _api(target, "GET", f"/v1/jobs/{job}"),
        "HTTP API: read its logs": _api(target, "GET", f"/v1/jobs/{job}/logs"),
        "HTTP API: cancel a job that there is not": _api(target, "POST", "/v1/jobs/job-99/cancel"),
        "HTTP API: cancel a job of a tenant": {
            name: _asked(target["address"], "POST", f"/v1/jobs/{job}/cancel", token)
            for name, token in target["tokens"].items()
            if name != "right"
        },
        "HTTP API: end the scheduler": {
            name: _asked(target["address"], "POST", "/v1/down", token)
            for name, token in target["tokens"].items()
        },
        "port of a master, `--listen`: ask it something": _of_the_master(
            target["master"], target["token"]
        ),
        "ports of masters and the scheduler: listen there": _all(
            [partial(_listening, port) for port in target["ports"]]
        ),
        "ports of workers: ask for the state": _of_a_worker(target["worker"]),
        "socket of a master, `control/`: call, listen, list": _all(
            [
                lambda: _called(f"{control}/master"),
                lambda: socket.socket(socket.AF_UNIX).bind(f"{control}/mine"),
                lambda: os.listdir(control),
            ]
        ),
        "socket of a node's agent: call": _all([lambda: _called(target["node"])]),
        "state directory: list, read tokens, database, logs, journal": _all(
            [
                lambda: os.listdir(target["state"]),
                *(partial(_opened, file) for file in files),
            ]
        ),
        "state and run directories: write": _all(
            [partial(_written, f"{folder}/mine") for folder in target["folders"]]
        ),
        "run directory of `brim train`, umask 022: read logs and records": _all(
            [partial(_opened, name) for name in target["open"]]
        ),
        "`master.json` of a run: read": _all([lambda: _opened(target["contact"])]),
        "processes: read environment, memory, descriptors": _all(
            [
                partial(os.listdir if name == "fd" else _opened, f"/proc/{pid}/{name}")
                for pid in pids
                for name in ("environ", "mem", "fd")
            ]
        ),
        "processes: trace": _all([partial(_traced, pid) for pid in pids]),
        "processes: signal": _all([partial(os.kill, pid, signal.SIGTERM) for pid in pids]),
    }


if __name__ == "__main__":
    target = json.load(sys.stdin)
    _become(target["account"])
    json.dump(tried(target), sys.stdout)
