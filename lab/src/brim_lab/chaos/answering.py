"""A server whose answers can be checked: the replicas of a service that is being broken.

Its code is sent as this one file, so it imports nothing of brim.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEALTH = "/healthz"
_WORK = 0.1  # seconds of one request: some are under way whenever something dies


def answer_to(number: int) -> str:
    """Return the answer to a request, without the replica that gives it.

    >>> answer_to(12)
    '144'
    """
    return str(number * number)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        text = "well"
        if self.path != HEALTH:
            time.sleep(_WORK)
            text = f"{os.environ['BRIM_REPLICA']} {answer_to(int(self.path[1:]))}"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n"
        self.wfile.write(f"{head}{text}".encode())  # at once: it is cut as a whole or not at all

    def log_message(self, *_: object) -> None:
        pass


class _AnsweringServer(ThreadingHTTPServer):
    request_queue_size = 1024  # all that waited for a replica come to the first one


def _main() -> None:
    server = _AnsweringServer((os.environ["HOST"], int(os.environ["PORT"])), _Answers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()


if __name__ == "__main__":
    _main()
