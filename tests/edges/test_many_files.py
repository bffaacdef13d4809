"""A process with more than 1,024 open files, such as a script that maps one for each sample, waits
as any other.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from brim.agent.births import Forked
from brim.host.process import readable
from brim.wire.frames import frame
from brim.wire.link import WorkerLink
from brim.wire.messages import Codec, Dismissed, WorkerBound
from brim.wire.peer import Listener, connect

_MANY = 1_100  # `select.select` takes no descriptor above 1,023


@pytest.fixture
def many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2 * _MANY:
        pytest.skip("this host allows no process as many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * _MANY), limits[1]))
    with contextlib.ExitStack() as files:
        for _ in range(_MANY):
            files.enter_context(open(os.devnull))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_waits_below_a_millisecond_stay_that_short() -> None:
    own_end, other_end = socket.socketpair()

    def waited() -> float:
        started = time.perf_counter()
        assert readable([own_end.fileno()], 50e-6) == set()
        return time.perf_counter() - started

    with own_end, other_end:
        assert (
            min(waited() for _ in range(50)) < 0.0009
        )  # the shortest: this host may have more to do


@pytest.mark.usefixtures("many_files")
def test_a_worker_hears_its_agent() -> None:
    own_end, other_end = socket.socketpair()
    with own_end, other_end:
        link = WorkerLink(other_end)
        assert not link.pending()
        own_end.sendall(frame(Codec[WorkerBound](WorkerBound).encode(Dismissed())))
        assert link.receive(5.0) == Dismissed()


@pytest.mark.usefixtures("many_files")
def test_workers_reach_each_other() -> None:
    listener = Listener("127.0.0.1", b"secret")

    def call() -> None:
        connect(
            listener.address,
            "hello",
            b"secret",
            timeout=60.0,
            patience=60.0,
            cancelled=lambda: False,
        ).close()

    with contextlib.closing(listener), ThreadPoolExecutor() as pool:
        calling = pool.submit(call)
        listener.accept("hello", timeout=60.0, cancelled=lambda: False).close()
        calling.result()


@pytest.mark.usefixtures("many_files")
@pytest.mark.skipif(sys.platform != "linux", reason="forks are watched by pidfds")
def test_the_end_of_a_fork_is_seen() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    assert Forked(pid).wait(60.0) == 3
