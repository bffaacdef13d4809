"""Agents' copies of a master's files, the masters they follow, and a master without any copy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import recorded_run
from brim.agent.conversation import Conversation, Displaced
from brim.agent.copy import JournalCopy
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, VirtualClock
from brim.master import copying
from brim.master.copying import CopyFeed
from brim.master.entrance import Entrance
from brim.master.entries import Before, Began, Heard, Joined
from brim.master.records import Records
from brim.master.state import State
from brim.storage.copies import CopiedFiles, ReceivedCopy
from brim.wire import messages as wire
from brim.wire.control import AgentStream
from brim_lab.driver import Driver
from e2e.running import DIGITS
from edges.test_conversation import HOLDS, Script, says

FIRST, SECOND, OTHER = (wire.JournalPlace(name, 0) for name in ("first", "second", "other"))


class Kept:
    """The journal of a master, and one agent's copy of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "run").mkdir()
        self.run_dir, self.clock = folder / "run", VirtualClock(100.0)
        self.records = Records(self.run_dir)
        self.decisions = self.records.open("first", self._begin, self.clock)
        self.feed = CopyFeed(self.records, self.decisions, None)
        self.copy = JournalCopy(CopiedFiles(folder / "copy"))
        self.parts = 0

    def _begin(self, life: int, previous: Before) -> Began:
        spec = recorded_run.spec(faults=())
        return Began(
            at=0.0, now=0.0, attempt="first", life=life, spec=spec, run="r", started=0.0,
            before=previous,
        )  # fmt: skip

    def live(self, agents: int) -> None:
        for number in range(agents):
            join = Joined(at=1.0, now=1.0, agent=f"a{number}", session="s", host="h", keeps=True)
            self.records.take(self.decisions, join)
        for name, agent in self.decisions.agents.items():
            warning = wire.Warn(message="a line of the records " * 10)
            entry = Heard(at=2.0, now=2.0, agent=name, number=agent.heard + 1, message=warning)
            self.records.take(self.decisions, entry)

    def send(self) -> None:
        while (part := self.feed.part()) is not None:
            self.parts += 1
            encoded = msgspec.msgpack.encode(part)
            self.copy.take(msgspec.msgpack.decode(encoded, type=wire.CopyPart))

    def came_home(self, folder: Path) -> State | None:
        """Where the copy leads to in another directory."""
        folder.mkdir(exist_ok=True)
        with ReceivedCopy(folder) as received:
            for data in self.copy.content():
                received.write(data.file, data.data)
            received.keep()
        records = Records(folder)
        with contextlib.closing(records):
            found = records.peek()
        return found.state if found is not None else None


@pytest.fixture
def agents_copy(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def same_files(agents_copy: Kept, folder: Path) -> bool:
    names = ("events.jsonl", "steps.jsonl")
    return all((folder / n).read_bytes() == (agents_copy.run_dir / n).read_bytes() for n in names)


def test_a_copy_leads_to_where_the_journal_leads(agents_copy: Kept, tmp_path: Path) -> None:
    agents_copy.send()
    agents_copy.live(agents=3)
    agents_copy.send()
    assert agents_copy.copy.offer("first") == wire.CopyOffer(
        place=agents_copy.decisions.state.place, holders=3
    )
    assert agents_copy.came_home(tmp_path / "again") == agents_copy.decisions.state
    assert same_files(agents_copy, tmp_path / "again")


def test_a_late_copy_is_offered_once_whole(
    agents_copy: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_CHUNK", 50)
    agents_copy.live(agents=3)
    part = agents_copy.feed.part()
    assert part is not None
    agents_copy.copy.take(part)
    assert agents_copy.copy.offer("first") is None
    agents_copy.send()
    assert agents_copy.parts > 5
    assert agents_copy.came_home(tmp_path / "again") == agents_copy.decisions.state
    assert same_files(agents_copy, tmp_path / "again")


def test_a_long_copy_is_put_more_briefly(
    agents_copy: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_MAX_COPY_BYTES", 1)
    agents_copy.live(agents=1)
    agents_copy.send()
    for _ in range(3):
        agents_copy.live(agents=0)
        agents_copy.send()
    journal = next(data for data in agents_copy.copy.content() if data.file == "journal")
    assert journal.data.count(b"Restated") == 1
    assert b"Heard" not in journal.data
    assert agents_copy.came_home(tmp_path / "again") == agents_copy.decisions.state
    assert same_files(agents_copy, tmp_path / "again")


def test_an_outdated_copy_is_sent_whole(agents_copy: Kept, tmp_path: Path) -> None:
    agents_copy.send()
    agents_copy.live(agents=2)
    agents_copy.records.recent.clear()  # what is recent is some megabytes, and no more
    agents_copy.live(agents=0)
    agents_copy.send()
    assert agents_copy.came_home(tmp_path / "again") == agents_copy.decisions.state


def test_a_full_disk_costs_only_the_copy(
    agents_copy: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents_copy.send()
    agents_copy.live(agents=1)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda file, data, place: 0)
        agents_copy.send()
    assert "is the disk full?" in agents_copy.copy.problem
    assert agents_copy.copy.offer("first") is None
    agents_copy.feed = CopyFeed(
        agents_copy.records, agents_copy.decisions, None
    )  # as after the next call
    agents_copy.send()
    assert agents_copy.copy.offer("first") is not None


def test_a_copy_sets_aside_replaced_files(agents_copy: Kept, tmp_path: Path) -> None:
    agents_copy.send()
    target = tmp_path / "there"
    target.mkdir()
    for name in ("journal", "events.jsonl", "steps.jsonl"):
        (target / name).write_text("older")
    assert agents_copy.came_home(target) is not None
    assert (target / "journal.before").read_text() == "older"
    assert not list(target.glob(".*coming"))


# Whom an agent follows ----------------------------------------------------------------------------


def life(number: int, *line: wire.JournalPlace) -> wire.FromMaster:
    spec = recorded_run.spec()
    hello = wire.Configure(spec=spec, run_dir="r", life=number, heard=0, line=line)
    return wire.FromMaster(0, 0, hello, told=7)


def follow(*scripts: Script, patience: float | None = None) -> list[wire.MasterMessage]:
    scripts_left, obeyed = list(scripts), list[wire.MasterMessage]()

    async def listen() -> None:
        clock = SystemClock() if patience else VirtualClock(1.0)
        conversation = Conversation(
            "a",
            dial=lambda: cast(
                AgentStream,
                scripts_left.pop(0) if len(scripts_left) > 1 or not patience else scripts_left[0],
            ),
            keeper=None,
            clock=clock,
            patience=patience,
            calls=2,
        )
        async for message in conversation.messages():
            if not isinstance(message, wire.Configure):
                obeyed.append(message)

    with contextlib.suppress(IndexError):
        asyncio.run(listen())
    return obeyed


def test_an_agent_follows_a_master_continuing_its_journal() -> None:
    first = Script(life(1, FIRST), says(1, HOLDS[0]))
    moved = Script(life(2, FIRST, SECOND), says(2, HOLDS[1]))
    assert follow(first, moved) == HOLDS[:2]
    join = moved.heard[0].message
    assert isinstance(join, wire.JoinJob)
    assert join.told == wire.JournalPlace("first", 0)  # that of the last parcel


@pytest.mark.parametrize("line", [(FIRST,), (FIRST, OTHER)], ids=["older", "rival"])
def test_a_replaced_master_is_never_followed_again(
    line: tuple[wire.JournalPlace, ...],
) -> None:
    moved = Script(life(2, FIRST, SECOND), says(1, HOLDS[0]))
    replaced = Script(life(9, *line), says(2, HOLDS[1]))
    same_life = Script(life(3, FIRST, SECOND), says(2, HOLDS[2]))
    assert follow(moved, replaced, same_life) == [HOLDS[0], HOLDS[2]]


def test_foreign_masters_cost_no_workers_during_patience() -> None:
    refused = wire.Refused(reason="counted as lost", lost=True, line=(OTHER,))
    moved = Script(life(1, FIRST), says(1, HOLDS[0]))
    with pytest.raises(Displaced, match="counted as lost"):
        follow(moved, Script(wire.FromMaster(0, 0, refused)), patience=0.3)


# A master without a journal -----------------------------------------------------------------------


class Caller:
    """An agent at the entrance of a master."""

    def __init__(self, agents_copy: Kept | None, *, life: int = 1, cut: int = 0) -> None:
        state = agents_copy.decisions.state if agents_copy else None
        offer = wire.CopyOffer(
            place=wire.JournalPlace("first", state.entries - cut), holders=state.holders
        ) if state else None  # fmt: skip
        self.name = f"caller-{id(self)}"
        self.join = wire.JoinJob(
            agent=self.name, session="s", host="h", life=life, keeps=True, copy=offer
        )
        self._kept, self._said = agents_copy, asyncio.Queue[wire.FromAgent]()
        self._said.put_nowait(wire.FromAgent(0, 0, self.join))
        self.was_asked = False

    async def reply(self, parcel: wire.FromMaster) -> None:
        if isinstance(parcel.message, wire.SendCopy) and self._kept is not None:
            self.was_asked = True
            for data in self._kept.copy.content():
                self._said.put_nowait(wire.FromAgent(0, 0, data))

    async def requests(self) -> AsyncIterator[wire.FromAgent]:
        while True:
            yield await self._said.get()


def find(
    run_dir: Path, *callers: Caller, own_state: State | None = None, patience: float = 60.0
) -> Any:
    async def wait() -> Any:
        run_dir.mkdir(exist_ok=True)
        entrance = Entrance(run_dir, SystemClock())
        calls = [
            asyncio.create_task(entrance.converse(caller.requests(), caller.reply))
            for caller in callers
        ]
        try:
            return await entrance.find(own_state, patience=patience)
        finally:
            for call in calls:
                call.cancel()

    return asyncio.run(wait())


def test_the_longest_copy_is_taken_after_all_called(agents_copy: Kept, tmp_path: Path) -> None:
    agents_copy.live(agents=2)
    agents_copy.send()
    callers = Caller(agents_copy, cut=1), Caller(agents_copy)
    found = find(tmp_path / "next", *callers)
    assert (found.agent, found.missing) == (callers[1].name, 0)
    assert [caller.was_asked for caller in callers] == [False, True]
    assert (tmp_path / "next" / "journal").exists()


def test_copies_of_later_lives_count_as_longer(agents_copy: Kept, tmp_path: Path) -> None:
    agents_copy.live(agents=2)
    agents_copy.send()
    callers = Caller(agents_copy, life=2, cut=1), Caller(agents_copy)
    assert find(tmp_path / "next", *callers).agent == callers[0].name


def test_absent_copy_holders_are_awaited_and_counted(
    agents_copy: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.master.entrance._TO_GATHER", 0.1)
    agents_copy.live(agents=3)
    agents_copy.send()
    assert find(tmp_path / "next", Caller(agents_copy)).missing == 2


def test_a_directory_ahead_of_copies_stays(
    agents_copy: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.master.entrance._TO_GATHER", 0.1)
    agents_copy.live(agents=2)
    agents_copy.send()
    caller = Caller(agents_copy, cut=1)
    found = find(tmp_path / "next", caller, own_state=agents_copy.decisions.state)
    assert (found.agent, found.missing, caller.was_asked) == ("", 1, False)


def test_without_copies_nothing_can_continue(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="1 called without one"):
        find(tmp_path / "next", Caller(None), patience=0.1)


# The verb -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "127.0.0.1:0"), "the run's token: got none"),
        ((), "--listen: got nothing"),
        (("--listen", "127.0.0.1:0", "--workers", "3"), "--workers: got an option of a new run"),
        (("no.py", "--listen", "127.0.0.1:0"), "no.py"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    token = {} if "token" in says else {"BRIM_TOKEN": "t"}
    done = Driver(tmp_path, **token).call("master", *words, codes=(2,))
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_uncalled_master_ends_with_an_explanation(tmp_path: Path) -> None:
    driver = Driver(tmp_path, BRIM_TOKEN="t")
    words = ("--listen", "127.0.0.1:0", "--run-dir", "run", "--patience", "1s")
    done = driver.call("master", *words, codes=(1,))
    assert "no agent offered a copy of the run's journal in 1 s, none called" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", [(), (DIGITS,)], ids=["goes on", "begins"])
def test_an_idle_master_is_not_the_latest_run(tmp_path: Path, file: tuple[str, ...]) -> None:
    earlier_run = tmp_path / "runs" / "earlier"
    earlier_run.mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("earlier")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if file else 0
        words = (*file, "--listen", f"127.0.0.1:{port}", "--patience", "1s")
        Driver(tmp_path, BRIM_TOKEN="t").call("master", *words, codes=(1,))
    assert os.readlink(tmp_path / "runs" / "latest") == "earlier"
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"earlier", "latest"}
