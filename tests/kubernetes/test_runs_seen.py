"""Runs as their operator sees them: the records that a job's own master may have it keep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brim.domain.followed import EVENTS, Part
from brim.errors import EnvironmentFault
from brim.kubernetes.pods.runs_seen import RunsSeen
from brim.storage.mirror import RecordsMirror


class Idle:
    """Follows nothing."""

    is_connected = False

    async def run(self) -> None:
        await asyncio.Event().wait()


def test_one_message_does_not_fill_the_disk(tmp_path: Path) -> None:
    mirrors: list[RecordsMirror] = []

    def idle(mirror: RecordsMirror, *_: object) -> Idle:
        mirrors.append(mirror)
        return Idle()

    async def follow() -> None:
        runs = RunsSeen(tmp_path, idle)
        runs.call("team.flights", "127.0.0.1:1", "token")
        with pytest.raises(EnvironmentFault, match="larger than"):
            mirrors[0].add([Part(EVENTS, 0, 0, lines=1 << 30)], b"")
        runs.close()

    asyncio.run(follow())
    assert (tmp_path / "team.flights" / EVENTS).stat().st_size == 0


def test_a_changed_pod_triggers_an_immediate_call(
    tmp_path: Path,
) -> None:
    calls: list[Idle] = []

    def idle(*_: object) -> Idle:
        calls.append(Idle())
        return calls[-1]

    async def follow() -> list[int]:
        runs, counts = RunsSeen(tmp_path, idle), []
        for version, answers in [("1", False), ("1", False), ("2", False), ("3", True)]:
            if answers:
                calls[-1].is_connected = True
            runs.call("team.flights", "127.0.0.1:1", "token", version=version)
            await asyncio.sleep(0)
            counts.append(len(calls))
        calls[-1].is_connected = False  # it is gone, and its pod is as it was when it answered
        runs.call("team.flights", "127.0.0.1:1", "token", version="3")
        counts.append(len(calls))
        runs.close()
        await asyncio.sleep(0)
        return counts

    assert asyncio.run(follow()) == [1, 1, 2, 2, 2]
