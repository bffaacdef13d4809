"""Records that are followed from a host that has no disk in common with the run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brim.backends.watching import RunWatch
from brim.domain.followed import MOST_LOGS, Part
from brim.errors import EnvironmentFault, ProtocolError
from brim.runs.copies import is_kept_alive
from brim.storage.contact import read_contact
from brim.storage.followed import FollowedRecords
from brim.storage.mirror import RecordsMirror
from brim.telemetry.history import read_history
from brim.wire import run_files
from brim.wire.control import JobServer
from brim.wire.following import RecordsFollower
from brim_lab.driver import Driver
from recorded_run import RecordedRun, spec

TOKEN = "of the run"


def record(folder: Path, steps: int, *, seed: int = 1) -> RecordedRun:
    """A run with so many steps."""
    run = RecordedRun(folder, spec(epochs=999, seed=seed))
    run.begin()
    run.train(steps)
    return run


class Followed:
    """A run whose records another host follows."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.into = folder / "run", folder / "mirror"
        (self.run_dir / "logs").mkdir(parents=True)
        (self.run_dir / "control").mkdir(mode=0o700)
        self.mirror = RecordsMirror(self.into)
        self.changed = asyncio.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def served(self, token: str = TOKEN) -> AsyncIterator[JobServer]:
        """A master's port, from its start to its end."""
        server = JobServer(
            f"unix:{self.run_dir}/control/master",
            self.listener.dup(),
            token=token,
            converse=_nobody,
            answer=_nobody,
            records=partial(FollowedRecords, self.run_dir),
        )
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

    @contextlib.asynccontextmanager
    async def following(self, **options: Any) -> AsyncIterator[RecordsFollower]:
        follower = RecordsFollower(
            self.mirror,
            self.address,
            token=TOKEN,
            on_change=self.changed.set,
            **{"linger": 0.0, **options},
        )
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def content(self, folder: Path) -> dict[str, bytes]:
        names = ["events.jsonl", "steps.jsonl", *(f"logs/{n}.log" for n in ("w1", "w2"))]
        return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}

    async def until_equal(self) -> None:
        await until(lambda: self.content(self.into) == self.content(self.run_dir))


async def _nobody(*_: Any) -> Any:
    raise AssertionError("nobody calls")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)


def play(tmp_path: Path, story: Callable[[Followed], Any]) -> Followed:
    async def live() -> Followed:
        followed = Followed(tmp_path)
        with contextlib.closing(followed.listener):
            await story(followed)
        followed.mirror.close()
        return followed

    return asyncio.run(live())


def test_a_mirror_equals_its_run(
    tmp_path: Path,
) -> None:
    async def story(followed: Followed) -> None:
        async with followed.following() as follower:
            async with followed.served():
                run = record(followed.run_dir, 5)
                (followed.run_dir / "logs" / "w1.log").write_text("one\n")
                await followed.until_equal()
                assert follower.is_connected
                run.train(3)
                await followed.until_equal()
            run.train(4)
            await until(lambda: bool(follower.problem))
            async with followed.served():
                (followed.run_dir / "logs" / "w2.log").write_text("two\n")
                await followed.until_equal()
                assert is_kept_alive(followed.into)
        async with followed.served():
            run.train(4)
            followed.mirror.close()
            followed.mirror = RecordsMirror(followed.into)
            async with followed.following():
                await followed.until_equal()
        assert followed.mirror.restarts == 0

    followed = play(tmp_path, story)
    assert read_history(followed.into).last == read_history(followed.run_dir).last
    assert not is_kept_alive(followed.into), "nobody adds to it any more"
    assert read_contact(followed.into) is None, "its token is nobody's business"


def test_a_mirror_restarts_when_the_master_knows_less(tmp_path: Path) -> None:
    async def story(followed: Followed) -> None:
        run = record(followed.run_dir, 30)
        content_before = followed.content(followed.run_dir)
        run.train(1)
        async with followed.following():
            async with followed.served():
                await followed.until_equal()
            for name, data in content_before.items():
                (followed.run_dir / name).write_bytes(data)
            run = record(tmp_path / "another", 60)
            for name in ("events.jsonl", "steps.jsonl"):
                with (followed.run_dir / name).open("ab") as file:
                    file.write((tmp_path / "another" / name).read_bytes())
            async with followed.served():
                await followed.until_equal()
        assert followed.mirror.restarts >= 1

    play(tmp_path, story)


def test_a_mirror_restarts_for_another_journal(
    tmp_path: Path,
) -> None:
    """Files take the place of others while a connection goes on."""

    async def story(followed: Followed) -> None:
        record(followed.run_dir, 5)
        record(tmp_path / "copy", 9, seed=2)
        async with followed.served(), followed.following():
            await followed.until_equal()
            for name in ("events.jsonl", "steps.jsonl"):
                (tmp_path / "copy" / name).replace(followed.run_dir / name)
            await followed.until_equal()

    assert play(tmp_path, story).mirror.restarts >= 1


@pytest.mark.parametrize("at_once", [True, False])
def test_first_and_last_steps_are_mirrored(tmp_path: Path, at_once: bool) -> None:
    async def story(followed: Followed) -> None:
        run = record(followed.run_dir, 500 if at_once else 1)
        async with followed.served():
            async with followed.following(steps_at_most=20_000):
                await until(lambda: watched(followed.into).step == run.step)
            run.train(500)
            async with followed.following(steps_at_most=20_000):
                await until(lambda: watched(followed.into).step == run.step)
            run.restore(run.step - 3)
            run.train(1)
            async with followed.following(steps_at_most=20_000):
                await until(lambda: watched(followed.into).step == run.step)

    followed = play(tmp_path, story)
    assert followed.mirror.restarts == 0
    mirrored, whole = (watched(folder) for folder in (followed.into, followed.run_dir))
    assert mirrored.state.commits == whole.state.commits
    assert (mirrored.step, mirrored.first_step) == (whole.step, whole.first_step)
    assert mirrored.last_step == whole.last_step
    size = (followed.into / "steps.jsonl").stat().st_size
    assert size < (followed.run_dir / "steps.jsonl").stat().st_size / 3


def watched(folder: Path) -> RunWatch:
    watch = RunWatch(folder)
    watch.poll()
    return watch


def test_events_arrive_at_once_and_steps_in_groups(tmp_path: Path) -> None:
    async def story(followed: Followed) -> None:
        run = record(followed.run_dir, 1)
        async with followed.served(), followed.following(linger=3600.0):
            await followed.until_equal()
            await asyncio.sleep(0.1)
            run.train(1)
            followed.changed.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await followed.changed.wait()
            run.lose(0)
            await followed.until_equal()

    play(tmp_path, story)


def test_incomplete_lines_are_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()

    def count(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    async def story(followed: Followed) -> None:
        run = record(followed.run_dir, 1)
        path = followed.run_dir / "events.jsonl"
        content_before = path.read_bytes()
        run.lose(0)
        line = path.read_bytes()[len(content_before) :]
        async with followed.served(), followed.following():
            await followed.until_equal()
            with path.open("ab") as file:
                file.write(line[:9])
                file.flush()
                calls.clear()
                await until(lambda: calls["sizes"] >= 20)
                assert calls["marks"] <= 1, "it need not ask again"
                file.write(line[9:])
            await followed.until_equal()

    count(FollowedRecords, "sizes")
    count(RecordsMirror, "marks")
    play(tmp_path, story)


def test_a_mirror_follows_a_limited_number_of_logs(
    tmp_path: Path,
) -> None:
    async def story(followed: Followed) -> None:
        record(followed.run_dir, 1)
        logs = [Path("logs", f"w{n}.log") for n in range(10, 10 + MOST_LOGS)]
        for log in logs:
            (followed.run_dir / log).write_bytes(bytes(1 << 18))
        async with followed.following() as follower:
            async with followed.served():
                await until(lambda: all((followed.into / log).exists() for log in logs))
            (followed.run_dir / "logs" / "w1.log").write_text("before the others, and too late")
            async with followed.served():
                for log in (logs[-1], logs[0]):
                    with (followed.run_dir / log).open("ab") as file:
                        file.write(b"more")
                    await until(partial(_ends_with_more, followed.into / log))
                assert follower.is_connected
        assert not (followed.into / "logs" / "w1.log").exists()

    play(tmp_path, story)


def _ends_with_more(log: Path) -> bool:
    return log.read_bytes().endswith(b"more")


def test_followers_get_a_runs_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_TO_SEE_OFF", 60.0)

    async def story(followed: Followed) -> None:
        run = record(followed.run_dir, 1)
        async with followed.served() as server:
            async with followed.following(linger=3600.0):
                await followed.until_equal()
                run.train(2)
                await server.see_followers_off()
                assert followed.content(followed.into) == followed.content(followed.run_dir)
            run.train(1)
            started = asyncio.get_running_loop().time()
            await server.see_followers_off()
            assert asyncio.get_running_loop().time() - started < 30.0, "nobody is waited for"

    play(tmp_path, story)


def test_server_of_another_run_is_not_followed(tmp_path: Path) -> None:
    async def story(followed: Followed) -> None:
        record(followed.run_dir, 1)
        async with followed.served(token="another"), followed.following() as follower:
            await until(lambda: bool(follower.problem))
            assert not follower.is_connected
            assert not followed.content(followed.into)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "part",
    [
        Part("../master.json", 0, 1),
        Part("journal", 0, 1),
        Part("steps.jsonl", 7, 1),
        Part("steps.jsonl", 0, 2),
    ],
)
def test_mirror_refuses_files_foreign_to_a_run(tmp_path: Path, part: Part) -> None:
    mirror = RecordsMirror(tmp_path)
    with contextlib.closing(mirror), pytest.raises(ProtocolError):
        mirror.add([part], b"x")


def test_mirror_stays_below_its_size_limit(tmp_path: Path) -> None:
    mirror = RecordsMirror(tmp_path, limit=10)
    with contextlib.closing(mirror):
        mirror.add([Part("steps.jsonl", 0, 8)], b"x" * 8)
        with pytest.raises(EnvironmentFault, match="larger than 10 bytes"):
            mirror.add([Part("events.jsonl", 0, 8)], b"x" * 8)
        with pytest.raises(EnvironmentFault, match="larger than 10 bytes"):
            mirror.add([Part("steps.jsonl", 9, 0, lines=9)], b"")


def test_a_mirror_has_one_writer(tmp_path: Path) -> None:
    with (
        contextlib.closing(RecordsMirror(tmp_path)),
        pytest.raises(EnvironmentFault, match="another process follows"),
    ):
        RecordsMirror(tmp_path)


def test_a_mirror_resumes_before_a_cut_line(tmp_path: Path) -> None:
    async def story(followed: Followed) -> None:
        record(followed.run_dir, 9)
        async with followed.served():
            async with followed.following():
                await followed.until_equal()
            followed.mirror.close()
            path = followed.into / "steps.jsonl"
            path.write_bytes(path.read_bytes()[:-30])
            followed.mirror = RecordsMirror(followed.into)
            async with followed.following():
                await followed.until_equal()

    assert play(tmp_path, story).mirror.restarts == 0


def test_what_reads_a_run_reads_its_mirror(tmp_path: Path) -> None:
    async def story(followed: Followed) -> None:
        record(followed.run_dir, 9)
        (followed.run_dir / "logs" / "w1.log").write_text("printed by w1\n")
        async with followed.served(), followed.following():
            await followed.until_equal()
            output = await asyncio.to_thread(Driver().call, "status", str(followed.into))
            assert "step 9" in output.stdout

    play(tmp_path, story)
    mirror = str(tmp_path / "mirror")
    assert "printed by w1" in Driver().call("logs", mirror).stdout
    Driver(tmp_path).call("report", mirror)
    assert (tmp_path / "mirror" / "report.html").exists()
