"""Reading beside the step gives the same as reading in the step, through any fate of the processes
that do it.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from brim.data import loaders as loaders_module
from brim.data import parcels
from brim.data.feed import Feed, Read, requests
from brim.domain.batch import Schedule
from brim.errors import EnvironmentFault, SpecError, UserCodeError
from brim.host.process import be_called, close_in_children, named_threads

SIZE, BATCH, PARTS = 40, 8, 2


class Noisy(Dataset[dict[str, Any]]):
    """Augmented by all that people draw from, and read by the process `__reader__`."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.rand(3) + random.random() + np.random.rand()
        return {"noise": noise, "index": index, "__reader__": os.getpid()}


class Stream(IterableDataset[dict[str, Any]]):
    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(SIZE):
            yield {"noise": number + random.random(), "__reader__": os.getpid()}


def ask(feed: Feed, **options: Any) -> Iterator[Any]:
    schedule = Schedule(samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=2)
    return requests(
        schedule, **{"parts": PARTS, "micro_batches": range(PARTS), "after": 0, **options}
    )


@pytest.fixture
def new_feed() -> Iterator[Any]:
    feeds: list[Feed] = []

    def new(data: Any, loaders: int | None, **options: Any) -> Feed:
        if not isinstance(data, DataLoader):
            options["global_batch_size"] = BATCH
        feeds.append(Feed(data, seed=0, loaders=loaders, **options))
        return feeds[-1]

    yield new
    for feed in feeds:
        feed.close()


def noise(reads: Iterable[Read]) -> list[Any]:
    return [
        (read.request, read.crc32, torch.as_tensor(read.sample["noise"]).tolist()) for read in reads
    ]


def readers(reads: Iterable[Read]) -> set[int]:
    return {int(pid) for read in reads for pid in read.sample["__reader__"]}


@pytest.mark.parametrize("data", [Noisy(), Stream()], ids=["map", "stream"])
def test_samples_ignore_the_number_of_loaders(data: Any, new_feed: Any) -> None:
    in_step, *in_loaders = [
        list(feed.read(ask(feed))) for feed in (new_feed(data, count) for count in (0, 1, 2, 3))
    ]
    assert readers(in_step) == {os.getpid()}
    for count, reads in enumerate(in_loaders, 1):
        assert noise(reads) == noise(in_step)
        assert os.getpid() not in readers(reads)
        assert len(readers(reads)) == (1 if isinstance(data, Stream) else count)


@pytest.mark.parametrize(
    ("data", "loaders", "expected"),
    [
        (Noisy(), None, 0),
        (Noisy(), 2, 2),
        (DataLoader(Noisy(), BATCH, num_workers=2), None, 2),
        (DataLoader(Noisy(), BATCH, num_workers=2), 0, 0),
        (DataLoader(Stream(), BATCH, num_workers=2), None, 1),
        (TensorDataset(torch.zeros(SIZE)), 2, 0),
        (DataLoader(TensorDataset(torch.zeros(SIZE)), BATCH, num_workers=2), None, 0),
    ],
)
def test_loader_counts_are_as_requested(
    data: Any, loaders: int | None, expected: int, new_feed: Any
) -> None:
    assert new_feed(data, loaders).loaders == expected


@pytest.mark.parametrize("data", [Noisy(), Stream()], ids=["map", "stream"])
def test_new_rounds_reuse_loader_processes(data: Any, new_feed: Any) -> None:
    whole = noise(Feed(data, seed=0, global_batch_size=BATCH).read(ask(new_feed(data, 0))))
    feed = new_feed(data, 2)
    first = feed.read(ask(feed))
    first_reads = [next(first) for _ in range(5)]
    first.close()
    second = list(feed.read(ask(feed, after=2)))
    assert noise([*first_reads[:4], *second]) == whole
    assert readers(second) <= readers(first_reads)


def test_rounds_may_change_loader_counts(new_feed: Any) -> None:
    whole = noise(Feed(Noisy(), seed=0, global_batch_size=BATCH).read(ask(new_feed(Noisy(), 0))))
    feed = new_feed(Noisy(), 4)
    counts, reads, used = (4, 2, 1, 3), [], []
    other_children = {child.pid for child in psutil.Process().children()}  # of fixtures that last
    for step, count in enumerate(counts):
        part = feed.read(ask(feed, after=step), loaders=count)
        of_step = [next(part) for _ in range(PARTS)]
        used.append({child.pid for child in psutil.Process().children()} - other_children)
        part.close()
        reads += of_step
    assert noise(reads) == whole[: PARTS * len(counts)]
    assert [len(pids) for pids in used] == list(counts)
    assert used[2] < used[1] < used[0]


class Slow(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.2)
        return super().__getitem__(index)


def test_new_rounds_ignore_old_requests(new_feed: Any) -> None:
    feed = new_feed(DataLoader(Slow(), BATCH, num_workers=1, prefetch_factor=20), None)
    first = feed.read(ask(feed))
    next(first)
    first.close()
    started = time.monotonic()
    next(feed.read(ask(feed, after=3)))
    # Two micro-batches of 0.8 s, and not the twenty that were asked for.
    assert time.monotonic() - started < 10.0


class Wrong(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise KeyError(f"no sample {index}")


def test_what_reading_raises_comes_with_the_users_traceback(new_feed: Any) -> None:
    feed = new_feed(Wrong(), 2, shuffle=False)
    with pytest.raises(UserCodeError) as failure:
        next(feed.read(ask(feed)))
    lines = failure.value.trace.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{__file__}"' in lines[1]
    assert lines[-1] == "KeyError: 'no sample 0'"


def test_loader_errors_read_like_step_errors(new_feed: Any) -> None:
    feed = new_feed(Stream(), 1, samples=SIZE + 1)
    with pytest.raises(SpecError) as refusal:
        list(feed.read(ask(feed)))
    assert str(refusal.value).startswith(
        "Stream: got a stream that ended after 40 samples of epoch 1"
    )
    assert refusal.value.hint == "samples=40"


def unsendable(samples: list[Any]) -> Any:
    return lambda: samples


def test_unsendable_samples_are_user_errors(new_feed: Any) -> None:
    feed = new_feed(DataLoader(Noisy(), BATCH, num_workers=1, collate_fn=unsendable), None)
    with pytest.raises(UserCodeError, match="unsendable"):
        next(feed.read(ask(feed)))


class Mortal(Noisy):
    """A process that reads sample 20 dies of it, as long as there is something to die of."""

    def __init__(self, poison: Path) -> None:
        self.poison = poison

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 20 and self.poison.exists():
            if self.poison.read_text() == "once":
                self.poison.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_dead_loaders_are_replaced(tmp_path: Path, new_feed: Any) -> None:
    poison = tmp_path / "poison"
    whole = new_feed(Mortal(poison), 0)
    expected = noise(whole.read(ask(whole)))
    poison.write_text("once")
    feed = new_feed(Mortal(poison), 2)
    reads = list(feed.read(ask(feed)))
    assert not poison.exists()
    assert noise(reads) == expected


def test_repeatedly_dying_loaders_are_given_up(tmp_path: Path, new_feed: Any) -> None:
    poison = tmp_path / "poison"
    poison.write_text("always")
    feed = new_feed(Mortal(poison), 2)
    with pytest.raises(EnvironmentFault, match=r"died 3 times over one micro-batch \(signal 9\)"):
        list(feed.read(ask(feed)))


class Changed(Exception):
    pass


def test_something_else_is_looked_at_while_nothing_comes(new_feed: Any) -> None:
    class Stuck(Noisy):
        def __getitem__(self, index: int) -> dict[str, Any]:
            signal.pause()
            raise AssertionError

    def look() -> None:
        raise Changed

    other_children = psutil.Process().children()  # of fixtures that last
    feed = new_feed(Stuck(), 1)
    with pytest.raises(Changed):
        next(feed.read(ask(feed), meanwhile=look))
    feed.close()
    assert not {*psutil.Process().children()} - {*other_children}


def test_loaders_are_initialised_as_by_torch(new_feed: Any) -> None:
    class Initialised(Noisy):
        offset = 0

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"noise": self.offset, "info": get_worker_info() is None}

    def initialise(number: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert (info.id, info.num_workers) == (number, 2)
        info.dataset.offset = 10 + number  # type: ignore[attr-defined]

    feed = new_feed(
        DataLoader(Initialised(), BATCH, num_workers=2, worker_init_fn=initialise), None
    )
    samples = [micro_batch.sample for micro_batch in feed.read(ask(feed))]
    assert [sample["noise"][0].item() for sample in samples[:4]] == [10, 11, 10, 11]
    assert all(sample["info"].all() for sample in samples)


WORKER = """
import os, signal, sys, time
from torch.utils.data import Dataset
from brim.domain.batch import Schedule
from brim.data.feed import Feed, requests

class Slow(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index > 20:
            signal.pause()
        return os.getpid()

signal.signal(signal.SIGTERM, lambda *_: print("asked to leave", flush=True))
feed = Feed(Slow(), seed=0, global_batch_size=8, shuffle=False, loaders=2)
schedule = Schedule(samples=100, global_batch_size=8, epochs=1)
reads = feed.read(requests(schedule, parts=2, micro_batches=range(2), after=0))
print(*{int(pid) for _ in range(2) for pid in next(reads).sample}, flush=True)
time.sleep(60)
"""


def test_loaders_die_with_their_worker() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        loaders = [psutil.Process(int(pid)) for pid in worker.stdout.readline().split()]
        assert len(loaders) == 2
        assert {loader.name() for loader in loaders} == {"brim-loader-0", "brim-loader-1"}
        try:
            loaders[0].terminate()
            deadline = time.monotonic() + 10.0
            while loaders[0].status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.01)
            assert loaders[0].status() == psutil.STATUS_ZOMBIE
        finally:
            worker.kill()
        assert "asked to leave" not in worker.stdout.read()
    assert psutil.wait_procs(loaders, timeout=10)[1] == []


def test_loaders_keep_no_worker_sockets(new_feed: Any) -> None:
    agent, link = socket.socketpair()
    close_in_children(link)
    feed = new_feed(Noisy(), 1)
    next(feed.read(ask(feed)))
    link.send(b"x")
    link.close()
    agent.settimeout(5.0)
    assert (agent.recv(2), agent.recv(2)) == (b"x", b"")
    agent.close()


# Parcels ------------------------------------------------------------------------------------------


def through(value: Any) -> Any:
    near_end, far_end = Pipe()
    parcels.send(near_end, value)
    received = parcels.receive(far_end)
    near_end.close()
    far_end.close()
    return received


BASE = torch.arange(24.0)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.reshape(2, 3, 4).transpose(0, 2),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        BASE[3:7],
        BASE[::5],
        BASE[:1].expand(4, 6),
        torch.tensor(3, dtype=torch.int16),
        torch.rand(5).to(torch.bfloat16),
        torch.rand(5) > 0.5,
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.empty(0, 3),
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.rand(300, 400),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_a_tensor_arrives_as_it_was(tensor: Tensor) -> None:
    received = through({"tensor": tensor, "beside": "it"})["tensor"]
    assert (received.dtype, received.layout, received.requires_grad) == (
        tensor.dtype, tensor.layout, tensor.requires_grad,
    )  # fmt: skip
    assert torch.equal(received.to_dense(), tensor.to_dense())
    if (
        tensor.layout is torch.strided
        and tensor.numel()
        and not tensor.requires_grad
        and not tensor.is_conj()
    ):
        assert received.stride() == tensor.stride()
        assert received.data_ptr() % 64 == tensor.data_ptr() % 64


def test_received_tensors_are_writable_and_lasting() -> None:
    first, second = through((torch.zeros(100_000), torch.ones(3)))
    first += 1
    assert first.sum() == 100_000
    assert second.tolist() == [1.0] * 3


class OnThreads(Dataset[float]):
    """Has each sample computed by a thread that is there before the fork, as polars does."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(be_called, "pool-0").result()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> float:
        return self.pool.submit(float, index).result()


def test_stuck_readers_are_noticed(new_feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders_module, "_TO_COMPUTE", 0.5)
    feed, warnings = new_feed(OnThreads(), 1), list[str]()
    feed.warn = warnings.append

    def meanwhile() -> None:
        if warnings:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        next(feed.read(ask(feed), meanwhile=meanwhile))
    assert "forked beside threads that it does not have (pool-0)" in warnings[0]
    feed.dataset.pool.shutdown()


def test_busy_readers_get_no_warning(new_feed: Any) -> None:
    feed, warnings = new_feed(Noisy(), 1), list[str]()
    feed.warn = warnings.append
    with ThreadPoolExecutor(1) as pool:
        pool.submit(be_called, "pool-0").result()
        assert len(list(feed.read(ask(feed)))) == SIZE // BATCH * PARTS * 2
    assert not warnings


def test_no_reader_waits_for_threads_of_a_driver() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(be_called, "cuda-EvtHandlr").result()
        assert "cuda-EvtHandlr" not in named_threads()
