"""The processor time of a master for each step and host: see README.md.

The master is a real one, with its journal and records. Its agents are not: one process plays all of
them, whose workers compute nothing, so a step is made as fast as everybody hears of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import msgspec
import psutil

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import spread, table
from brim.coordination.job.barrier import COMMIT
from brim.coordination.job.session import Outbox
from brim.domain.job import JobSpec, WorkerRange
from brim.host.clock import SystemClock
from brim.master.entries import Before, Began
from brim.master.loop import Master
from brim.master.records import Records
from brim.wire import messages as wire
from brim.wire.control import JobServer, open_stream

WORKERS = 2  # on each host
FACTS = wire.Facts(
    samples=1 << 20,
    test_samples=0,
    steps=1 << 20,
    steps_per_epoch=1 << 10,
    global_batch_size=1 << 10,
    epochs=1 << 10,
    seed=0,
    clip_norm=None,
    on_nan="stop",
    block_size=1,
    order="shuffled",
    order_size=1 << 20,
    parameters=1000,
    quarantined=0,
    quarantine_path="",
    versions={},
    start_method="fork",
    transport="shared memory",
)


async def serve(folder: Path, port: int, hosts: int, token: str, *, profile: bool) -> None:
    """A master of a job on so many hosts, until it is killed or its standard input ends."""
    clock, maximum = SystemClock(), hosts * WORKERS
    spec = JobSpec(
        file="none.py",
        parameters={},
        workers=WorkerRange(minimum=maximum, maximum=maximum),
        micro_batches=max(8, 1 << (maximum - 1).bit_length()),
        spares=0,
        epochs=1 << 10,
    )
    records = Records(folder)

    def begin(life: int, before: Before) -> Began:
        wall, now = clock.wall(), clock.now()
        return Began(
            at=wall,
            now=now,
            attempt="1",
            life=life,
            spec=spec,
            run=str(folder),
            started=wall,
            before=before,
            places={f"a{number}": WORKERS for number in range(hosts)},
        )

    master = Master(records.open("1", begin, clock), records, clock=clock)
    listening = socket.create_server(("127.0.0.1", port), backlog=256)
    server = JobServer(
        f"unix:{folder}/master.sock",
        listening,
        token=token,
        converse=master.converse,
        answer=master.answer,
    )
    await server.start()
    ticking = asyncio.create_task(master.tick())
    profiler = cProfile.Profile() if profile else contextlib.nullcontext()
    with profiler:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    ticking.cancel()
    if isinstance(profiler, cProfile.Profile):
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


class Agent:
    """An agent whose workers are always ready."""

    def __init__(self, number: int, address: str, token: str) -> None:
        self.name, self.steps = f"a{number}", 0
        self._stream = open_stream(address, token=token)
        self._outbox: Outbox[wire.AgentMessage] = Outbox()
        self._heard = self._round = 0
        self._ready: set[str] = set()
        self._mine: list[str] = []

    async def live(self) -> None:
        join = wire.JoinJob(agent=self.name, session=uuid.uuid4().hex, host=self.name)
        await self._stream.send(wire.FromAgent(0, 0, join))
        async for parcel in self._stream.messages():
            self._outbox.acknowledge(parcel.heard)
            if parcel.number:
                self._heard = parcel.number
                await self._take(parcel.message)

    async def _say(self, message: wire.AgentMessage) -> None:
        number = self._outbox.put(message)
        await self._stream.send(wire.FromAgent(number, self._heard, message))

    async def _take(self, message: wire.MasterMessage) -> None:
        match message:
            case wire.StartWorkers(workers=workers):
                for worker in workers:
                    await self._say(wire.WorkerStarted(worker=worker, pid=1))
                    hello = wire.Hello(address="127.0.0.1:1", layout="", facts=FACTS)
                    await self._say(wire.FromWorker(worker=worker, message=hello))
            case (
                wire.ToWorker(message=wire.InstallRound(world=world))
                | wire.InstallRound(world=world)
            ):
                own_workers = [
                    member.worker for member in world.members if member.agent == self.name
                ]
                if world.round > self._round:
                    self._round, self._mine = world.round, own_workers
                    for worker in own_workers:
                        installed = wire.Installed(round=world.round, step=self.steps)
                        await self._say(wire.FromWorker(worker=worker, message=installed))
                    await self._arrive()
            case wire.ReleaseTogether():
                self.steps += 1
                await self._arrive()

    async def _arrive(self) -> None:
        parts = [wire.MicroReport(0, micro, micro, micro + 1, 7, 0.5) for micro in range(2)]
        seconds = dict.fromkeys(("data", "compute", "wait", "reduce", "apply"), 0.0012345)
        report = msgspec.msgpack.encode(wire.StepReport(epoch=0, parts=parts, seconds=seconds))
        await self._say(
            wire.ArriveTogether(
                round=self._round,
                step=self.steps,
                phase=COMMIT,
                payloads=[report] * len(self._mine),
            )
        )


async def measure(hosts: int, seconds: float, *, profile: bool = False) -> tuple[float, float]:
    """Milliseconds of the master's processor for a step and host, and steps a second."""
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        token = secrets.token_hex(16)
        command = [sys.executable, "-m", "benchmarks.network.master", "--serve", folder]
        command += ["--port", str(port), "--hosts", str(hosts), *["--profile"] * profile]
        environment = {**os.environ, "PYTHONPATH": str(repository()), "BRIM_TOKEN": token}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        agents = [Agent(number, f"127.0.0.1:{port}", token) for number in range(hosts)]
        lives = [asyncio.create_task(agent.live()) for agent in agents]
        try:
            deadline = time.monotonic() + 60
            while min(agent.steps for agent in agents) < 20:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError(f"the job of {hosts} hosts has made no steps")
                await asyncio.sleep(0.05)
            cpu_before, first, started = _cpu(process.pid), agents[0].steps, time.monotonic()
            await asyncio.sleep(seconds)
            spent, steps_made = _cpu(process.pid) - cpu_before, agents[0].steps - first
            return 1000 * spent / steps_made / hosts, steps_made / (time.monotonic() - started)
        finally:
            for life in lives:
                life.cancel()
            assert process.stdin is not None
            process.stdin.close()
            if not profile:
                process.kill()
            process.wait()


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rows(counts: list[int], *, seconds: float, turns: int) -> list[list[object]]:
    """For each number of hosts, the time for a step and host, and for a step."""
    found = []
    for hosts in counts:
        milliseconds = [asyncio.run(measure(hosts, seconds))[0] for _ in range(turns)]
        found.append(
            [hosts, spread(milliseconds, digits=3), spread([hosts * time for time in milliseconds])]
        )
    return found


HEAD = ["hosts", "for a step and host (ms)", "for a step (ms)"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.master")
    parser.add_argument("--serve", type=Path, help="be the master, with its files in this folder")
    parser.add_argument("--port", type=int)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="of the first number of hosts")
    arguments = parser.parse_args()
    if arguments.serve:
        token = os.environ["BRIM_TOKEN"]
        served = serve(
            arguments.serve, arguments.port, arguments.hosts[0], token, profile=arguments.profile
        )
        asyncio.run(served)
    elif arguments.profile:
        asyncio.run(measure(arguments.hosts[0], arguments.seconds, profile=True))
    else:
        print(table(HEAD, rows(arguments.hosts, seconds=arguments.seconds, turns=arguments.turns)))


if __name__ == "__main__":
    main()
