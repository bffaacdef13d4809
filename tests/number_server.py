"""Servers of numbers, as services' loads are read."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def numbers(answers: list[str]) -> Iterator[int]:
    """Serve the first of these at a port; all later ones are the last. 302 leads elsewhere."""

    class Numbers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(int(text) if text == "302" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Numbers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
