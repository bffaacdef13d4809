"""`brim top`: the tree of a cluster and the words about a line, by keys, and the terminal afterwards."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import click
import pytest

from brim.cli.top import top
from brim.client import Client
from brim.dashboard.sight import ClusterSight
from brim.dashboard.tree import NODES, TENANTS, Line, label_of, lines_of, summary, words_of
from brim.domain.course import Change
from brim.errors import SpecError
from brim.wire.cluster import EstimateView
from crowded_desk import MadeUpScheduler
from edges.test_dashboard import DONE, WAITING, clock, job, news, node, sight, tenant
from edges.test_scheduler import Served, ask

pytest.importorskip("textual", reason="pip install -e '.[top]'")
SOON = 60.0  # seconds
JOBS, CLUSTER_NODES = 5_000, 200
ORDERS = "\x1b[2J[b]x"
COLOURED = re.compile(rb"\x1b\[[0-9;]*?\b(3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


def crowd_of_three() -> ClusterSight:
    jobs = (job("a-10"), job("a-9", state="admitted", nodes={}), job("b-1", tenant="web"), DONE)
    nodes = [node("n10"), node("n1", held=3), node("n2", drained=True)]
    return sight(news(*jobs, nodes=nodes, tenants=[tenant("ads", 4, 6), tenant("idle", 2, 0)]))


# The tree -----------------------------------------------------------------------------------------

TREES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["ads", "ads/a-10", "ads/a-9", "idle", "web", "web/b-1"]),  # those that run come first
    ({"with_ended": True}, ["ads", "ads/a-10", "ads/a-9", "ads/a-1", "idle", "web", "web/b-1"]),
    ({"closed": {"ads"}}, ["ads", "idle", "web", "web/b-1"]),
    ({"grouping": NODES}, ["n1", "n1/a-10", "n1/b-1", "n2", "n10", "", "/a-9"]),
    ({"filter_text": "Web RUN"}, ["web", "web/b-1"]),
    ({"filter_text": "nothing"}, []),
]


@pytest.mark.parametrize(("options", "lines"), TREES)
def test_tree_has_groups_and_their_jobs(options: dict[str, Any], lines: list[str]) -> None:
    found = lines_of(crowd_of_three(), **options)
    assert ["/".join(line) if line.job else line.group for line in found] == lines


def test_line_keeps_its_width_and_gives_no_orders() -> None:
    late = job(f"a{ORDERS}-1", deadline=10.0, finish=20.0)
    seen = sight(news(late, nodes=[node("n1", drained=True)], tenants=[tenant("ads", 4, 2)]))

    def label(line: Line, width: int, *, grouping: str = TENANTS) -> str:
        return label_of(line, seen, grouping=grouping, is_closed=False, width=width)

    assert label(Line("ads"), 30) == "▾ ads              2 of 4 owed"
    free = sight(news(job(), tenants=[tenant("default", 0, 1)]))
    text = label_of(Line("default"), free, grouping=TENANTS, is_closed=False, width=30)
    assert text == "▾ default      1 device in use", "nothing is owed where no tenants are declared"
    assert label(Line("n1"), 30, grouping=NODES) == "▾ n1     drained 0 of 4 in use"
    wide = label(Line("ads", late.job), 40)
    assert wide == " ! a\\x1b[2J[b]x-1        running    25 %"
    for width in (1, 5, 17, 24):
        assert len(label(Line("ads", late.job), width)) == width


def test_words_say_how_sure_an_end_is() -> None:
    first = EstimateView(at=110.0, finish=250.0, step=1, error_seconds=None, error=None)
    half = EstimateView(at=150.0, finish=260.0, step=20, error_seconds=-150.0, error=0.1)
    view = job(
        deadline=300.0, promised=True, finish=1200.0, first_estimate=first, half_estimate=half
    )
    story = [Change(100.0, "a-1", "submitted"), Change(110.0, "a-1", "running")]
    words = words_of(Line("ads", "a-1"), sight(news(view)), story, grouping=TENANTS, clock=clock)
    assert words.facts["Progress"] == "[####............] 25 %"
    assert words.facts["Deadline"] == "t300 promised"
    assert words.facts["Margin"] == "15 min after the deadline"
    assert words.facts["Expected"] == "at first t250, halfway t260 (2 min too late)"
    assert words.facts["Why"] == "surplus: 2 from it"
    assert [moment for moment, _ in words.story] == ["t110", "t100"]
    gone = words_of(Line("ads", "x-9"), sight(news(view)), [], grouping=TENANTS, clock=clock)
    assert gone.facts == {"State": "There is no such job any more."}


def test_words_about_groups() -> None:
    seen = crowd_of_three()
    ads = words_of(Line("ads"), seen, [], grouping=TENANTS, clock=clock)
    assert (ads.facts["Owed"], ads.facts["Borrowed"]) == ("4", "2")
    assert ads.facts["Jobs"] == "1 running, 1 waiting"
    first = words_of(Line("n1"), seen, [], grouping=NODES, clock=clock)
    assert (first.facts["In use"], first.facts["Jobs"]) == ("3", "a-10 (2), b-1 (2)")


def test_summary_says_that_the_scheduler_is_silent() -> None:
    seen = sight(news(job(), WAITING))
    assert summary(seen).startswith("2 of 8 devices · ")
    seen.fail("no answer")
    assert summary(seen) == "no answer"


# The application ----------------------------------------------------------------------------------


def in_application(
    use: Callable[[Any, Any], Coroutine[Any, Any, None]], *, columns: int, jobs: int = JOBS
) -> None:
    """Use an application of a crowded cluster, with textual's own pilot."""
    from brim.dashboard.terminal import ClusterTop

    async def run() -> None:
        scheduler = MadeUpScheduler(jobs=jobs, nodes=CLUSTER_NODES, markup=ORDERS)
        application = ClusterTop(cast(Client, scheduler), clock=clock)
        async with application.run_test(size=(columns, 24)) as pilot:
            await until(application, lambda text: "100 running" in text)
            await use(application, pilot)

    asyncio.run(run())


def screen_of(application: Any) -> str:
    strips = application.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(application: Any, holds: Callable[[str], bool]) -> str:
    """Wait for a state of the screen."""
    end = time.monotonic() + SOON
    while not holds(text := screen_of(application)):
        assert time.monotonic() < end, text
        await asyncio.sleep(0.02)
    return text


def test_thousands_of_jobs_by_keys() -> None:
    async def use(application: Any, pilot: Any) -> None:
        text = await until(application, lambda text: "160 of 320 owed" in text)
        assert "\x1b" not in text
        assert all(len(line) == 80 for line in text.splitlines())
        await pilot.press("down")
        text = await until(application, lambda text: "Decisions, the newest first" in text)
        assert re.search(r"Why +surplus-by-marginal", text)
        await pilot.press("end")
        await until(application, lambda text: re.search(r"sweep\S*-5000", text) is not None)
        await pilot.press("home", "left")
        await until(application, lambda text: text.splitlines()[2].startswith("▾ t1"))
        await pilot.press("enter", "slash", *"bert", "space", *"-4999")
        await until(application, lambda text: text.splitlines()[1].startswith("▾ t3"))
        await pilot.press("enter", "down")
        await until(application, lambda text: re.search(r"bert\S*-4999 *\n", text) is not None)
        await pilot.press("escape", "g")  # the job stays chosen
        await until(application, lambda text: re.search(r"bert\S*-4999 *\n", text) is not None)
        await pilot.press("home")
        await until(application, lambda text: "8 of 8 in use" in text)
        await pilot.press("q")

    in_application(use, columns=80)


def test_narrow_terminal_has_the_words_below_the_tree() -> None:
    async def use(application: Any, pilot: Any) -> None:
        await pilot.press("down")
        text = await until(application, lambda text: "Progress" in text)
        rows = text.splitlines()
        assert max(place for place, row in enumerate(rows) if row.startswith("   ")) < min(
            place for place, row in enumerate(rows) if row.startswith("Progress")
        )
        await pilot.press("ctrl+c")

    in_application(use, columns=60, jobs=200)


# The command --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    served = Served(tmp_path_factory.mktemp("state"))
    served.client.submit(ask("1:4"))
    yield served
    served.close()


@pytest.mark.parametrize("way", ["q", "\x03", "SIGTERM"])
def test_terminal_is_left_as_it_was(world: Served, way: str) -> None:
    own_end, program_end = pty.openpty()
    fcntl.ioctl(own_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(own_end)
    environment = {
        **os.environ, "BRIM_HOME": str(world.folder), "TERM": "xterm-256color", "NO_COLOR": "1",
    }  # fmt: skip
    command = subprocess.Popen(
        [sys.executable, "-m", "brim", "top"],
        stdin=program_end, stdout=program_end, stderr=program_end, env=environment,
        start_new_session=True,
    )  # fmt: skip
    output = b""
    end = time.monotonic() + SOON

    def read_until(holds: Callable[[], bool]) -> None:
        nonlocal output
        while not holds():
            assert time.monotonic() < end, output.decode(errors="replace")
            if select.select([own_end], [], [], 0.1)[0]:
                output += os.read(own_end, 65536)

    try:
        read_until(lambda: b"job-1" in output)
        assert termios.tcgetattr(own_end) != before
        if way == "SIGTERM":
            command.send_signal(signal.SIGTERM)
        else:
            os.write(own_end, way.encode())
        read_until(lambda: command.poll() is not None)
        read_until(lambda: not select.select([own_end], [], [], 0)[0])
        assert command.returncode == 0, output.decode(errors="replace")
        assert termios.tcgetattr(own_end) == before
    finally:
        command.kill()
        command.wait(SOON)
        os.close(own_end)
        os.close(program_end)
    left_screen, cursor_shown = output.rfind(b"\x1b[?1049l"), output.rfind(b"\x1b[?25h")
    assert left_screen > output.rfind(b"\x1b[?1049h") >= 0
    assert cursor_shown > output.rfind(b"\x1b[?25l")
    assert b"\x1b[?1000h" not in output  # the mouse still selects text
    assert COLOURED.search(output) is None


def test_no_terminal_is_refused(world: Served) -> None:
    environment = {**os.environ, "BRIM_HOME": str(world.folder)}
    done = subprocess.run(
        [sys.executable, "-m", "brim", "top"], capture_output=True, text=True, env=environment,
        stdin=subprocess.DEVNULL, timeout=SOON, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "need stdin, stdout and stderr on one" in done.stderr
    assert "brim jobs --watch" in done.stderr


def test_missing_package_comes_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"pip install .*\[top\]"):
        top.callback(tmp_path)  # type: ignore[misc]
    assert isinstance(top, click.Command)
