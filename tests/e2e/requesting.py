"""Requests to a service, so many a second, and what became of each."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

_TO_ANSWER = 60.0  # seconds: nothing is judged by it, and a busy machine is slow
_THREADS = 32


@dataclass
class Requests:
    """A load: GET requests, each by a connection of its own, as a browser sends them.

    A request whose connection is cut before an answer is sent once more where `again` allows it, as
    browsers do with a GET; else it is lost.
    """

    port: int
    rate: float
    host: str = "127.0.0.1"
    again: bool = False
    answers: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    sent_again: int = 0
    longest: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def _send(self) -> None:
        begun = time.monotonic()
        try:
            status, body = self._ask()
        except (OSError, http.client.HTTPException) as error:
            if not self.again:
                self.lost.append(repr(error))
                return
            self.sent_again += 1
            try:
                status, body = self._ask()
            except (OSError, http.client.HTTPException) as second:
                self.lost.append(f"{error!r}, then {second!r}")
                return
        if status == 200:
            self.answers[body] += 1
            self.longest = max(self.longest, time.monotonic() - begun)
        else:
            self.lost.append(f"status {status}")

    def _ask(self) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_TO_ANSWER)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _run(self) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            due = time.monotonic()
            while not self._over.is_set():
                pool.submit(self._send)
                due = max(due + 1.0 / self.rate, time.monotonic() - 1.0)
                time.sleep(max(0.0, due - time.monotonic()))

    def replicas(self) -> set[str]:
        """The replicas that answer requests from now on."""
        before = Counter(self.answers)
        while sum(self.answers.values()) < sum(before.values()) + 20:
            time.sleep(0.01)
        after = Counter(self.answers)  # at once: other threads add to it
        return {name for name, count in after.items() if count > before[name]}


@contextmanager
def requests_to(port: int, *, rate: float, host: str = "127.0.0.1") -> Iterator[Requests]:
    """Send requests until the end of the block; all of them have ended then."""
    requests = Requests(port, rate, host)
    thread = threading.Thread(target=requests._run)
    thread.start()
    try:
        yield requests
    finally:
        requests._over.set()
        thread.join()


if __name__ == "__main__":  # HOST PORT RATE: on another host, until standard input ends
    with requests_to(int(sys.argv[2]), rate=float(sys.argv[3]), host=sys.argv[1]) as sent:
        sys.stdin.read()
    print(json.dumps({"lost": sent.lost, "answers": sent.answers, "longest": sent.longest}))  # noqa: T201
