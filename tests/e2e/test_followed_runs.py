"""A run that is followed from elsewhere, by its port alone, through any fate of its master."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.backends.watching import RunWatch
from brim.storage.mirror import RecordsMirror
from brim.telemetry.history import read_history
from brim.wire.control import ask_later
from brim.wire.following import RecordsFollower
from brim.wire.messages import Ask
from brim_lab.driver import Driver
from e2e.running import DEADLINE, DIGITS, Run, check_ledger, free_port, lines, undisturbed, until

pytestmark = pytest.mark.e2e
JOB = (DIGITS, "--epochs", "8", "--global-batch-size", "128", "--micro-batches", "2")
TOKEN = "of this start"


class Followed:
    """A run on this host; its follower has an address and a token alone."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.folder, self.run_dir, self.into = folder, folder / "run", folder / "mirror"
        self.mirror = RecordsMirror(self.into)
        self.driver = Driver(folder, BRIM_TOKEN=TOKEN)
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()))

    async def _follow(self) -> None:
        follower = RecordsFollower(self.mirror, self.address, token=TOKEN, linger=0.2)
        following = asyncio.create_task(follower.run())
        await asyncio.to_thread(self._over.wait)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    def __enter__(self) -> Followed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.mirror.close()
        self.driver.end()

    @contextlib.contextmanager
    def master(self, *options: str) -> Iterator[Run]:
        pace = ("--set", "pause=0.1", "--set", f"hurry={self.folder / 'hurry'}")
        master_options = ("--auto-resume", "--run-dir", str(self.run_dir), "--listen", self.address)
        command = ("master", *JOB, *pace, *master_options, "--rejoin-timeout", "none", *options)
        with self._started(*command) as process:
            yield Run(process, self.run_dir)

    def agent(self) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        return self._started("agent", self.address, "--workers", "1", "--patience", "60s")

    @contextlib.contextmanager
    def _started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        with self.driver.start(*command, stdout=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def records(self, folder: Path) -> tuple[bytes, ...]:
        return tuple(
            (folder / name).read_bytes() if (folder / name).exists() else b""
            for name in ("events.jsonl", "steps.jsonl")
        )


def test_a_mirror_ends_with_its_run(tmp_path: Path) -> None:
    calm = str(undisturbed(*JOB)["weights_sha256"])
    places = ("--checkpoints", str(tmp_path / "checkpoints"))
    ending = ("--summary-file", str(tmp_path / "summary"))
    options = ("--workers", "1:2", "--checkpoint-every", "10", *places, *ending)
    with Followed(tmp_path) as followed, contextlib.ExitStack() as stack:
        mirror = Run(stack.enter_context(followed.master(*options)).process, followed.into)
        agent = stack.enter_context(followed.agent())
        mirror.wait_for_step(4)
        mirror.process.kill()
        mirror = Run(stack.enter_context(followed.master(*options)).process, followed.into)
        mirror.wait_for_step(13)
        until(lambda: bool(mirror.events("checkpoint")), "a checkpoint", mirror)
        assert followed.mirror.restarts == 0, "the same records went on"
        agent.kill()
        mirror.process.kill()
        mirror.process.wait()
        stood_at = lines(followed.run_dir / "steps.jsonl")[-1]["step"]
        shutil.rmtree(followed.run_dir)
        next_master = stack.enter_context(followed.master(*options))
        stack.enter_context(followed.agent())
        until(lambda: followed.mirror.restarts > 0, "a restart", next_master)
        # The mirror begins its files again one by one: of the run before are steps from 1 on.
        until(lambda: any(s["step"] > 1 for s in mirror.steps()[:1]), "a step", next_master)
        first = mirror.steps()[0]["step"]
        assert 10 < first <= stood_at + 1, "it did not go on from its newest checkpoint"
        (tmp_path / "hurry").touch()
        _, explanation = next_master.process.communicate(timeout=DEADLINE)
        assert next_master.process.returncode == 0, explanation
        assert "it goes on from its newest checkpoint" in explanation
        assert followed.records(followed.into) == followed.records(followed.run_dir)
    summary = read_history(followed.into).ended
    assert summary is not None
    assert summary.summary["weights_sha256"] == calm
    assert json.loads((tmp_path / "summary").read_text()) == summary.summary
    watch = RunWatch(followed.into)
    watch.poll()
    assert watch.summary == summary.summary


@pytest.mark.long
def test_a_run_suspended_by_port_takes_another_token(tmp_path: Path) -> None:
    with Followed(tmp_path) as followed, contextlib.ExitStack() as stack:
        run = stack.enter_context(followed.master("--workers", "1:2"))
        stack.enter_context(followed.agent())
        mirror = Run(run.process, followed.into)
        mirror.wait_for_step(3)
        pending_answer = ask_later(followed.address, token=TOKEN, question=Ask(verb="suspend"))
        assert asyncio.run(pending_answer).ok
        _, explanation = run.process.communicate(timeout=DEADLINE)
        assert run.process.returncode == 0, explanation
        assert mirror.events("run_ended")[-1]["summary"]["exit"] == "suspended"
        assert followed.records(followed.into) == followed.records(followed.run_dir)
        followed.driver = Driver(tmp_path, BRIM_TOKEN="of the next start")
        (tmp_path / "hurry").touch()
        run = stack.enter_context(followed.master("--workers", "1:2"))
        stack.enter_context(followed.agent())
        _, explanation = run.process.communicate(timeout=DEADLINE)
        followed.driver.end()
        assert run.process.returncode == 0, explanation
        assert run.events("run_ended")[-1]["summary"]["exit"] == "done"
    check_ledger(followed.run_dir)
