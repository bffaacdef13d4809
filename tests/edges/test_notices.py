"""Notices that a host is taken back, from metadata servers that a local one stands in for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from brim.errors import EnvironmentFault, SpecError
from brim.joined import notices
from brim.joined.notices import MetadataAnswer, azure_notice, source_of

Answers = dict[tuple[str, str], tuple[int, str]]


class Metadata(ThreadingHTTPServer):
    """A metadata server of all clouds: what it answers by method and path, and what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: Answers = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Metadata)
        self.server.asked.append((self.path, dict(self.headers)))
        status, body = self.server.answers.get((self.command, self.path), (404, "not found"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setattr(notices, "_TO_ANSWER", 60.0)  # a busy machine may hold up its thread
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10.0)


def test_aws_tells_by_a_token_of_its_own(metadata: Metadata) -> None:
    endpoint = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{metadata.address}"}
    look = source_of("aws", endpoint)
    metadata.answers["PUT", "/latest/api/token"] = 200, "AQAE"
    assert look() == ""
    place = "/latest/meta-data/spot/instance-action"
    notice = '{"action": "terminate",\n "time": "2026-11-29T21:00:00Z"}'
    metadata.answers["GET", place] = 200, notice
    assert look() == '{"action": "terminate", "time": "2026-11-29T21:00:00Z"}'
    assert metadata.asked[-1][1]["X-aws-ec2-metadata-token"] == "AQAE"


def test_google_tells_by_one_word(metadata: Metadata) -> None:
    look = source_of("gcp", {"GCE_METADATA_HOST": metadata.address})
    place = "/computeMetadata/v1/instance/preempted"
    found = []
    for body in ("FALSE", "TRUE\n"):
        metadata.answers["GET", place] = 200, body
        found.append(look())
    assert found == ["", "preempted"]
    assert metadata.asked[-1][1]["Metadata-Flavor"] == "Google"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ""),
        ([{"EventType": "Reboot", "Resources": ["vm_2"]}], ""),
        ([{"EventType": "Preempt", "Resources": ["vm_1"]}], ""),
        (
            [{"EventType": "Preempt", "Resources": ["vm_1", "vm_2"], "NotBefore": ""}],
            "Preempt of vm_2, not before now",
        ),
    ],
)
def test_azure_tells_of_all_machines(events: list[object], expected: str) -> None:
    def ask(_: str, path: str, __: object) -> MetadataAnswer:
        is_name = path.startswith("/metadata/instance/compute/name?")
        return MetadataAnswer(200, "vm_2\n" if is_name else json.dumps({"Events": events}))

    assert azure_notice(ask) == expected


def test_nonsense_of_a_server_is_no_notice() -> None:
    for body in ("", "[]", "{", '{"Events": [1]}', '{"Events": null}'):
        assert azure_notice(lambda *_, body=body: MetadataAnswer(200, body)) == ""


def test_addresses_files_and_commands_tell(metadata: Metadata, tmp_path: Path) -> None:
    look = source_of(f"http://{metadata.address}/leave?me", {})
    assert look() == ""
    metadata.answers["GET", "/leave?me"] = 200, " at nine "
    assert look() == "at nine"
    metadata.answers["GET", "/leave?me"] = 302, "elsewhere"
    assert look() == ""
    file = tmp_path / "leave"
    look, of_command = source_of(str(file), {}), source_of(f"cat {file}", {})
    assert (look(), of_command()) == ("", "")
    file.write_text("for repairs\n")
    assert (look(), of_command()) == (f"{file} is there", "for repairs")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://host/x",
        "/no/such/folder/leave",
        "no-such-program x",
        'sh -c "',
        "http://[::1",
        "http://host:99999/",
    ],
)
def test_odd_sources_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--notice: got"):
        source_of(text, {})


PROGRAM = """
import signal, sys, time
from brim.joined import notices
from brim.joined.notices import leave_at

notices._TO_ANSWER = 60.0

def work():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("ready", flush=True)
    time.sleep(60)

sys.exit(leave_at(sys.argv[1], work))
"""


@pytest.mark.parametrize("by", ["notice", "signal", "death"])
def test_work_ends_by_notice_or_signal(by: str, tmp_path: Path) -> None:
    file = tmp_path / "leave"
    command = [sys.executable, "-c", PROGRAM, str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
        if by == "notice":
            file.touch()
        else:
            host.send_signal(signal.SIGTERM if by == "signal" else signal.SIGKILL)
        error = host.communicate(timeout=50.0)[1]
    assert host.returncode == (-signal.SIGKILL if by == "death" else 7)
    assert ("brim: this host leaves, by notice" in error) == (by == "notice")
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))


class Nonsense(Handler):
    """What a server may answer, and never ends."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Metadata)
        self.server.asked.append((self.path, {}))
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(600):
                self.wfile.write(b" ")
                time.sleep(0.1)


def test_looks_cannot_keep_a_host(metadata: Metadata) -> None:
    """A server drips, and the work ends all the same."""
    patient = "from brim.joined import notices; notices._TO_LOOK = 60.0"
    script = patient + PROGRAM.replace("time.sleep(60)", "sys.stdin.read(); return 3")
    command = [sys.executable, "-c", script, f"http://{metadata.address}/leave"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        asked = len(metadata.asked)
        metadata.RequestHandlerClass = Nonsense
        until(lambda: len(metadata.asked) > asked)
        host.stdin.close()
        assert host.wait(30.0) == 3


def test_looks_cannot_end_a_host(metadata: Metadata) -> None:
    """A token that is no header, and then a notice which nobody can be told of."""
    environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{metadata.address}"}
    command = [sys.executable, "-c", PROGRAM, "aws"]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        ) as host,
    ):
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        token = "PUT", "/latest/api/token"
        metadata.answers[token] = 200, "no\nheader"
        asked = len(metadata.asked)
        until(lambda: len(metadata.asked) > asked + 1)
        metadata.answers["GET", "/latest/meta-data/spot/instance-action"] = 200, "now"
        metadata.answers[token] = 404, ""
        assert host.wait(30.0) == 7


def test_commands_are_ended_with_all_that_they_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = tmp_path / "pid"
    look = source_of(f"sh -c 'sleep 60 & echo $! > {left}; echo now'", {})
    assert notices._look(look) == "now"
    until(lambda: not os.path.exists(f"/proc/{left.read_text().strip()}"))
    monkeypatch.setattr(notices, "_TO_LOOK", 0.3)
    with pytest.raises(EnvironmentFault, match="no answer within"):
        notices._look(source_of("yes forever", {}))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_servers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    """Before the host takes any work."""
    command = [sys.executable, "-m", "brim", "agent", "127.0.0.1:1", "--notice", "aws"]
    environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9", "BRIM_TOKEN": "a.b"}
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 1
    assert "brim: --notice aws does not answer: [Errno 111] Connection refused" in done.stderr
