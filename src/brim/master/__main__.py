"""`python -m brim.master RUN_DIR`: the master of one job; it ends when the job does."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec

from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock
from brim.host.log import write_to_stderr
from brim.host.process import MASTER, be_called, die_with_parent, outlive_parent
from brim.master.entries import Before, Began
from brim.master.keeping import keep
from brim.master.loop import Master
from brim.master.records import Records
from brim.storage.bundles import digest_of
from brim.storage.contact import CONTACT, Contact, write_contact
from brim.storage.file_stores import is_url, location_of
from brim.storage.followed import FollowedRecords
from brim.storage.job_file import bundle_of, change_of_source, kept_bundle, read_job
from brim.storage.received import ReceivedFiles
from brim.wire.control import JobServer


class MasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a master is started with.

    Args:
        run_dir: of its run.
        local: `unix:PATH`, where the agent of this host finds it.
        listen: `HOST:PORT` at which other hosts find it, or None.
        listener: descriptor of the socket that listens there, held open by the process that starts
            masters.
        attempt: names this start of the job; with the same one, a master takes over from one that
            died.
        started: seconds since 1970 when the user typed the command.
        places: workers by agent, to begin with; empty where it does not matter on which they are.
    """

    run_dir: Path
    local: str
    listen: str | None
    listener: int | None
    attempt: str
    started: float
    places: dict[str, int]


async def serve(settings: MasterSettings, *, token: str) -> None:
    """Serve one job from its first agent, or from where the last master died, to its end."""
    clock, run_dir = SystemClock(), settings.run_dir
    spec = read_job(run_dir)

    def begin(life: int, before: Before) -> Began:
        return Began(
            at=clock.wall(),
            now=clock.now(),
            attempt=settings.attempt,
            life=life,
            spec=spec,
            run=str(run_dir),
            started=settings.started,
            before=before,
            note=change_of_source(run_dir, spec),
            places=settings.places,
        )

    records = Records(run_dir)
    decisions = records.open(settings.attempt, begin, clock)
    bundle = bundle_of(run_dir, spec.bundle) if spec.bundle else kept_bundle(run_dir)
    digest = digest_of(bundle) if bundle else ""
    master = Master(decisions, records, clock=clock, bundle=digest)
    remote = socket.socket(fileno=settings.listener) if settings.listener is not None else None
    checkpoints = location_of(spec.checkpoints, run_dir.absolute())
    server = JobServer(
        settings.local,
        remote,
        token=token,
        converse=master.converse,
        answer=master.answer,
        files=None if is_url(checkpoints) else ReceivedFiles(Path(checkpoints)),
        bundle=bundle,
        records=partial(FollowedRecords, run_dir),
        has_terminal=spec.tty,
    )
    master.called_at = server.called_at
    await server.start()
    contact = Contact(
        address=settings.listen or settings.local, token=token, pid=os.getpid(), keeper=os.getppid()
    )
    write_contact(run_dir, contact)
    outlive_parent()  # from here on it can be found, and ended; or it says how the run ended
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, master.stop, "it was asked to stop")
    loop.add_reader(sys.stdin.fileno(), _when_left_alone, master)
    ticking = asyncio.create_task(master.tick())
    closed = asyncio.Event()
    keeping = asyncio.create_task(keep(run_dir, spec.runs, ended=closed)) if spec.runs else None
    await master.ended.wait()
    await master.see_agents_off()
    await server.see_followers_off()
    ticking.cancel()
    (run_dir / CONTACT).unlink(missing_ok=True)
    await server.stop()
    records.close()
    closed.set()
    if keeping is not None:
        await keeping


def _when_left_alone(master: Master) -> None:
    """The command that started this run is gone: end as if it had been asked to."""
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        master.stop("the command that started it is gone")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.master", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--local", required=True, help="unix:PATH for this host")
    parser.add_argument("--listen", help="HOST:PORT at which other hosts find it")
    parser.add_argument("--listener", type=int, help="descriptor of the socket that listens there")
    parser.add_argument("--attempt", required=True, help="names this start of the job")
    parser.add_argument(
        "--started", type=float, required=True, help="when the user typed the command"
    )
    parser.add_argument("--places", type=json.loads, default={}, help="workers by agent, as JSON")
    parser.add_argument(
        "--keeper", type=int, default=os.getppid(), help="process that starts another in its place"
    )
    arguments = parser.parse_args()
    settings = msgspec.convert(vars(arguments), MasterSettings)
    die_with_parent(arguments.keeper)  # nobody could find one that takes the journal now
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_to_stderr()
    be_called(MASTER)
    try:
        asyncio.run(serve(settings, token=os.environ["BRIM_TOKEN"]))
    except EnvironmentFault as fault:
        sys.exit(str(fault))
    except OSError as error:
        sys.exit(f"cannot write to {settings.run_dir}: {error}")


if __name__ == "__main__":
    main()
