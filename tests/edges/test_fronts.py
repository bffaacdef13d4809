"""The front of a service: its file, its commands, and what a real haproxy makes of them."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from brim.domain.services import Service, ServiceReplica
from brim.errors import SpecError
from brim.scheduler.front_text import Slot, commands_for, counts_in, front_file, slots_in
from brim.scheduler.fronts import Front, check_free, end_front, haproxy_path
from brim.wire.listening import take_port
from e2e.running import until
from tiers import NEEDS_HAPROXY

A, B = ("127.0.0.1", 4000), ("127.0.0.1", 4001)
FREE = Slot("replica9", "127.0.0.1", 1, "maint")


def replica(place: tuple[str, int], state: str = "ready") -> ServiceReplica:
    return ServiceReplica(f"w-{place[1]}", *place, state)


def slot(place: tuple[str, int], state: str = "ready") -> Slot:
    return Slot(f"replica{place[1] - 3999}", *place, state)


# by name: (slots, replicas, addresses that were missed, commands)
CHANGES: dict[str, tuple[list[Slot], list[ServiceReplica], list[tuple[str, int]], list[str]]] = {
    "nothing": ([slot(A), FREE], [replica(A)], [], []),
    "one more": ([slot(A), FREE], [replica(A), replica(B)], [],
                 ["replica9 addr 127.0.0.1 port 4001", "replica9 state ready"]),
    "one leaves": ([slot(A)], [replica(A, "leaving")], [], ["replica1 state drain"]),
    "one has left": ([slot(A, "drain"), slot(B)], [replica(B)], [], ["replica1 state maint"]),
    "one has died": ([slot(A), slot(B)], [replica(B)], [], ["replica1 state maint"]),
    "one may come back": ([slot(A), slot(B)], [replica(B)], [A], []),
    "one that was to leave does not": ([slot(A, "drain")], [], [A], ["replica1 state maint"]),
    "one has come back": ([slot(A, "drain")], [replica(A)], [], ["replica1 state ready"]),
    "a stranger leaves": ([FREE], [replica(A, "leaving")], [], []),
    "no room": ([slot(A)], [replica(A), replica(B)], [], []),
    "one twice": ([slot(A), Slot("replica5", *A, "ready")], [replica(A)], [], ["replica5 state maint"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_front_is_told_of_each_change(name: str) -> None:
    slots, replicas, missed, expected = CHANGES[name]
    commands = commands_for(slots, replicas, missed=missed)
    told = [each.removeprefix("set server replicas/") for each in commands if "health" not in each]
    assert told == expected
    checked = {each for each in commands if "health" in each}
    assert {each.split()[0] for each in checked} <= {"enable", "disable"}
    for each in expected:
        name, _, state = each.partition(" state ")
        verb = "disable" if state == "drain" else "enable"
        assert not state or f"{verb} health replicas/{name}" in checked


@pytest.mark.parametrize(
    "answer", ["", "\n", "1\n# be_name\n", "# pxname,svname\n", "Unknown command"]
)
def test_no_answer_says_nothing(answer: str) -> None:
    assert slots_in(answer) == []
    assert counts_in(answer) is None


@NEEDS_HAPROXY
@pytest.mark.parametrize("health", ["", "/healthz", "/a?b=c&d=%20,~;@x"])
def test_haproxy_takes_the_file(health: str, tmp_path: Path) -> None:
    service = Service(port=8000, maximum=40, per_replica=1.0, health=health)
    text = front_file(service, user="nobody" if os.geteuid() == 0 else "").replace(
        "group nobody", "group nogroup"
    )
    (tmp_path / "front.cfg").write_text(text)
    with take_port("127.0.0.1") as listener:
        done = subprocess.run(
            [haproxy_path(), "-c", "-f", "front.cfg"],
            cwd=tmp_path,
            env={**os.environ, "BRIM_FRONT": str(listener.fileno())},
            pass_fds=(listener.fileno(),),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "server-template replica 1-80 " in text
    assert ("uri " in text) is bool(health)


def test_missing_haproxy_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.scheduler.fronts._FOLDERS", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecError, match="apt-get install haproxy"):
        haproxy_path()


def test_port_in_use_is_refused() -> None:
    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SpecError, match="port: got") as caught:
            check_free("127.0.0.1", port)
        assert f"process {os.getpid()}" in caught.value.got
    check_free("127.0.0.1", port)
    with pytest.raises(SpecError, match=r"services: address: got .* an address of this"):
        check_free("192.0.2.1", port)


class _Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = str(self.connection.getsockname()[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[[], ServiceReplica]]:
    """Begin another server, as a replica that is ready."""
    servers = []

    def begin() -> ServiceReplica:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return replica(("127.0.0.1", server.server_address[1]))

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return int(connection.getresponse().read())
    finally:
        connection.close()


@NEEDS_HAPROXY
def test_next_scheduler_goes_on_with_the_front(
    tmp_path: Path, answering: Callable[[], ServiceReplica]
) -> None:
    """Its process and its replicas stay; where it is killed, requests wait for the next one."""
    # A path that is longer than the kernel takes for a socket.
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    with take_port("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    service = Service(port=port, maximum=2, per_replica=1.0)

    def keep(front: Front, *replicas: ServiceReplica) -> int:
        async def until_it_answers() -> int:
            while True:
                counts = await front.keep(replicas)
                if counts is not None:
                    return counts.requests
                await asyncio.sleep(0.02)

        return asyncio.run(until_it_answers())

    front, later = (Front(folder, service, address=f"127.0.0.{host}") for host in (1, 2))
    first, second = answering(), answering()
    try:
        keep(front, first)
        assert ask(port) == first.port
        assert (folder / "front.sock").stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        (pid,) = [
            process.pid
            for process in psutil.process_iter(["name"])
            if process.info["name"] == "haproxy" and process.ppid() == os.getpid()
        ]
        front.close()
        assert keep(later, second) >= 1  # it goes on counting
        assert later.address == "127.0.0.1", "it listens where it did"
        assert {ask(port) for _ in range(8)} == {first.port, second.port}  # the first may come back
        keep(later, second, first._replace(state="leaving"))
        assert {ask(port) for _ in range(8)} == {second.port}
        os.kill(pid, signal.SIGKILL)
        until(lambda: not front.is_alive, "its end")
        waiting = threading.Thread(target=ask, args=(port,))
        waiting.start()
        keep(later, second)
        waiting.join(60)
        assert not waiting.is_alive()
    finally:
        asyncio.run(later.end())
        asyncio.run(front.end())
        asyncio.run(end_front(folder, forget=True))
    assert not folder.exists()
