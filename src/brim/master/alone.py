"""A master that is no agent's child: it begins a run, or goes on with one whose master is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from brim.coordination.job.membership import RunOutcome
from brim.domain.job import JobSpec
from brim.domain.quantities import format_duration
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, monotonic, wall
from brim.host.process import MASTER, Orphans, be_called
from brim.master.decisions import Decisions
from brim.master.entrance import Entrance, FoundJournal
from brim.master.entries import Before, Began, TookOver
from brim.master.keeping import keep
from brim.master.loop import Master
from brim.master.records import JOURNAL, Records
from brim.runs.followers import Followers
from brim.runs.invite import invitation
from brim.storage.bundles import digest_of
from brim.storage.contact import CONTACT, Contact, write_contact
from brim.storage.file_stores import is_url, location_of
from brim.storage.files import write_in_place
from brim.storage.followed import FollowedRecords
from brim.storage.heartbeat import HeartbeatFile
from brim.storage.job_file import bundle_of, change_of_source, keep_code, kept_bundle, write_job
from brim.storage.journal import set_aside_if_damaged
from brim.storage.received import ReceivedFiles
from brim.wire.control import JobServer
from brim.wire.listening import joined_address, listen_on, split_address
from brim.wire.private import make_private
from brim.wire.proofs import derived

_BACKLOG = 128  # calls that may wait
_TO_RETURN = 2.0  # seconds that agents have which did not offer their copies in time
_CLEAR_AWAY = 5.0  # seconds between two looks for processes that nobody waits for
_POLL_INTERVAL = 0.5  # seconds between two looks for agents
_LONGEST_SUMMARY = 4096  # bytes: Kubernetes keeps the last so many of what a container leaves


class LoneMaster(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that such a master is started with.

    Args:
        run_dir: absolute; it exists.
        listen: `HOST:PORT` at which agents call.
        token: of this start of the run.
        spec: of a run that it begins; None: it goes on with one.
        patience: seconds without any agent after which the run is suspended.
        rejoining: seconds that agents have which keep a copy of the journal of this start, before it
            counts as one that was never begun, or is lost; None: it is known which.
        note: a warning for followers of a run that it begins, or nothing.
        shows_token: readers of its output may know the token.
        heartbeat: a file that is touched for its monitor.
        summary: a file to which the summary of a run that ends is written.
        loggers: that are told of the run, besides those that it had before.
    """

    run_dir: Path
    listen: str
    token: str
    spec: JobSpec | None
    patience: float
    rejoining: float | None = None
    note: str = ""
    shows_token: bool = True
    heartbeat: Path | None = None
    summary: Path | None = None
    loggers: tuple[str, ...] = ()


def has_begun(run_dir: Path, token: str) -> bool:
    """Return whether the journal of a directory is of the start of a run that has this token.

    One that is damaged is put aside.

    Raises:
        EnvironmentFault: another master writes it.
    """
    if damage := set_aside_if_damaged(run_dir / JOURNAL):
        _say(damage)
    own_state = _own_state(run_dir)
    return own_state is not None and own_state.state.began.attempt == _attempt_of(token)


def _attempt_of(token: str) -> str:
    """Return the name of a start of a run, which follows from its token and does not tell it."""
    return derived(token, "attempt").hex()[:32]


def stand_alone(settings: LoneMaster) -> int:
    """Be the master of a run until it ends, or until SIGTERM: the exit status.

    Raises:
        EnvironmentFault: the port is taken, or there is nothing to go on from.
        OSError: the directory cannot be written.
    """
    be_called(MASTER)
    return asyncio.run(_serve(settings))


async def _serve(settings: LoneMaster) -> int:
    run_dir = settings.run_dir
    host, port = split_address(settings.listen)
    hint = "--listen HOST:0 lets the system choose a port"
    listener = listen_on(host, port, backlog=_BACKLOG, hint=hint)
    address = joined_address(host, listener.getsockname()[1])
    entrance = Entrance(run_dir, SystemClock())
    server = JobServer(
        f"unix:{make_private(run_dir / 'control')}/master",
        listener,
        token=settings.token,
        converse=entrance.converse,
        answer=entrance.answer,
        files=entrance.files,
        records=partial(FollowedRecords, run_dir),
    )
    await server.start()
    leaving = _asked_to_leave()
    heartbeat, leads = HeartbeatFile(settings.heartbeat), asyncio.Event()
    beating = asyncio.create_task(heartbeat.keep_beating(leads.is_set))
    clearing = asyncio.create_task(_clear_away_orphans())
    contact = Contact(address=address, token=settings.token, pid=os.getpid(), keeper=os.getpid())
    write_contact(run_dir, contact)
    _say(invitation(address, token=settings.token if settings.shows_token else "…"))
    try:
        beginning = asyncio.create_task(_begin(settings, entrance, server))
        outcomes: list[asyncio.Future[Any]] = [beginning, leaving]
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not beginning.done():
            beginning.cancel()
            return 0
        master, records = beginning.result()
        leads.set()
        async with _followed(run_dir, settings.loggers), _keeping(master.began, records, run_dir):
            status = await _lead(master, leaving, patience=settings.patience)
            if master.ended.is_set() and settings.summary is not None:
                _write_summary(settings.summary, master.summary)
            await server.see_followers_off()
            return status
    finally:
        (run_dir / CONTACT).unlink(missing_ok=True)
        await server.stop()
        beating.cancel()
        clearing.cancel()
        heartbeat.end()


@contextlib.asynccontextmanager
async def _keeping(beginning: Began, records: Records, run_dir: Path) -> AsyncIterator[None]:
    """Keep the records where the run has a place for them, by its first name; close them at the end."""
    closed, runs = asyncio.Event(), beginning.spec.runs
    name = Path(beginning.run).name
    keeping = asyncio.create_task(keep(run_dir, runs, ended=closed, name=name)) if runs else None
    try:
        yield
    finally:
        records.close()
        closed.set()
        if keeping is not None:
            await keeping


class _Remarks:
    """Remarks on a run, on this process's standard error."""

    def note(self, text: str) -> None:
        _say(text)


@contextlib.asynccontextmanager
async def _followed(run_dir: Path, loggers: Iterable[str]) -> AsyncIterator[None]:
    """Have the processes of the run's loggers, if it has some, for as long as this leads it."""
    followers, remarks = Followers(run_dir, loggers), _Remarks()

    async def tend() -> None:
        while True:
            with contextlib.suppress(OSError):  # no disk or memory is left: later, perhaps
                followers.tend(remarks)
            await asyncio.sleep(_POLL_INTERVAL)

    tending = asyncio.create_task(tend())
    try:
        yield
    finally:
        tending.cancel()
        with contextlib.suppress(OSError):
            for note in await asyncio.to_thread(followers.finish):
                _say(note)


def encode_summary(summary: dict[str, Any]) -> bytes:
    """Return a summary as JSON, and no more of it than Kubernetes keeps: half of it would be none.

    Where it is longer, metrics are left out, and then all but what says how the run ended.
    """
    fewest = {name: summary[name] for name in ("exit", "steps", "weights_sha256")}
    encoded = (
        msgspec.json.encode(candidate) + b"\n"
        for candidate in (summary, summary | {"metrics": {}}, fewest)
    )
    return next(candidate for candidate in encoded if len(candidate) <= _LONGEST_SUMMARY)


def _write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write how the run ended; a container has a file for that, which is there already."""
    try:
        write_in_place(path, encode_summary(summary))
    except OSError as error:
        _say(f"cannot write the summary to {path}: {error.strerror}")


async def _clear_away_orphans() -> None:
    """Do the duties of a container's first process."""
    orphans = Orphans()
    while os.getpid() == 1:
        orphans.clear_away()
        await asyncio.sleep(_CLEAR_AWAY)


def _asked_to_leave() -> asyncio.Future[None]:
    """Done once this process is asked to hand the run over."""
    loop = asyncio.get_running_loop()
    leave_request: asyncio.Future[None] = loop.create_future()

    def leave() -> None:
        if not leave_request.done():
            leave_request.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    return leave_request


async def _lead(master: Master, leaving: asyncio.Future[None], *, patience: float) -> int:
    """Lead a run to its end, or until somebody else is to; the exit status."""
    background = [
        asyncio.create_task(master.tick()),
        asyncio.create_task(_wait_for_agents(master, patience)),
    ]
    ending = asyncio.create_task(master.ended.wait())
    outcomes: list[asyncio.Future[Any]] = [ending, leaving]
    try:
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not master.ended.is_set():
            await master.see_off_who_leaves()
        if not master.ended.is_set():
            master.leave()
            _say("handed over: its agents wait for another brim master")
            return 0
        await master.see_agents_off()
        return int(master.outcome is RunOutcome.FAILED)
    finally:
        for task in (*background, ending):
            task.cancel()


async def _wait_for_agents(master: Master, patience: float) -> None:
    """End a run without workers, and without newcomers."""
    last = monotonic()
    while True:
        if master.has_agents:
            last = monotonic()
        elif monotonic() - last > patience:
            master.stop(f"no agent has called for {format_duration(patience)}")
            return
        await asyncio.sleep(_POLL_INTERVAL)


async def _begin(
    settings: LoneMaster, entrance: Entrance, server: JobServer
) -> tuple[Master, Records]:
    spec, rejoining = settings.spec, settings.rejoining
    if spec is None or (rejoining is not None and await entrance.is_rejoined(timeout=rejoining)):
        decisions, records, clock = await _from_copies(settings, entrance)
    else:
        decisions, records, clock = _from_spec(settings, spec)
    spec = decisions.spec
    run_dir = settings.run_dir
    checkpoints = location_of(spec.checkpoints, run_dir)
    if not is_url(checkpoints):
        entrance.files.folder = ReceivedFiles(Path(checkpoints))
    bundle = bundle_of(run_dir, spec.bundle) if spec.bundle else kept_bundle(run_dir)
    server.keep_code(bundle)
    master = Master(
        decisions,
        records,
        clock=clock,
        returning=_TO_RETURN,
        bundle=digest_of(bundle) if bundle else "",
    )
    master.called_at = lambda: server.called_at() + clock.ahead  # by the run's time
    entrance.open(master)
    return master, records


def _from_spec(settings: LoneMaster, spec: JobSpec) -> tuple[Decisions, Records, SystemClock]:
    clock, run_dir = SystemClock(), settings.run_dir
    keep_code(run_dir, spec)
    write_job(run_dir, spec)

    def begin(life: int, before: Before) -> Began:
        return Began(
            at=clock.wall(),
            now=clock.now(),
            attempt=_attempt_of(settings.token),
            life=life,
            spec=spec,
            run=str(run_dir),
            started=clock.wall(),
            before=before,
            note="; ".join(filter(None, (settings.note, change_of_source(run_dir, spec)))),
            stands_alone=True,
            origin=uuid.uuid4().hex,
        )

    if settings.note:
        _say(settings.note)
    records = Records(run_dir)
    return records.open("", begin, clock), records, clock


async def _from_copies(
    settings: LoneMaster, entrance: Entrance
) -> tuple[Decisions, Records, SystemClock]:
    """Go on from the longest journal that is known, this directory's or an agent's copy.

    Raises:
        EnvironmentFault: there is none.
        OSError: it cannot be written.
    """
    run_dir = settings.run_dir
    own_state = _own_state(run_dir)
    found = await entrance.find(own_state.state if own_state else None, patience=settings.patience)
    records = Records(run_dir)
    decisions = records.peek()
    if decisions is None:
        raise EnvironmentFault(f"the journal in {run_dir} cannot be followed by this version")
    if decisions.outcome is not None and settings.rejoining is None:
        raise EnvironmentFault(
            f"the run has ended ({decisions.outcome.value}): brim report {run_dir}"
        )
    state = decisions.state
    write_job(run_dir, decisions.spec)
    # Spans of time go on where the last master's ended, whatever this host's clock says.
    passed = max(0.0, wall() - state.at)
    clock = SystemClock(offset_ahead=state.now + passed - monotonic())
    note = _words_on(found)
    entry = TookOver(
        at=clock.wall(),
        now=clock.now(),
        life=state.life + 1,
        origin=uuid.uuid4().hex,
        run=str(run_dir),
        note=note,
    )
    if decisions.outcome is not None:  # not all of its agents may know
        _say(f"the run has ended ({decisions.outcome.value})")
        return decisions, records, clock
    _say(f"goes on at step {decisions.progress.step}, {note}")
    return records.go_on(decisions, entry), records, clock


def _own_state(run_dir: Path) -> Decisions | None:
    """Return where the journal of the directory leads to, if it has one."""
    if not (run_dir / JOURNAL).exists():
        return None
    records = Records(run_dir)
    with contextlib.closing(records):
        return records.peek()


def _words_on(found: FoundJournal) -> str:
    source = f"from the copy of agent {found.agent}" if found.agent else "from its own journal"
    if not found.missing:
        return source
    agents = "agent that keeps" if found.missing == 1 else "agents that keep"
    return f"{source}; {found.missing} more {agents} one did not call in time"


def _say(text: str) -> None:
    print(f"brim: {text}", file=sys.stderr, flush=True)  # noqa: T201
