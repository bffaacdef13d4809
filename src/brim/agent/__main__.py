"""`python -m brim.agent`: the agent of one node."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from brim.agent.loop import Agent, Settings
from brim.clock import SystemClock
from brim.errors import EnvironmentFault
from brim.wire.control import open_stream

__all__ = ["join", "main"]


def join(master: str, *, token: str) -> int:
    """Join a run of another host with workers of this one, until the run ends; the exit status."""
    with tempfile.TemporaryDirectory(prefix="brim-agent-") as scratch:
        host = _address_towards(master)
        name = f"{socket.gethostname()}-{os.getpid()}"
        settings = Settings(name=name, host=host, run_dir=Path(scratch))
        return _run(settings, master, token)


def _address_towards(master: str) -> str:
    """The address of this host on the network that leads to the master; nothing is sent."""
    host, _, port = master.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
        except OSError as error:
            raise EnvironmentFault(f"no way to the master at {master}: {error}") from error
        return str(probe.getsockname()[0])


def _run(settings: Settings, master: str, token: str) -> int:
    async def go() -> int:
        agent = Agent(settings, open_stream(master, token=token), SystemClock())
        task = asyncio.ensure_future(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return 1

    return asyncio.run(go())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.agent", description=__doc__)
    parser.add_argument("--master", required=True, help="unix:PATH or HOST:PORT")
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address that workers of other hosts can reach")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    settings = Settings(
        name=arguments.name,
        host=arguments.host,
        run_dir=arguments.run_dir,
        job_file=arguments.run_dir / "job.json",
    )
    sys.exit(_run(settings, arguments.master, os.environ["BRIM_TOKEN"]))


if __name__ == "__main__":
    main()
