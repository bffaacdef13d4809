"""The line between a person's terminal and a program: who gets it, how much of it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from brim.client import AttachedTerminal, Client
from brim.domain.job import JobSpec
from brim.domain.rights import Caller
from brim.errors import EnvironmentFault, ProtocolError, SpecError
from brim.host.clock import monotonic
from brim.launch.terminal import Terminal
from brim.scheduler.lives import Lives
from brim.scheduler.terminals import _MOST_OF_TENANT, _PAUSE, _Terminal
from brim.wire.cluster import MOST_TYPED, Input, Submit, TerminalNews, Window
from brim.wire.frames import frame
from brim.wire.messages import Exited, Shown, Sized, Typed
from brim.wire.private import control_folder, make_private
from brim.wire.terminals import (
    GREETING,
    LARGEST_PART,
    SOCKET,
    TerminalServer,
    call_for_person,
    call_for_program,
    from_person,
    from_program,
    shown_by,
)
from e2e.running import until
from edges.test_tenants import OTHER, OWNER, House
from submissions import submission

SECRET = b"secret"
SHELL = JobSpec(command=("bash",), restart=True, tty=True)


# The meeting place ----------------------------------------------------------------------------


def at_master(tmp_path: Path, work: Callable[[], Awaitable[None]]) -> None:
    """Do something while the master of a run has its meeting place open."""

    async def run() -> None:
        folder = make_private(control_folder(tmp_path))
        server = TerminalServer(str(folder / SOCKET), SECRET)
        await server.start()
        try:
            async with asyncio.timeout(60.0):
                await work()
        finally:
            calls = list(server._calls)
            server.stop()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def person_at(
    run_dir: Path,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await call_for_person(run_dir, SECRET, user="")
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_both_ends_meet_and_end_together(tmp_path: Path) -> None:
    async def work() -> None:
        async with person_at(tmp_path) as (reader, writer):
            writer.write(frame(from_person.encode(Sized(rows=24, columns=80))))
            line = await asyncio.to_thread(call_for_program, tmp_path, SECRET, address="")
            terminal = Terminal(line)
            while not terminal.is_attended:
                terminal.turn()
                await asyncio.sleep(0.01)
            await asyncio.to_thread(terminal.finish, 3)
            assert await shown_by(reader) == Exited(status=3)
            terminal.close()
            assert await shown_by(reader) is None

    at_master(tmp_path, work)


def test_stranger_and_second_person_get_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(PermissionError):
            await call_for_person(tmp_path, b"another secret", user="")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control" / SOCKET))
        writer.write(GREETING + bytes(16) + bytes(32) + b"rm -rf\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()  # a proof that is of no use to it, and the end
        writer.close()
        async with person_at(tmp_path) as (first, _), person_at(tmp_path) as (second, _):
            assert await second.read() == b""
            line = await asyncio.to_thread(call_for_program, tmp_path, SECRET, address="")
            line.close()
            assert await first.read() == b""

    at_master(tmp_path, work)


def test_folder_of_another_account_is_not_called(tmp_path: Path) -> None:
    control_folder(tmp_path).mkdir(mode=0o777)
    with pytest.raises(EnvironmentFault, match="mode 0700"):
        call_for_program(tmp_path, SECRET, address="")


def test_message_larger_than_any_ends_the_line() -> None:
    async def work() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data((1 << 30).to_bytes(4, "little"))
        with pytest.raises(ProtocolError):
            await shown_by(reader)

    asyncio.run(work())


# The program's end ----------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Terminal, socket.socket]]:
    """A terminal, and the end of its line at which its person is."""
    own_end, line = socket.socketpair()
    line.setblocking(False)
    terminal = Terminal(line)
    yield terminal, own_end
    terminal.close()
    own_end.close()


def test_what_nobody_reads_is_bounded(ends: tuple[Terminal, socket.socket]) -> None:
    terminal, person = ends
    program_end = terminal.open()
    typed = frame(from_person.encode(Typed(data=b"x" * MOST_TYPED)))
    person.settimeout(5.0)
    for _ in range(200):  # 3 MiB, of which a program that reads nothing has 1 MiB to come
        person.sendall(typed)
        terminal.turn()
    assert len(terminal._typed) < (1 << 20) + MOST_TYPED
    assert not terminal.is_closed
    os.close(program_end)


def test_nonsense_of_a_person_hangs_up(ends: tuple[Terminal, socket.socket]) -> None:
    terminal, person = ends
    person.sendall(frame(b"\xc1 no message"))
    terminal.turn()
    assert terminal.is_closed


# The scheduler's end --------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    house = House(tmp_path)
    yield house
    house.close()


def shell_of(client: Client, number: int = 0) -> str:
    """Submit an interactive job; in this world its processes have no master."""
    request = replace(submission("1", tenant="ads"), spec=SHELL)
    return client.submit(Submit(submission=request, name="shell", key=str(number))).job


def attached(client: Client, job: str) -> AttachedTerminal:
    terminal = client.attach(job, rows=24, columns=80)
    next(terminal.news())  # its name
    return terminal


def test_terminals_of_a_tenant_are_bounded(house: House) -> None:
    client = house.as_(OWNER)
    jobs = [shell_of(client, number) for number in range(_MOST_OF_TENANT + 1)]
    terminals = [attached(client, job) for job in jobs[:-1]]
    with pytest.raises(EnvironmentFault, match=f"{_MOST_OF_TENANT} terminals"):
        attached(client, jobs[-1])
    terminals[0].close()
    until(lambda: client.job(jobs[0]).wish == "cancel", "the end of a job without its person")
    terminals.append(attached(client, jobs[-1]))
    for terminal in terminals[1:]:
        terminal.close()


def test_flood_of_a_program_is_paced() -> None:
    parts = 20
    window, caller = Window(rows=24, columns=80), Caller(tenant="ads", origin="127.0.0.1")

    async def work() -> list[TerminalNews]:
        terminal = _Terminal(cast(Lives, None), "shell-1", window, caller)
        reader = asyncio.StreamReader()
        reader.feed_data(parts * frame(from_program.encode(Shown(data=b"x" * LARGEST_PART))))
        reader.feed_eof()
        return [news async for news in terminal._of_program(reader)]

    started = monotonic()
    assert len(asyncio.run(work())) == parts
    assert monotonic() - started >= (parts - 1) * _PAUSE


def test_only_who_attached_a_terminal_types_at_it(house: House) -> None:
    client = house.as_(OWNER)
    job = shell_of(client)
    terminal = attached(client, job)
    terminal.type(Input(data=b"ls\r"))
    path = f"/v1/jobs/{job}/terminal"
    name = terminal._path.rpartition("/")[2]
    assert house.ask(OWNER, "POST", f"{path}/{name}", Input())[0] == 200
    assert house.ask(OWNER, "POST", f"{path}/another", Input())[0] == 422
    assert house.ask(OTHER, "POST", f"{path}/{name}", Input())[0] == 404
    too_much = house.ask(OWNER, "POST", f"{path}/{name}", {"data": "x" * (2 * MOST_TYPED)})
    assert too_much[0] == 400
    requests = [line["request"] for line in house.audited]
    assert f"POST {path}" in requests
    assert sum(f"{path}/" in request for request in requests) == 3, "refusals alone"
    terminal.close()


def test_other_jobs_have_no_terminal(house: House) -> None:
    job = house.client.submit(Submit(submission=submission("1", tenant="ads"), name="job")).job
    with pytest.raises(SpecError, match="no terminal"):
        house.client.attach(job, rows=24, columns=80)
