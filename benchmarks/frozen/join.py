"""A newcomer takes the state of a GPT with frozen weights over loopback; prints bytes and seconds.

    python -m benchmarks.frozen.join --times 9

Both ends are in this process, on two threads, and have built the same network, as forks have.
"""

from __future__ import annotations

import argparse
import inspect
import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from benchmarks.frozen.lora_gpt import dataset, loss, model, optimizer
from brim.train.context import spec_of_a_loner
from brim.train.job import Job
from brim.train.state import transfer


class Relay:
    """The stream between both ends: it counts what goes through."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.near = socket.create_connection(server.getsockname())
            self.far, _ = server.accept()
        for end in (self.near, self.far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self._write: Any = vars(transfer)["write_all"]
        vars(transfer)["write_all"] = self._count

    def _count(self, peer: socket.socket, data: Sequence[memoryview], **options: Any) -> None:
        self.sent += sum(view.nbytes for view in data)
        self._write(peer, data, **options)

    def close(self) -> None:
        vars(transfer)["write_all"] = self._write
        self.near.close()
        self.far.close()


def built() -> Job:
    torch.manual_seed(0)
    network = model()
    spec = replace(spec_of_a_loner(), micro_batches=1, audit=False)
    return Job(network, optimizer(network), spec=spec, context=None)


def own_tensors(job: Job, way: Any) -> dict[str, Any]:
    """What the way is told of frozen tensors; a brim that knows of none is told nothing."""
    if "frozen" not in inspect.signature(way).parameters:
        return {}
    return {"frozen": job.parts.state.frozen().values()}


def join(giver: Job, newcomer: Job) -> tuple[int, float]:
    """Bytes that go over the stream, and seconds until the newcomer has the state."""
    stream, state = Relay(), giver.parts.state
    common: dict[str, Any] = {"timeout": 30.0, "cancelled": lambda: False}
    send, receive = transfer.send_state, transfer.receive_state
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            lambda: send(stream.near, state.get(), **common, **own_tensors(giver, send))
        )
        tree = receive(stream.far, **common, **own_tensors(newcomer, receive))
        newcomer.parts.state.put(tree)
        duration = time.perf_counter() - started
        sending.result()
    stream.close()
    if newcomer.parts.state.digests() != state.digests():
        raise RuntimeError("the newcomer has another state")
    return stream.sent, duration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=9)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    giver = built()
    for batch in giver.batches(dataset("test"), global_batch_size=4, epochs=1):
        giver.step(loss(giver.model(batch.inputs), batch.target))
    found = [join(giver, built()) for _ in range(times + 1)][1:]
    print(json.dumps({"bytes": found[0][0], "seconds": [seconds for _, seconds in found]}))


if __name__ == "__main__":
    main()
