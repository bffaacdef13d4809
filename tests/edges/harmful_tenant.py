"""A program that makes, all at once and again and again, the attempts of a tenant with a token on a
scheduler: its address, the token, and for how many seconds; then it prints the result of each.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from brim.domain.job import JobSpec
from brim.domain.submission import Submission
from brim.storage.bundles import digest_of, pack

_MEBIBYTE = bytes(1 << 20)
_PAUSE = 0.05  # seconds between two attempts of a kind: a network is between them and a scheduler


class Caller:
    """A tenant's requests."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._place, self._token = (host, port), token

    @contextlib.contextmanager
    def _begun(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Any]:
        connection = http.client.HTTPConnection(*self._place, timeout=20.0)
        try:
            connection.putrequest(method, path)
            for name, value in {"Authorization": f"Bearer {self._token}", **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            yield connection
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = json.dumps(body).encode() if body is not None else b""
        with self._begun(method, path, {"Content-Length": str(len(content))}) as connection:
            connection.send(content)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")

    def send(self, count: int, *, chunked: bool) -> int:
        """Send a body of so many MiB, or as much as is taken."""
        framing = (
            {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(count << 20)}
        )
        with self._begun("POST", "/v1/jobs", framing) as connection:
            with contextlib.suppress(OSError):
                for _ in range(count):
                    connection.send(b"100000\r\n" + _MEBIBYTE + b"\r\n" if chunked else _MEBIBYTE)
                connection.send(b"0\r\n\r\n" if chunked else b"")
            return int(connection.getresponse().status)

    def stall(self) -> int:
        """Begin a body and send no more of it for a time."""
        with self._begun("POST", "/v1/jobs", {"Content-Length": "100"}) as connection:
            connection.send(b"{")
            time.sleep(0.5)
        return 0

    def submit(self, *, bundle: bytes = b"", **spec: Any) -> int:
        """Submit a job, and withdraw it if it was taken in."""
        digest = digest_of(bundle) if bundle else ""
        submission_fields = msgspec.to_builtins(
            Submission(spec=JobSpec(file="m.py", bundle=digest), fingerprint="that of another")
        )
        submission_fields["spec"] |= {"checkpoints": "", **spec}
        code = base64.b64encode(bundle).decode()
        status, answer = self.ask(
            "POST", "/v1/jobs", {"submission": submission_fields, "bundle": code}
        )
        if status == http.HTTPStatus.OK:
            self.ask("POST", f"/v1/jobs/{answer['job']}/cancel")
            self.ask("DELETE", f"/v1/jobs/{answer['job']}")
        return status


@functools.cache
def many_files() -> bytes:
    return pack({f"{number:04}.py": b"" for number in range(3_990)} | {"m.py": b"x = 1\n"})


@functools.cache
def large_code() -> bytes:
    return pack({"m.py": b"x" * (7 << 20)})


PARTS = {str(number): "" for number in range(100_000)}

ATTEMPTS: dict[str, Callable[[Caller], int]] = {
    "nul": lambda caller: caller.submit(file="m\0.py"),
    "pattern": lambda caller: caller.submit(include=["**x/*"]),
    "walk": lambda caller: caller.submit(directory="/", include=["**/*"]),
    "device": lambda caller: caller.submit(file="/dev/zero"),
    "nothing": lambda caller: caller.submit(file=""),
    "many files": lambda caller: caller.submit(bundle=many_files()),
    "large code": lambda caller: caller.submit(bundle=large_code()),
    "odd code": lambda caller: caller.submit(bundle=large_code()[:-512] + b"\1" * 512),
    "many parts": lambda caller: caller.submit(parameters=PARTS),
    "full body": lambda caller: caller.send(12, chunked=False),
    "endless body": lambda caller: caller.send(30, chunked=True),
    "large body": lambda caller: caller.send(30, chunked=False),
    "slow body": Caller.stall,
    "refused": lambda caller: caller.ask("POST", f"/v1/jobs/{'x' * 4_000}/cancel")[0],
    "forecast": lambda caller: caller.ask(
        "POST", "/v1/forecast", {"submission": msgspec.to_builtins(_usual())}
    )[0],
}


def _usual() -> Submission:
    return Submission(spec=JobSpec(file="m.py"), fingerprint="that of another")


def _repeat(
    name: str,
    caller: Caller,
    deadline: float,
    counts: Mapping[str, Counter[str]],
    started: threading.Event,
) -> None:
    while time.monotonic() < deadline:
        try:
            answer = str(ATTEMPTS[name](caller))
        except (OSError, http.client.HTTPException) as error:
            answer = type(error).__name__
        counts[name][answer] += 1
        started.set()
        time.sleep(_PAUSE)


def main() -> None:
    host, port, token, seconds = sys.argv[1:]
    caller = Caller(host, int(port), token)
    deadline = time.monotonic() + float(seconds)
    counts = {name: Counter[str]() for name in ATTEMPTS}
    started = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(name, caller, deadline, counts, started))
        for name in ATTEMPTS
    ]
    for thread in threads:
        thread.start()
    started.wait()
    print("begun", flush=True)  # noqa: T201 to the test that waits
    for thread in threads:
        thread.join()
    print(json.dumps(counts), flush=True)  # noqa: T201 to the test


if __name__ == "__main__":
    main()
