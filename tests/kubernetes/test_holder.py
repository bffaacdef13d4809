"""Processes that want one Lease, on a real API server: one is stopped, one is cut off, one leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.kubernetes.client.access import KUBECONFIG, find_access
from brim.kubernetes.client.holder import LeaseHolder, LeaseLost
from brim.kubernetes.client.lease import LeaseTerms
from brim_lab.kubernetes.control_plane import API_SERVER, ControlPlane

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("holds_lease.py")
DURATION, RENEW_WITHIN = 3.0, 2.0  # of the program's terms
PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow


class Candidacy:
    """A process that wants the Lease, and its messages."""

    def __init__(self, plane: ControlPlane, namespace: str, identity: str, folder: Path) -> None:
        self._said = folder / identity
        with self._said.open("wb") as output, (folder / f"{identity}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), namespace, identity],
                stdout=output,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
            )

    def times(self, word: str) -> list[float]:
        """When it said this."""
        lines = [line.split() for line in self._said.read_text().splitlines(keepends=True)]
        return [float(line[1]) for line in lines if len(line) == 2 and line[0] == word]

    def wait(self, word: str) -> float:
        """Wait until it says this; return when it did."""
        end = time.monotonic() + PATIENCE
        while not self.times(word):
            assert time.monotonic() < end, f"it never says {word!r}"
            time.sleep(0.02)
        return self.times(word)[0]


@pytest.fixture
def started(namespace: str, tmp_path: Path) -> Iterator[list[Candidacy]]:
    """The processes of a test, which end with it."""
    all_: list[Candidacy] = []
    yield all_
    for candidacy in all_:
        candidacy.process.kill()
        candidacy.process.wait()


def begin(
    started: list[Candidacy], plane: ControlPlane, namespace: str, identity: str, folder: Path
) -> Candidacy:
    started.append(Candidacy(plane, namespace, identity, folder))
    return started[-1]


def make(plane: ControlPlane, namespace: str) -> None:
    body = {"metadata": {"name": namespace}}
    plane.api.ask("/api/v1/namespaces", method="POST", body=body)


def test_stopped_holder_has_lost_the_lease_on_waking(
    api_server: ControlPlane, namespace: str, tmp_path: Path, started: list[Candidacy]
) -> None:
    make(api_server, namespace)
    first = begin(started, api_server, namespace, "first", tmp_path)
    first.wait("holds")
    second = begin(started, api_server, namespace, "second", tmp_path)
    # The holder renews it meanwhile: the other one waits, however long.
    second.wait("sees")
    time.sleep(DURATION + 0.3)
    assert not second.times("begins")

    stopped = time.monotonic()
    first.process.send_signal(signal.SIGSTOP)
    begins = second.wait("holds")
    assert begins - stopped > DURATION - RENEW_WITHIN
    first.process.send_signal(signal.SIGCONT)
    first.wait("lost")
    assert first.times("holds")[-1] < begins
    assert not second.times("lost")

    first.process.wait(PATIENCE)
    third = begin(started, api_server, namespace, "third", tmp_path)
    third.wait("sees")
    # Who leaves says so, and the next one need not wait.
    leaves = time.monotonic()
    second.process.send_signal(signal.SIGTERM)
    second.wait("released")
    assert third.wait("begins") - leaves < DURATION
    assert third.times("begins")[0] > second.times("ends")[-1]


def test_a_slept_host_loses_the_lease(api_server: ControlPlane, namespace: str) -> None:
    make(api_server, namespace)
    slept = 0.0
    holder = LeaseHolder(
        find_access({KUBECONFIG: str(api_server.kubeconfig)}),
        namespace=namespace,
        name="one",
        identity="sleeper",
        now=lambda: time.monotonic() + slept,
    )

    async def work() -> None:
        nonlocal slept
        assert holder.holds()
        slept = 3600.0
        assert not holder.holds()
        await asyncio.sleep(PATIENCE)

    with pytest.raises(LeaseLost, match="not renewed in 10 s"):
        asyncio.run(holder.run(work))


def test_a_computing_holder_keeps_the_lease(api_server: ControlPlane, namespace: str) -> None:
    make(api_server, namespace)
    terms = LeaseTerms(duration=6.0, renew_within=5.5, retry=0.5)
    holder = LeaseHolder(
        find_access({KUBECONFIG: str(api_server.kubeconfig)}),
        namespace=namespace,
        name="one",
        identity="busy",
        terms=terms,
    )
    seen: list[bool] = []

    async def work() -> None:
        end = time.monotonic() + terms.duration
        decides = threading.Thread(target=compute, args=(end,))
        decides.start()
        compute(end)
        decides.join()
        seen.append(holder.holds())

    asyncio.run(holder.run(work))
    assert seen == [True]


def compute(end: float) -> None:
    """Have the interpreter busy until then, as cycles of many jobs have it."""
    while time.monotonic() < end:
        sum(range(10_000))


def test_an_isolated_holder_ends_before_its_successor(
    api_server: ControlPlane, tmp_path: Path, namespace: str, started: list[Candidacy]
) -> None:
    make(api_server, namespace)
    first = begin(started, api_server, namespace, "first", tmp_path)
    first.wait("holds")
    second = begin(started, api_server, namespace, "second", tmp_path)
    second.wait("sees")
    api_server[API_SERVER].send(signal.SIGSTOP)  # it takes connections, and says nothing
    stopped = time.monotonic()
    try:
        lost = first.wait("lost")
        assert lost - stopped < DURATION
        assert first.times("holds")[-1] - stopped < RENEW_WITHIN
    finally:
        api_server[API_SERVER].send(signal.SIGCONT)  # it is that of other tests, too
    assert second.wait("begins") > first.times("ends")[-1]
