"""Looks at files that are not answered: a file system may be gone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from brim.errors import EnvironmentFault
from brim.host.looking import AccountLooks
from brim.node.loop import work_in

SECONDS = 60.0


def test_unanswered_look_holds_up_its_account_alone() -> None:
    hanging, back = threading.Event(), threading.Event()

    def hang() -> str:
        hanging.set()
        assert back.wait(SECONDS)
        return "late"

    async def look() -> None:
        looks = AccountLooks(to_answer=0.2)
        with pytest.raises(EnvironmentFault, match=r"/home/ann did not answer within 0.2 s"):
            await looks.look("ann", "/home/ann", hang)
        assert hanging.wait(SECONDS)
        with pytest.raises(EnvironmentFault, match="/data did not answer"):
            await looks.look("ann", "/data", lambda: pytest.fail("a second thread"))
        looks.to_answer = SECONDS
        assert await looks.look("ben", "/home/ben", lambda: "seen") == "seen"
        assert not back.is_set()
        back.set()
        assert await looks.look("ann", "/home/ann", lambda: "seen") == "seen"

    asyncio.run(look())


def test_error_of_a_look_is_the_callers() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(AccountLooks().look("ann", "/none", lambda: Path("/none/of/it").stat()))


def test_an_agent_falls_back_to_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    work_in(str(tmp_path / "gone"), str(tmp_path))
    assert Path.cwd() == tmp_path
    with pytest.raises(FileNotFoundError):
        work_in(str(tmp_path / "gone"), "")
