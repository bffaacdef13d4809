"""`python -m brim.backends.up STATE_DIR`.

The scheduler of one cluster, put together with its backend; jobs outlive it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

from brim.backends.authority import authority_of
from brim.backends.environment import keep_environment_of_jobs
from brim.backends.joined import TOKEN, FarNodes
from brim.backends.live import LiveBackend
from brim.backends.nodes import Nodes
from brim.backends.runs import RunProcesses
from brim.decoding import UNDECODABLE
from brim.domain.cluster import ClusterSpec, Node
from brim.errors import BrimError, EnvironmentFault, SpecError, StorageFault
from brim.host.clock import SystemClock
from brim.host.log import write_to_stderr
from brim.host.own_kind import kind_of_this_host
from brim.host.process import be_called, open_many_files
from brim.host.shortage import words_of_shortage
from brim.host.threads import Threads
from brim.scheduler.cluster_file import read_cluster_file
from brim.scheduler.cycles import decode_cycle
from brim.scheduler.lives import Lives
from brim.scheduler.loop import CLUSTER, Scheduler
from brim.scheduler.server import certificate_for, listen, offer
from brim.storage.book import Book
from brim.storage.contact import SCHEDULER_LOCK
from brim.storage.database import Alarm, Database
from brim.storage.files import is_lock_of, lock
from brim.storage.migrations import migrate
from brim.storage.scheduler_clock import own_clock
from brim.telemetry.log_limit import LogLimit
from brim.wire.listening import joined_address

_log = logging.getLogger(__name__)
_QUESTIONS = 64  # to masters, at once
# bytes that the logs of the scheduler and of its nodes' agents may have together
_OWN_LOGS = 64 << 20


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a scheduler's process.

    Args:
        state_dir: has its database, the jobs' run directories, and how to reach it.
        host, port: where it listens; port 0 picks one.
        foreground: somebody looks on, whose Ctrl-C ends it as SIGTERM does.
        cluster: a file that describes the cluster again; None: it is as it was described last.
        nodes: `HOST:PORT` at which nodes of other hosts join, or None.
        insecure: nothing is encrypted towards clients of other hosts.
    """

    state_dir: Path
    host: str
    port: int
    foreground: bool
    cluster: Path | None
    nodes: str | None = None
    insecure: bool = False


async def serve(settings: UpSettings, lock_file: int) -> None:
    """Schedule until everything is suspended, or SIGTERM: that leaves the jobs training.

    Args:
        lock_file: descriptor of the lock of the state directory.
    """
    state_dir = settings.state_dir.resolve()
    clock = own_clock(state_dir, keep=True)
    (state_dir / "jobs").mkdir(exist_ok=True)
    authority = authority_of(state_dir)
    nodes = Nodes(state_dir / "nodes", clock)

    spec = read_cluster_file(settings.cluster) if settings.cluster else None
    far = await _far_nodes(settings.nodes, state_dir, clock) if settings.nodes else None
    begin = _Beginning(state_dir, nodes, clock, spec, far)
    lives = Lives(
        begin, is_there=lambda: is_lock_of(lock_file, state_dir / SCHEDULER_LOCK), clock=clock
    )
    listener = listen(settings.host, settings.port)
    certificate = (
        None if settings.insecure else certificate_for(listener, authority, named=settings.host)
    )
    # A question to a master that hangs holds a thread until it is given up.
    threads = Threads(_QUESTIONS)
    threads.submit(int)  # one at least: it is there for all that comes
    asyncio.get_running_loop().set_default_executor(threads)
    scheduling = asyncio.create_task(lives.run())
    own_logs = LogLimit(state_dir, "scheduler.log", "nodes/*/node.log", limit=_OWN_LOGS)
    limiting = asyncio.create_task(own_logs.keep())
    for number in (signal.SIGTERM, *((signal.SIGINT,) if settings.foreground else ())):
        asyncio.get_running_loop().add_signal_handler(number, scheduling.cancel)
    if settings.foreground:
        address = joined_address(*listener.getsockname()[:2])
        sys.stderr.write(
            f"scheduling at {address}; Ctrl-C ends the scheduler, and its jobs train on\n"
        )
    try:
        await offer(
            lives,
            listener,
            state_dir,
            authority=authority,
            certificate=certificate,
            nodes=far.address if far is not None else "",
            scheduling=scheduling,
        )
        if not (scheduling.cancelled() or lives.leaves):
            await nodes.end()
    finally:
        limiting.cancel()
        if lives.kills or not lives.is_there():  # nobody else would ever find what it started
            nodes.kill()
            if far is not None:
                far.kill()
        lives.close()
        if far is not None:
            far.stop()


async def _far_nodes(address: str, state_dir: Path, clock: SystemClock) -> FarNodes:
    """Listen for nodes of other hosts, and tell how they join."""
    host, _, port = address.rpartition(":")
    far = FarNodes(state_dir, host.strip("[]"), clock)
    await far.start(int(port))
    _log.warning("nodes join at %s with the token in %s", far.address, TOKEN)
    return far


class _Beginning:
    """Opens the files on disk, for each life again.

    Args:
        spec: the cluster, described again, which is written down once; None: it is as it was
            described last.
        far: the nodes of other hosts; None: none can join.
    """

    def __init__(
        self,
        state_dir: Path,
        nodes: Nodes,
        clock: SystemClock,
        spec: ClusterSpec | None = None,
        far: FarNodes | None = None,
    ) -> None:
        self._far = far
        self._path = state_dir / "scheduler.db"
        self._jobs = state_dir / "jobs"
        self._nodes = nodes
        self._clock = clock
        self._spec = spec

    def __call__(self, alarm: Alarm) -> Scheduler:
        """Raises StorageFault where it cannot be read."""
        migrate(self._path)
        database = Database(self._path, create=False, alarm=alarm)
        try:
            return self._begin(database)
        except (LookupError, TypeError, SpecError, *UNDECODABLE) as error:
            database.close()
            raise StorageFault(f"{self._path} cannot be decoded: {error}") from error
        except BaseException:
            database.close()
            raise

    def _begin(self, database: Database) -> Scheduler:
        book = Book(database)
        book.forget_unused_bundles()
        described = database.get(CLUSTER)
        near_nodes = set[str]()  # of this host, also those that are not described any more
        if self._spec is not None:
            with contextlib.suppress(*UNDECODABLE):
                near_nodes |= _names(msgspec.json.decode(described or b"", type=ClusterSpec))
            described = msgspec.json.encode(self._spec)
            database.put(CLUSTER, described)
            self._spec = None
        if described is None:
            raise StorageFault(f"{self._path} has no cluster: brim up makes one")
        spec = msgspec.json.decode(described, type=ClusterSpec)
        if self._far is not None:
            near_nodes |= _names(spec)
            self._far.expect(_joined_nodes(database, near_nodes), spec.cluster)
        kind = kind_of_this_host()
        processes = RunProcesses(self._jobs, self._nodes, book.bundle, self._far, kind)
        backend = LiveBackend(book, processes, spec, clock=self._clock)
        address = self._far.host if self._far is not None else "127.0.0.1"
        return Scheduler(
            book,
            database,
            backend,
            jobs_folder=self._jobs,
            clock=self._clock,
            address=address,
        )


def _names(spec: ClusterSpec) -> set[str]:
    return {node.id for node in spec.cluster.nodes}


def _joined_nodes(database: Database, near_nodes: Collection[str]) -> list[Node]:
    """The nodes that had joined an earlier scheduler, by its last cycle.

    Args:
        near_nodes: names of this host's own.
    """
    last = database.last_cycle()
    if last is None:
        return []
    try:
        cluster = decode_cycle(last.content)[0].cluster
    except EnvironmentFault:  # then they join as if they were new
        return []
    return [node for node in cluster.nodes if node.id not in near_nodes and node.devices]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.backends.up", description=__doc__)
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--foreground", action="store_true")
    parser.add_argument("--cluster", type=Path)
    parser.add_argument("--nodes")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument(
        "--env", action="append", default=[], help="a variable that jobs have beside the usual ones"
    )
    arguments = vars(parser.parse_args())
    names = [name for name in arguments.pop("env") if name in os.environ]
    keep_environment_of_jobs({name: os.environ[name] for name in names})
    settings = msgspec.convert(arguments, UpSettings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_to_stderr(usual="warning")
    if os.geteuid() == 0:
        # what is done with the rights of a tenant's account is not done with our groups'
        os.setgroups([])
    be_called("brim-scheduler")
    open_many_files()  # everyone who waits holds a connection
    try:
        lock_file = lock(settings.state_dir / SCHEDULER_LOCK)
        if lock_file is None:
            sys.exit(f"another scheduler runs in {settings.state_dir}")
        asyncio.run(serve(settings, lock_file))
    except BrimError as error:
        sys.exit(str(error))
    except (OSError, MemoryError, RuntimeError) as error:
        if not (words := words_of_shortage(error)) and not isinstance(error, OSError):
            raise
        sys.exit(f"{settings.state_dir}: {words or error}")


if __name__ == "__main__":
    main()
