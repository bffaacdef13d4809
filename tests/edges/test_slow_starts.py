"""Starts that a busy host makes slow: the messages on them, and the patience with them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from brim.agent.conversation import Conversation
from brim.agent.loop import _PREPARING, _STARTING, _start_of
from brim.coordination.job.waits import Doing, Overdue
from brim.errors import EnvironmentFault
from brim.host.clock import VirtualClock
from brim.host.stacks import Stack, imported
from brim.runs import following
from brim.runs.following import _Watch
from brim.runs.views import View
from brim.telemetry.events import StillStarting, Warned
from brim.telemetry.history import RunHistory, RunReader, describe_event, read_history
from brim.wire import messages as wire
from brim.wire.control import AgentStream
from edges.test_conversation import HOLDS, Script, life, says
from edges.test_master import Desk, play

IMPORT = '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed'
MINE = '  File "/home/me/train.py", line 1 in <module>'
RUNPY = '  File "<frozen runpy>", line 88 in _run_code'
WARM = f'  File "{Path(following.__file__).parents[1]}/train/warm.py", line 12 in <module>'


def library(name: str, function: str = "<module>") -> str:
    return f'  File "/venv/lib/python3.11/site-packages/{name}", line 9 in {function}'


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([library("torch/hub.py"), IMPORT, library("torch/__init__.py"), IMPORT, MINE], "torch"),
        ([library("sympy/core.py"), IMPORT, library("torch/x.py"), IMPORT, WARM, RUNPY], "torch"),
        ([IMPORT, library("pandas/io.py", "lazy"), MINE], "libraries"),
        ([library("six.py"), IMPORT, MINE], "six"),
        ([library("brim/x.py"), IMPORT, WARM, RUNPY], "brim"),
        ([IMPORT, WARM, IMPORT, WARM, RUNPY], "libraries"),
        ([library("pandas/io.py", "read_csv"), MINE], ""),
        ([MINE, IMPORT, WARM, RUNPY], ""),
        ([library("requests/api.py", "get"), MINE, IMPORT, library("torch/x.py"), RUNPY], ""),
        ([WARM, RUNPY], ""),
        ([], ""),
    ],
)
def test_stack_tells_which_package_is_imported(frames: list[str], name: str) -> None:
    dump = "\n".join(["Current thread 0x00007f (most recent call first):", *frames])
    assert imported(dump) == name


@pytest.mark.parametrize(
    ("doing", "seconds", "stack", "words"),
    [
        (_PREPARING, 8.0, Stack("  File …", "torch"), "importing torch"),
        (_PREPARING, 8.0, Stack(), "starting"),
        (_STARTING, 256.0, Stack("  File …", "pandas"), "importing pandas"),
        (_STARTING, 300.0, Stack("  File …", "pandas"), ""),
        (_PREPARING, 8.0, Stack("  File train.py"), ""),
        (
            Doing(kind="step", words="in step 1"),
            8.0,
            Stack("  File …", "triton"),
            "importing triton",
        ),
        (Doing(kind="step", words="in step 1"), 8.0, Stack(), ""),
    ],
)
def test_slow_start_is_named(doing: Doing, seconds: float, stack: Stack, words: str) -> None:
    assert _start_of(Overdue("", doing, seconds, None), stack) == words


@pytest.mark.parametrize(
    ("agents", "worker", "message"),
    [
        ("A", "", "importing torch (8 s so far)"),
        ("AB", "", "h (agent A): importing torch (8 s so far)"),
        ("A", "w1", "w1: importing torch (8 s so far)"),
    ],
)
def test_slow_start_is_no_warning(tmp_path: Path, agents: str, worker: str, message: str) -> None:
    desk = Desk(tmp_path, workers=1, agents=1)
    late = wire.Late(
        worker=worker, doing="…", seconds=8.0, limit=None, stack="…", start="importing torch"
    )

    async def story(desk: Desk) -> None:
        for agent in agents:
            await desk.join(agent)
        await desk.say("A", late)

    play(desk, story)
    events = read_history(tmp_path).events
    (event,) = [event for event in events if isinstance(event, StillStarting)]
    assert describe_event(event, RunHistory()) == message
    assert not [event for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize(
    ("starts", "patience", "seconds", "words"),
    [
        (True, None, 300, "is too busy: it did not start within 300 s"),
        (False, None, 20, "no master answered in 20 s: is the address right"),
        (True, 50.0, 50, "is too busy: it did not start within 50 s"),
    ],
)
def test_agent_waits_for_a_master_that_starts(
    monkeypatch: pytest.MonkeyPatch,
    starts: bool,
    patience: float | None,
    seconds: int,
    words: str,
) -> None:
    monkeypatch.setattr("brim.agent.conversation._TO_RETRY", 0.0)
    clock = VirtualClock(1.0)

    async def converse(answers_at: float) -> wire.MasterMessage | None:
        def dial() -> AgentStream:
            clock.advance(10.0)
            is_late = clock.now() < answers_at
            script = Script() if is_late else Script(life(1), says(1, HOLDS[0]))
            return cast(AgentStream, script)

        conversation = Conversation(
            "a", dial=dial, keeper=None, clock=clock, patience=patience, starts=starts
        )
        async for message in conversation.messages():
            if message == HOLDS[0]:
                return message
        return None

    assert asyncio.run(converse(clock.now() + seconds - 10.0)) == HOLDS[0]
    with pytest.raises(EnvironmentFault, match=words):
        asyncio.run(converse(float("inf")))


class _Run:
    """Stands for the processes of a run that say nothing for a number of looks."""

    def __init__(self, clock: VirtualClock, looks: int) -> None:
        self._clock, self._looks = clock, looks

    def poll(self) -> int | None:
        self._clock.advance(3.0)
        self._looks -= 1
        return None if self._looks else 0

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


class _Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, *_: object) -> None:
        pass


def test_command_tells_of_a_slow_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, view = VirtualClock(1.0), _Notes()
    monkeypatch.setattr(following, "monotonic", clock.now)
    monkeypatch.setattr(following, "sleep", lambda _: None)
    reader = RunReader(tmp_path, keep_steps=False)
    watch = _Watch(_Run(clock, 12), reader, cast(View, view), None, None, cast(Any, None))
    assert watch.to_the_end() == 0
    assert view.notes == [f"the run is still starting ({n} s so far)" for n in (9, 21)]
