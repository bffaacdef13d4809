"""A host that is killed, or whose cable is cut, is given up soon, and comes again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from e2e.running import (
    LONG_JOB,
    ROOT,
    Run,
    check_ledger,
    joining,
    started,
    undisturbed,
    until,
)
from e2e.test_pods import hurry

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]

# Two ends of a stream between workers: what each sees, and when.
_STREAM = """
import sys, time
from brim.coordination.job.participant import PeerLost
from brim.wire.peer import Listener, connect, read_exactly, write_all
def never(): return False
if sys.argv[1] == "listen":
    listener = Listener(sys.argv[2], bytes(32))
    print(listener.address, flush=True)
    peer = listener.accept("round 1", timeout=30, cancelled=never)
else:
    peer = connect(sys.argv[2], "round 1", bytes(32), timeout=30, patience=30, cancelled=never)
print("there", flush=True)
sys.stdin.readline()
try:
    if sys.argv[3] == "write":
        write_all(peer, [memoryview(bytes(1 << 26))], timeout=60, cancelled=never)
    read_exactly(peer, [memoryview(bytearray(1 << 27))], timeout=60, cancelled=never)
except PeerLost as lost:
    print(time.monotonic(), lost, flush=True)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 4) as four:
        yield four


@contextlib.contextmanager
def _stream(host: Host, *words: str) -> Iterator[subprocess.Popen[str]]:
    pipe, environment = subprocess.PIPE, {"PYTHONPATH": f"{ROOT}/src"}
    command = [*host.prefix, sys.executable, "-c", _STREAM, *words]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_workers_give_up_a_disconnected_host(hosts: tuple[Host, ...]) -> None:
    """In each direction, whether they wait for it, or have something for it; both ends do."""
    first, *other_hosts = hosts
    cuts: tuple[dict[str, bool], ...] = ({}, {"from_host": False}, {"to_host": False})
    with contextlib.ExitStack() as stack:
        ends: dict[str, subprocess.Popen[str]] = {}
        for host in other_hosts:
            for direction in ("write", "read"):
                far_end = stack.enter_context(_stream(host, "listen", host.address, "read"))
                near_end = stack.enter_context(_stream(first, "call", _line(far_end), direction))
                assert _line(near_end) == _line(far_end) == "there"
                ends |= {
                    f"{direction} from {host.number}": near_end,
                    f"{direction} on {host.number}": far_end,
                }
        began = time.monotonic()
        for host, cut in zip(other_hosts, cuts, strict=True):
            host.cable.cut(**cut)
        for process in ends.values():
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        told = time.monotonic()  # this process may have been held up since the first cut
        for name, process in ends.items():
            moment, _, explanation = _line(process).partition(" ")
            assert float(moment) - began > 2.0, f"{name}: {explanation}"
            assert float(moment) - told < 9.0, f"{name}: {explanation}"


def test_killed_and_disconnected_hosts_come_back(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    calm = undisturbed(*LONG_JOB)
    path = hosts[0].folder / "run"
    slow = ("--set", "pause=0.3", "--set", "hurry=/run/hurry")
    options = ("--workers", "3", "--workers-here", "1", "--spares", "0", *slow)
    listen = ("--listen", "10.77.0.1:7077", "--agents", "3")
    with (
        started(path, "train", *LONG_JOB, *options, *listen, prefix=hosts[0].prefix) as run,
        contextlib.ExitStack() as guests,
    ):

        def join(host: Host) -> None:
            agent = joining(path, "--workers", "1", address="10.77.0.1:7077", prefix=host.prefix)
            guests.callback(agent.wait)
            guests.callback(agent.kill)

        def goes_on_with(workers: int, act: Callable[[], object] = lambda: None) -> float:
            """Seconds from an act to a step of so many workers in a round behind it."""
            rounds = run.events("round")
            round_before, started_at = rounds[-1]["round"] if rounds else 0, time.monotonic()
            act()

            def has_gone_on() -> bool:
                named, steps = run.events("round"), run.steps()
                return (
                    bool(steps)
                    and named[-1]["world_size"] == workers
                    and steps[-1]["round"] == named[-1]["round"] > round_before
                )

            until(has_gone_on, f"a step of {workers}", run)
            return time.monotonic() - started_at

        join(hosts[1])
        join(hosts[2])
        goes_on_with(3)
        for _ in range(3):  # a busy machine may be late once
            seconds = goes_on_with(2, hosts[2].kill)
            hosts[2].start()
            goes_on_with(3, lambda: join(hosts[2]))
            if seconds < 2.0:
                break
        assert seconds < 2.0  # 0.1 s, and a step
        cut = partial(hosts[1].cable.cut, to_host=False)
        assert 2.0 < goes_on_with(2, cut) < 10.0  # 3 s, and a step
        # Its agent ends its workers, and joins as a new one.
        goes_on_with(3, hosts[1].cable.mend)
        hurry(hosts)
        summary = run.finish()
    assert summary["weights_sha256"] == calm["weights_sha256"]
    check_ledger(path)
    pauses = [event["seconds"] for event in run.events("re_formed")]
    assert all(0.0 <= pause < 10.0 for pause in pauses), pauses
    assert len({agent for agent in _agents(run) if agent.startswith("host-2-")}) == 2


def _agents(run: Run) -> set[str]:
    return {event["agent"] for event in run.events("worker") if event["agent"]}
