"""Nobody but the person who opened a dashboard gets into it, by whatever browser or program."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from attempts import check_page
from brim.dashboard.guard import COOKIE, Guard
from brim.dashboard.opening import open_privately
from brim.dashboard.sessions import CODE_SECONDS, SESSION_SECONDS, Sessions
from brim.wire.door import Door

pytest.importorskip("nicegui", reason="pip install -e '.[dashboard]'")
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect
from websockets.typing import Origin

ROOT = Path(__file__).resolve().parents[2]
STREAM = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
ELSEWHERE = "http://evil.example"
STRANGERS = 300


# Sessions -----------------------------------------------------------------------------------------


def test_code_is_good_once_and_not_for_long() -> None:
    sessions = Sessions()
    code, late = sessions.give_code(0.0), sessions.give_code(0.0)
    value = sessions.begin(code, 1.0)
    assert value is not None
    assert sessions.find(value, 1.0) is not None
    assert sessions.begin(code, 1.0) is None
    assert sessions.begin(late, CODE_SECONDS + 1.0) is None
    assert sessions.begin("", 1.0) is None
    assert sessions.find(code, 1.0) is None


def test_session_ends_by_itself_or_by_its_person() -> None:
    sessions = Sessions()
    values = [sessions.begin(sessions.give_code(0.0), 0.0) or "" for _ in range(3)]
    found = [sessions.find(value, 1.0) for value in values]
    sessions.end(values[0])
    assert sessions.find(values[0], 1.0) is None
    assert sessions.find(values[1], SESSION_SECONDS + 1.0) is None
    sessions.end_all()
    assert [session is not None and session.end.is_set() for session in found] == [True] * 3


def test_old_sessions_make_way_for_new_ones() -> None:
    sessions = Sessions()
    values = [sessions.begin(sessions.give_code(0.0), 0.0) or "" for _ in range(40)]
    assert [sessions.find(value, 1.0) is not None for value in values] == [False] * 8 + [True] * 32


# Streams ------------------------------------------------------------------------------------------


async def _stream(guard: Guard, value: str, incoming: asyncio.Queue[Any]) -> list[Any]:
    """Open a stream, and return what the server sent."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/_nicegui_ws/socket.io/",
        "query_string": b"transport=websocket",
        "client": ("127.0.0.1", 1),
        "headers": [
            (b"host", b"here:1"),
            (b"origin", b"http://here:1"),
            (b"cookie", f"{COOKIE}={value}".encode()),
        ],
    }
    await guard(scope, incoming.get, send)
    return sent


@pytest.mark.parametrize("path", [STREAM.partition("?")[0], STREAM.partition("?")[0].rstrip("/")])
def test_requests_open_no_stream(path: str) -> None:
    async def story() -> None:
        guard, _, value = _guarded()
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"here:1"), (b"cookie", f"{COOKIE}={value}".encode())]
        query = b"EIO=4&transport=polling"
        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": query,
            "client": ("127.0.0.1", 1), "headers": headers,
        }  # fmt: skip
        async with asyncio.timeout(20.0):
            await guard(scope, asyncio.Queue[Any]().get, send)
        assert sent[0]["status"] == 403

    asyncio.run(story())


async def _listening(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    while True:
        await receive()


def _guarded() -> tuple[Guard, Sessions, str]:
    sessions = Sessions()
    now = asyncio.get_running_loop().time()
    value = sessions.begin(sessions.give_code(now), now) or ""
    return Guard(_listening, host="here:1", sessions=sessions, door=Door()), sessions, value


def test_stream_ends_with_its_session() -> None:
    async def story() -> None:
        guard, sessions, value = _guarded()
        stream = asyncio.create_task(_stream(guard, value, asyncio.Queue()))
        while not sessions.streams:
            await asyncio.sleep(0.01)
        sessions.end(value)
        sent = await stream
        assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
        assert (await _stream(guard, value, asyncio.Queue()))[0]["type"] == "websocket.close"

    asyncio.run(asyncio.wait_for(story(), 20.0))


def test_flood_of_frames_ends_its_stream() -> None:
    async def story() -> None:
        guard, sessions, value = _guarded()
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(1000):
            incoming.put_nowait({"type": "websocket.receive", "text": "x"})
        sent = await _stream(guard, value, incoming)
        assert sent[-1]["type"] == "websocket.close"
        assert sessions.streams == 0

    asyncio.run(asyncio.wait_for(story(), 20.0))


def test_streams_of_a_session_are_few() -> None:
    async def story() -> None:
        guard, sessions, value = _guarded()
        tasks = [asyncio.create_task(_stream(guard, value, asyncio.Queue())) for _ in range(20)]
        while sessions.streams < 16:
            await asyncio.sleep(0.01)
        done, _ = await asyncio.wait(tasks, timeout=1.0)
        assert len(done) == 4
        sessions.end_all()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(story(), 20.0))


def test_address_reaches_the_browser_in_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[str] = []
    open_privately("http://brim-1.localhost:4000/enter?code=abc", opened.append)
    assert "abc" not in opened[0]
    file = Path(urlsplit(opened[0]).path)
    assert file.stat().st_mode & 0o077 == 0
    assert "url=http://brim-1.localhost:4000/enter?code=abc" in file.read_text()


# A process ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """A dashboard that runs, and the cookie of the browser that opened it."""

    host: str
    port: int
    code: str
    cookie: str

    def ask(
        self, path: str = "/jobs", *, method: str = "GET", host: str = "", **headers: str
    ) -> tuple[int, Mapping[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30.0)
        try:
            connection.putrequest(method, path, skip_host=True)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            for name, value in {"Host": host or self.host, **named}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def status(self, path: str = "/jobs", **headers: str) -> str:
        return str(self.ask(path, **headers)[0])

    def stream(self, **headers: str) -> str:
        """What comes of opening a stream."""
        options = {name: value for name, value in headers.items() if name == "Cookie"}
        line = socket.create_connection(("127.0.0.1", self.port), timeout=30.0)
        try:
            with connect(
                f"ws://{headers.get('host', self.host)}{STREAM}",
                sock=line,
                origin=Origin(headers["Origin"]) if "Origin" in headers else None,
                additional_headers=options,
                open_timeout=30.0,
            ) as stream:
                stream.recv(timeout=30.0)
                return "a stream"
        except (InvalidHandshake, ConnectionClosed):
            return "refused"

    def sends(self, frames: int, size: int) -> str:
        """What comes of sending so many frames of a size, as the browser that is signed in."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=30.0)
        with connect(
            f"ws://{self.host}{STREAM}",
            sock=line,
            origin=Origin(f"http://{self.host}"),
            additional_headers={"Cookie": self.cookie},
            open_timeout=30.0,
        ) as stream:
            try:
                for _ in range(frames):
                    stream.send("3" + "x" * size)  # a pong
                while True:
                    stream.recv(timeout=30.0)
            except ConnectionClosed:
                return "the stream ends"


@pytest.fixture(scope="module")
def opened() -> Iterator[Open]:
    command = [sys.executable, str(ROOT / "tests" / "crowded_desk.py"), "20", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = urlsplit(process.stdout.readline().strip())
            code = url.query.removeprefix("code=")
            desk = Open(url.netloc, url.port or 0, code, "")
            status, headers, page = desk.ask(f"/enter?code={code}")
            assert status == 200
            assert "url=/" in page
            cookie = headers["set-cookie"]
            assert re.fullmatch(
                rf"{COOKIE}=[\w-]+; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200", cookie
            )
            yield Open(url.netloc, url.port or 0, code, cookie.partition(";")[0])
        finally:
            process.terminate()
            assert process.wait(120.0) == 0


def test_attempts_at_a_dashboard_achieve_nothing(opened: Open) -> None:
    own = {"Cookie": opened.cookie}
    origin, near = f"http://{opened.host}", f"127.0.0.1:{opened.port}"
    rebound = f"evil.example:{opened.port}"
    found = {
        "ask without a cookie": opened.status(),
        "ask with another cookie": opened.status(Cookie=f"{COOKIE}={'A' * 43}"),
        "ask for the page by this host's address": opened.status(host=near),
        "use the address that was used": opened.status(f"/enter?code={opened.code}"),
        "guess an address": opened.status(f"/enter?code={'A' * 43}"),
        "open a stream without a cookie": opened.stream(Origin=origin),
        f"hold {STRANGERS} connections, and say nothing": _crowd(opened, own),
    }
    table = _table("another account of the host", found)
    found = {
        "have the browser fetch the page": opened.status(**own, Origin=ELSEWHERE),
        "have the browser go there by a link or a form": opened.status(
            **own, Sec_Fetch_Site="cross-site"
        ),
        "the same, from another port of the same name": opened.status(
            **own, Sec_Fetch_Site="same-site"
        ),
        "have a name of its own lead to this host (DNS rebinding)": opened.status(
            host=rebound, **own
        ),
        "open a stream from there": opened.stream(**own, Origin=ELSEWHERE),
        "open a stream by that name": opened.stream(
            host=rebound, **own, Origin=f"http://{rebound}"
        ),
        "open a stream without an origin": opened.stream(**own),
        "send something by a request": str(opened.ask(method="POST", **own, Origin=origin)[0]),
        "open a stream that is made of requests": opened.status(
            STREAM.replace("websocket", "polling"), **own, Origin=origin
        ),
        "show the page in a frame": "refused by the browser"
        if "frame-ancestors 'none'" in opened.ask(**own)[1]["content-security-policy"]
        else "a page",
    }
    table += "\n\n" + _table("another site in the same browser", found)
    found = {
        "ask for the page": opened.status(**own),
        "open a stream": opened.stream(**own, Origin=origin),
        "send 1,000 frames at once": opened.sends(1000, 10),
        "send a frame of 1 MiB": opened.sends(1, 1 << 20),
    }
    table += "\n\n" + _table("the browser that was opened", found)
    check_page(Path(__file__).with_name("attempts_at_the_dashboard.md"), table)


def _crowd(opened: Open, own: dict[str, str]) -> str:
    lines = [
        socket.create_connection(("127.0.0.1", opened.port), timeout=30.0) for _ in range(STRANGERS)
    ]
    try:
        return "pages are served" if opened.status(**own) == "200" else "nobody gets in"
    finally:
        for line in lines:
            line.close()


def _table(who: str, found: Mapping[str, str]) -> str:
    rows = [f"| {attempt} | {result} |" for attempt, result in found.items()]
    return "\n".join([f"| tried by {who} | it got |", "|---|---|", *rows])
