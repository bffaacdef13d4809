"""`python -m brim.agent`: the agent of one node."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from brim.agent.births import StartProcess, start_anew
from brim.agent.code import keep_code_apart
from brim.agent.conversation import TO_ANSWER, Conversation, Displaced, places_of
from brim.agent.copy import JournalCopy
from brim.agent.keeper import Keeper
from brim.agent.loop import Agent, AgentSettings
from brim.agent.templates import Template, Workplace, make_workplace, start_template
from brim.domain.printable import printable
from brim.errors import EnvironmentFault
from brim.host.clock import SystemClock, monotonic, sleep
from brim.host.control_groups import ControlGroup
from brim.host.process import (
    AGENT,
    adopt_orphans,
    be_called,
    children_of,
    end_family,
    exit_on_sigterm,
)
from brim.host.shortage import told_in_words
from brim.storage.copies import CopiedFiles
from brim.storage.heartbeat import HeartbeatFile
from brim.storage.heir import UNHEARD, succession
from brim.storage.job_file import read_job
from brim.wire.control import AgentStream, open_stream
from brim.wire.listening import address_towards

# seconds for what user code left behind: one in an uninterruptible sleep ends when it can
_TO_END = 10.0
_TO_DEPART = (
    25.0  # seconds that workers have to leave at a boundary: platforms give 30 before SIGKILL
)
_TO_LOOK_UP = 0.5  # seconds between two looks for a master whose name is not known yet


def join(
    master: str,
    *,
    token: str,
    room: int | None = None,
    patience: float | None = None,
    machine: str = "",
    heartbeat: HeartbeatFile | None = None,
    workplace: Workplace | None = None,
) -> int:
    """Join a run of another host with workers of this one, until the run ends; the exit status.

    SIGTERM lets this host go: its workers leave at a step boundary.

    Args:
        master: its `HOST:PORT`; several, with commas between them, where it may move to another.
        token: of the run.
        room: workers that this host takes at most; None: as many as are wanted.
        patience: seconds that the master is waited for, at first and where it is gone; None: the
            usual.
        machine: the name of the one that this agent is on, as others are that cannot share memory
            with it; empty: it is alone.
        heartbeat: of this process.
        workplace: that was made for it already; the token is in its environment.

    Raises:
        EnvironmentFault: no master answers, or it does not let this host in.
    """
    addresses = master.split(",")
    heartbeat = heartbeat or HeartbeatFile(None)
    os.environ["BRIM_TOKEN"] = token  # for the template
    workplace = workplace or make_workplace(takes_workers=room != 0)
    try:
        to_answer = TO_ANSWER if patience is None else patience
        host = _address_towards(addresses, patience=to_answer, heartbeat=heartbeat)
    except BaseException:
        workplace.close()
        heartbeat.end()
        raise
    try:
        return _join(addresses, host, token, room, patience, machine, heartbeat, workplace)
    finally:
        heartbeat.end()


def _join(
    addresses: list[str],
    host: str,
    token: str,
    room: int | None,
    patience: float | None,
    machine: str,
    heartbeat: HeartbeatFile,
    workplace: Workplace,
) -> int:
    adopt_orphans()
    for attempt in itertools.count(1):
        if attempt > 1:
            workplace = make_workplace(takes_workers=room != 0)
        exit_on_sigterm(workplace.close)
        with workplace.removal:
            name = f"{socket.gethostname()}-{_own_number()}-{attempt}"
            settings = AgentSettings(
                name=name,
                host=host,
                run_dir=workplace.directory,
                guest=True,
                room=room,
                master=",".join(addresses),
                machine=machine,
            )
            dial = _calling(addresses, token=token)
            try:
                return asyncio.run(
                    _serve(
                        settings, dial, workplace.template, patience=patience, heartbeat=heartbeat
                    )
                )
            except Displaced as displaced:
                print(printable(f"brim: {displaced}; joining again"), file=sys.stderr)  # noqa: T201
            finally:
                _end_what_is_left()
    raise AssertionError("there is always another attempt")


def _be_guest(name: str, master: str, run_dir: Path, start: StartProcess) -> int:
    """Join a run of another host for this host's node, which keeps the directory; the exit status.

    One that the master counts as lost ends: the scheduler starts another.

    Args:
        start: how the template is started, before the job is known: this process forks no more
            once it talks to the master.
    """
    template = start_template(run_dir, start=start)
    host = _address_towards([master], patience=TO_ANSWER)
    settings = AgentSettings(
        name=name, host=host, run_dir=run_dir, guest=True, master=master, machine=_machine()
    )
    dial = partial(open_stream, master, token=os.environ["BRIM_TOKEN"])
    return asyncio.run(_serve(settings, dial, template, starts=True))


def _machine() -> str:
    """Return the name of the machine that this agent is on, if somebody gave it one."""
    return os.environ.get("BRIM_MACHINE", "").strip()


def _end_what_is_left() -> None:
    """End all leftovers of the user's code.

    The job's own processes have ended here. What is left may use devices.
    """
    deadline = monotonic() + _TO_END
    while end_family(children_of(os.getpid())) and monotonic() < deadline:
        sleep(0.01)


def _calling(addresses: list[str], *, token: str) -> Callable[[], AgentStream]:
    """Return a function that calls the addresses in turn."""
    calls = itertools.cycle(partial(open_stream, address, token=token) for address in addresses)
    return lambda: next(calls)()


def _own_number() -> str:
    """Return the number that tells this agent from others of the host, as in containers."""
    return secrets.token_hex(3) if os.getpid() == 1 else str(os.getpid())


def _address_towards(
    addresses: list[str], *, patience: float, heartbeat: HeartbeatFile | None = None
) -> str:
    """Return the address of this host towards a master, whose name may not be known yet.

    Raises:
        EnvironmentFault: it is not known after so many seconds.
    """
    deadline = monotonic() + patience
    while True:
        for master in addresses:
            try:
                return address_towards(master)
            except EnvironmentFault:
                if monotonic() >= deadline:
                    raise
        if heartbeat is not None:
            heartbeat.beat()
        sleep(_TO_LOOK_UP)


async def _serve(
    settings: AgentSettings,
    dial: Callable[[], AgentStream],
    template: Template | None = None,
    *,
    patience: float | None = None,
    starts: bool = False,
    heartbeat: HeartbeatFile | None = None,
) -> int:
    """Serve a run whose master is elsewhere.

    SIGTERM ends this agent and not the run: first its workers leave at a step boundary. A second
    one, or a boundary that does not come, ends them as they are.
    """
    clock, loop = SystemClock(), asyncio.get_running_loop()
    copy = JournalCopy(CopiedFiles(settings.run_dir / "copy")) if settings.guest else None
    master = Conversation(
        settings.name,
        dial=dial,
        keeper=None,
        clock=clock,
        patience=patience,
        starts=starts,
        room=settings.room,
        machine=settings.machine,
        copy=copy,
        calls=places_of(settings.master),
    )
    agent = Agent(settings, master, clock, template)
    serving = asyncio.create_task(agent.run())
    beating = asyncio.create_task(
        (heartbeat or HeartbeatFile(None)).keep_beating(lambda: agent.has_workers)
    )
    departing = False

    def depart() -> None:
        nonlocal departing
        if departing or not master.has_begun:
            serving.cancel()
        else:
            agent.depart()
            loop.call_later(_TO_DEPART, serving.cancel)
        departing = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, depart)
    try:
        return await serving
    except asyncio.CancelledError:
        return 1 if master.has_begun else 0
    except Displaced:
        if departing:
            return 1
        raise
    finally:
        beating.cancel()


async def _serve_and_keep(
    settings: AgentSettings,
    keeper: Keeper,
    template: Template | None,
    dial: Callable[[], AgentStream],
) -> int:
    """Serve a run and keep its master; SIGTERM ends the run."""
    clock = SystemClock()
    unheard = settings.run_dir / UNHEARD if succession() else None
    master = Conversation(
        settings.name,
        dial=dial,
        keeper=keeper,
        clock=clock,
        room=settings.room,
        machine=settings.machine,
        unheard=unheard,
    )
    agent = Agent(settings, master, clock, template)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.ask_to_stop)
    serving, keeping = asyncio.create_task(agent.run()), asyncio.create_task(keeper.run())
    await asyncio.wait([serving, keeping], return_when=asyncio.FIRST_COMPLETED)
    if keeping.done() and keeping.exception() is not None:  # nobody is left to obey
        serving.cancel()
        await asyncio.wait([serving])
        keeping.result()
    try:
        return await serving
    finally:
        await keeper.end()
        await keeping
        master.close()


def main(start: StartProcess = start_anew) -> None:
    """Serve a run of this host.

    Args:
        start: how the template, and the first life of the master, are started.
    """
    try:
        with told_in_words("the agent cannot go on"):
            _serve_as_told(start)
    except EnvironmentFault as fault:
        sys.exit(str(fault))


def _serve_as_told(start: StartProcess) -> None:
    parser = argparse.ArgumentParser(prog="python -m brim.agent", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument(
        "--name", default="a1", help="by which the master knows it, one for each agent of a run"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address that workers of other hosts can reach"
    )
    parser.add_argument("--local", default="", help="unix:PATH of the master on this host")
    parser.add_argument("--guest", help="HOST:PORT of the master, which is on another host")
    parser.add_argument(
        "--join", action="store_true", help="another agent of this host keeps the master"
    )
    parser.add_argument(
        "--keep-code", action="store_true", help="keep the code of the job in the run's directory"
    )
    parser.add_argument(
        "--group", type=Path, help="directory of a control group that is this agent's to enter"
    )
    parser.add_argument(
        "--listener", type=int, help="descriptor of the socket on which other hosts call"
    )
    parser.add_argument("master", nargs="*", help="after --: further arguments of the master")
    arguments = parser.parse_args()
    run_dir, local, token = arguments.run_dir, arguments.local, os.environ["BRIM_TOKEN"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_called(AGENT)
    group = ControlGroup(arguments.group) if arguments.group else None
    if group is not None:
        group.enter()
    adopt_orphans()  # workers, which their template forks and leaves to this process
    if arguments.guest:
        try:
            sys.exit(_be_guest(arguments.name, arguments.guest, run_dir, start))
        except (EnvironmentFault, Displaced) as fault:
            sys.exit(str(fault))
        finally:
            _end_what_is_left()
    room = None if arguments.join else read_job(run_dir).workers_here
    settings = AgentSettings(
        name=arguments.name, host=arguments.host, run_dir=run_dir, room=room, machine=_machine()
    )
    template = None if room == 0 else start_template(run_dir, arguments.host, start)

    if arguments.keep_code:
        keep_code_apart(run_dir)

    def dial() -> AgentStream:
        return open_stream(local, token=token)

    if arguments.join:
        work = _serve(settings, dial, template, starts=True)
    else:
        command = [str(run_dir), "--local", local, "--keeper", str(os.getpid()), *arguments.master]
        keep = [] if arguments.listener is None else [arguments.listener]
        command += [word for descriptor in keep for word in ("--listener", str(descriptor))]
        keeper = Keeper(command, run_dir, start, keep)
        work = _serve_and_keep(settings, keeper, template, dial)
    try:
        sys.exit(asyncio.run(work))
    except (EnvironmentFault, Displaced) as fault:
        sys.exit(str(fault))
    finally:
        _end_what_is_left()
        if group is not None:
            group.leave()


if __name__ == "__main__":
    main()
