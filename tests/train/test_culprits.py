"""A sample that kills its reader is found and named."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from brim.data.culprits import find_deadly_sample
from brim.data.feed import Feed
from brim.errors import UserCodeError
from brim.storage.trails import SamplesRead, Trail, trails_of_the_dead
from train.test_feed import requests

SIZE = 20


def die_by(number: int) -> Callable[[], None]:
    def die() -> None:
        faulthandler.disable()  # pytest's would fill the log
        os.kill(os.getpid(), number)

    return die


def leave() -> None:
    os._exit(3)


def fail() -> None:
    raise ValueError("no image")


class Images(Dataset[int]):
    """Samples of which one acts in its own way."""

    def __init__(self, act: Callable[[], None] = lambda: None, deadly: int = 13) -> None:
        self.act, self.deadly = act, deadly

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        if index == self.deadly:
            self.act()
        return index


@pytest.mark.parametrize(
    ("act", "manner"),
    [
        (die_by(signal.SIGSEGV), "signal 11, SIGSEGV"),
        (die_by(signal.SIGABRT), "signal 6, SIGABRT"),
        (leave, "exit 3"),
    ],
    ids=["segmentation fault", "abort", "exit"],
)
def test_deadly_sample_is_named(act: Callable[[], None], manner: str) -> None:
    found = find_deadly_sample(Images(act), [4, 13, 5])
    assert str(found).startswith(
        f"sample 13 of Images kills the process that reads it ({manner})\n"
        "  hint: repair it, or leave it out"
    )


@pytest.mark.parametrize("act", [lambda: None, fail, die_by(signal.SIGKILL)])
def test_other_ends_are_no_samples_fault(act: Callable[[], None]) -> None:
    assert find_deadly_sample(Images(act), [4, 13, 5]) is None


def test_processes_that_read_name_the_sample() -> None:
    feed = Feed(Images(die_by(signal.SIGSEGV)), seed=0, global_batch_size=8, loaders=2)
    with pytest.raises(UserCodeError, match="sample 13 of Images"):
        list(feed.read(requests(feed)))
    feed.close()


# Trails -------------------------------------------------------------------------------------------


def in_dead_process(act: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_dead_workers_trail_is_used_once(tmp_path: Path) -> None:
    steps = SamplesRead(size=SIZE, epoch=1, start=8, stop=12)
    in_dead_process(lambda: Trail(tmp_path, "w1").note(steps))
    in_dead_process(lambda: Trail(tmp_path, "w2").note(steps._replace(stop=8)))
    Trail(tmp_path, "w3").note(steps)
    assert list(trails_of_the_dead(tmp_path)) == [steps]
    assert list(trails_of_the_dead(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [".reading-w3"]


def test_fatal_reads_leave_a_trail(tmp_path: Path) -> None:
    data = Images(die_by(signal.SIGSEGV))

    def read() -> None:
        feed = Feed(data, seed=0, global_batch_size=8)
        feed.trail = Trail(tmp_path, "w1")
        list(feed.read(requests(feed)))

    in_dead_process(read)
    (steps,) = trails_of_the_dead(tmp_path)
    feed = Feed(data, seed=0, global_batch_size=8)
    with pytest.raises(UserCodeError, match="sample 13 of Images"):
        feed.look_into(steps)
    feed.look_into(steps._replace(size=SIZE + 1))  # of other data
    Feed(Images(), seed=0, global_batch_size=8).look_into(steps)
