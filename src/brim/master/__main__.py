"""`python -m brim.master RUN_DIR`: the master of one job; it ends when the job does."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from brim.clock import SystemClock
from brim.coordination.membership import Outcome
from brim.domain.job import JobSpec
from brim.master.loop import Master
from brim.master.progress import Progress
from brim.storage.files import write_whole
from brim.telemetry.events import EVENTS, STEPS, EventLog
from brim.wire.control import JobServer

__all__ = ["main"]


async def serve(run_dir: Path, *, local: str, listen: str | None, started: float, token: str) -> int:
    """Serve one job from its first agent to its end; the exit status."""
    clock = SystemClock()
    spec = msgspec.json.decode((run_dir / "job.json").read_bytes(), type=JobSpec)
    with (
        EventLog(run_dir / EVENTS, clock=clock) as events,
        EventLog(run_dir / STEPS, clock=clock) as steps,
    ):
        progress = Progress(run=str(run_dir), started=started)
        master = Master(spec, progress, events=events, steps=steps, clock=clock)
        server = JobServer(local, listen, token=token, converse=master.converse, answer=master.answer)
        await server.start()
        contact = {"address": server.address, "token": token, "pid": os.getpid()}
        write_whole(run_dir / "master.json", msgspec.json.encode(contact), mode=0o600)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, master.stop, "it was asked to stop")
        loop.add_reader(sys.stdin.fileno(), _when_left_alone, master)
        ticking = asyncio.create_task(master.tick())
        await master.ended.wait()
        await master.see_agents_off()
        ticking.cancel()
        (run_dir / "master.json").unlink(missing_ok=True)
        await server.stop()
    return 0 if master.outcome in (Outcome.DONE, Outcome.SUSPENDED) else 1


def _when_left_alone(master: Master) -> None:
    """The command that started this run is gone: end as if it had been asked to."""
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        master.stop("the command that started it is gone")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.master", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--local", required=True, help="unix:PATH for this host")
    parser.add_argument("--listen", help="HOST:PORT for other hosts")
    parser.add_argument("--started", type=float, required=True, help="when the user typed the command")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    token = os.environ["BRIM_TOKEN"]
    work = serve(
        arguments.run_dir,
        local=arguments.local,
        listen=arguments.listen,
        started=arguments.started,
        token=token,
    )
    sys.exit(asyncio.run(work))


if __name__ == "__main__":
    main()
