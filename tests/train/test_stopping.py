"""All processes of a command stop at one step, though they hear of it at different ones."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import brim
from brim.train.entry import stopping as stopping_module

FORK = multiprocessing.get_context("fork")
MOST_STEPS = 50_000  # more than a minute of them: nobody ends before it is asked to
TO_MEET = 3.0  # seconds that a process waits for others that have gone


def script(
    rank: int, size: int, store: str, left: SimpleQueue[tuple[int, int]], *, agrees: bool
) -> None:
    """A training loop as torchrun starts it: a sum of all processes in each step."""
    term: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: term.append(number))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    stop: Callable[[], bool] = brim.stopping if agrees else lambda: bool(term)
    stopping_module._listens = False
    stop()  # SIGTERM counts from its first call on
    left.put((rank, 0))
    for step in range(1, MOST_STEPS):
        dist.all_reduce(torch.ones(4))
        time.sleep(0.0005 * (rank + 1))
        if stop():
            left.put((rank, step))
            break
    os._exit(0)


class Command:
    """The processes of a command; each tells the step at which it left."""

    def __init__(self, size: int, *, agrees: bool) -> None:
        self.left: SimpleQueue[tuple[int, int]] = FORK.SimpleQueue()
        store = Path(tempfile.mkdtemp()) / "store"
        self.processes = [
            FORK.Process(
                target=script, args=(n, size, str(store), self.left), kwargs={"agrees": agrees}
            )
            for n in range(size)
        ]
        for process in self.processes:
            process.start()
        for _ in self.processes:
            self.left.get()  # all have met

    def signal(self, rank: int) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)

    def steps(self, timeout: float) -> dict[int, int]:
        """Wait until all have left, or for so long; return the step of each that has."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            process.kill()
            process.join()
        found = {}
        while not self.left.empty():
            rank, step = self.left.get()
            found[rank] = step
        return found


def test_without_agreement_one_leaves_and_others_wait() -> None:
    command = Command(3, agrees=False)
    command.signal(0)
    command.processes[0].join(60.0)
    assert list(command.steps(TO_MEET)) == [0]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_processes_that_hear_apart_leave_together(size: int) -> None:
    chance = random.Random(size)
    command = Command(size, agrees=True)
    ranks = list(range(size))
    chance.shuffle(ranks)
    for rank in ranks[: chance.randint(1, size)]:  # some hear nothing at all
        time.sleep(chance.uniform(0.0, 0.01))
        command.signal(rank)
    steps = command.steps(60.0)
    assert sorted(steps) == list(range(size))
    assert len(set(steps.values())) == 1, steps


def test_single_process_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_module, "_listens", False)
    monkeypatch.setattr(stopping_module, "_has_term", False)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        assert not brim.stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert brim.stopping()
        assert heard == [signal.SIGTERM]  # the script's own handler hears it, too
    finally:
        signal.signal(signal.SIGTERM, before)
