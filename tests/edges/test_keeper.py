"""The keeper of a master, with processes in its place that are killed."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

from brim.agent.births import Process
from brim.agent.keeper import Keeper
from brim.storage.contact import Contact, read_contact, write_contact


def test_master_killed_at_its_end_leaves_no_address(tmp_path: Path) -> None:
    assert _left_by_a_killed_master(tmp_path, keeper=os.getpid()) is None


def test_address_of_another_keepers_master_stays(tmp_path: Path) -> None:
    assert _left_by_a_killed_master(tmp_path, keeper=os.getppid()) is not None


def _left_by_a_killed_master(run_dir: Path, keeper: int) -> Contact | None:
    (run_dir / "logs").mkdir()
    process = subprocess.Popen(["sleep", "100"])
    contact = Contact(address="127.0.0.1:1", token="t", pid=process.pid, keeper=keeper)
    write_contact(run_dir, contact)

    def start(*_: object, **__: object) -> Process:
        return process

    async def see_off() -> None:
        kept = Keeper([], run_dir, start)
        keeping, ending = asyncio.create_task(kept.run()), asyncio.create_task(kept.end())
        await asyncio.sleep(0)  # the job has ended; its master has not
        process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(20):
            await asyncio.gather(keeping, ending)

    asyncio.run(see_off())
    return read_contact(run_dir)
