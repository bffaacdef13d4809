"""Requests that wait together are computed together, by one thread, on one version of the model."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from brim.errors import BrimError, EnvironmentFault
from brim.serving.bundle import Model
from brim.serving.inputs import Inputs, join

__all__ = ["Answer", "Batches", "Busy"]

_TO_END = 10.0  # seconds that the batch under way is waited for


class Answer(NamedTuple):
    """The answer to a request.

    Args:
        version: of the model that gave it.
        columns: of predictions, a value for each row.
    """

    version: str
    columns: dict[str, list[Any]]


class Busy(BrimError):
    """More rows wait than may."""


@dataclass(slots=True)
class _Request:
    read: Callable[[Model], tuple[Inputs, int]]
    size: int
    answer: asyncio.Future[Answer]


@dataclass(slots=True)
class _Mark:
    """Reached once every batch before it is computed."""

    reached: asyncio.Future[None]


class Batches:
    """Computes requests in a thread of its own. Its methods are called by the thread of the event loop.

    Args:
        model: that answers at first.
        most: rows of a batch; a request with more is a batch of its own. 0: each request is.
        wait: seconds that a batch waits for further requests.
        room: rows that may wait.
    """

    def __init__(self, model: Model, *, most: int, wait: float, room: int) -> None:
        self._model, self._most, self._wait, self._room = model, most, wait, room
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[_Request | _Mark | None] = queue.SimpleQueue()
        self._rows = 0  # that wait or are being computed
        self.batches = 0  # so far
        self._thread = threading.Thread(target=self._run, name="brim-predict", daemon=True)
        self._thread.start()

    @property
    def model(self) -> Model:
        """The version that answers from the next batch on."""
        return self._model

    async def predict(self, read: Callable[[Model], tuple[Inputs, int]], size: int) -> Answer:
        """Answer a request.

        Args:
            read: gives the inputs of the request and how many rows they are.
            size: about how many that will be.

        Raises:
            Busy: too many wait already.
            BrimError: the request cannot be answered.
        """
        if self._rows and self._rows + size > self._room:
            raise Busy("too many rows are waiting: ask again")
        request = _Request(read, size, self._loop.create_future())
        self._rows += size
        self._waiting.put(request)
        try:
            return await request.answer
        finally:
            self._rows -= size

    async def use(self, model: Model) -> None:
        """Have another version answer; returns once nothing is computed with the one before."""
        self._model = model
        mark = _Mark(self._loop.create_future())
        self._waiting.put(mark)
        await mark.reached

    def close(self) -> None:
        """Compute what waits, and no more."""
        self._waiting.put(None)
        self._thread.join(_TO_END)

    # In the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        left: _Request | _Mark | None = None
        while True:
            first = left or self._waiting.get()
            left = None
            if first is None:
                return
            if isinstance(first, _Mark):
                self._deliver([(first.reached, None)])
                continue
            batch, left, ends = self._gather(first)
            self._compute(batch, self._model)
            if ends:
                return

    def _gather(self, first: _Request) -> tuple[list[_Request], _Request | _Mark | None, bool]:
        """Those that are computed with the first, what was taken too much, and whether that was the end."""
        batch, rows, end = [first], first.size, time.monotonic() + self._wait
        while rows < self._most:
            left = end - time.monotonic()
            try:
                each = self._waiting.get(timeout=left) if left > 0 else self._waiting.get_nowait()
            except queue.Empty:
                break
            if not isinstance(each, _Request) or rows + each.size > self._most:
                return batch, each, each is None
            batch.append(each)
            rows += each.size
        return batch, None, False

    def _compute(self, batch: Sequence[_Request], model: Model) -> None:
        read: list[tuple[_Request, Inputs, int]] = []
        done: list[tuple[asyncio.Future[Any], Any]] = []
        for request in batch:
            try:
                read.append((request, *request.read(model)))
            except Exception as error:  # noqa: BLE001 - whatever a request does, the others are answered
                done.append((request.answer, _told(error)))
        try:
            answers = _predict(model, [(inputs, rows) for _, inputs, rows in read]) if read else []
            done += [(request.answer, answer) for (request, _, _), answer in zip(read, answers, strict=True)]
        except Exception as error:  # noqa: BLE001 - the user's model, whose caller is told
            if len(read) > 1:  # one of them is to blame, the others are not
                for request, _, _ in read:
                    self._compute([request], model)
            else:
                done.append((read[0][0].answer, _told(error)))
        self.batches += bool(read)
        self._deliver(done)

    def _deliver(self, done: list[tuple[asyncio.Future[Any], Any]]) -> None:
        if done and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, done)


def _predict(model: Model, requests: Sequence[tuple[Inputs, int]]) -> list[Answer]:
    columns = model.predict(join([inputs for inputs, _ in requests]), sum(rows for _, rows in requests))
    answers, start = [], 0
    for _, rows in requests:
        part = {name: _plain(tensor[start : start + rows]) for name, tensor in columns.items()}
        answers.append(Answer(model.version, part))
        start += rows
    return answers


def _plain(tensor: Tensor) -> list[Any]:
    values: list[Any] = tensor.tolist()
    return values


def _told(error: Exception) -> BrimError:
    """What the caller is told: what brim raises says what is wrong; anything else is the model's own."""
    if isinstance(error, BrimError):
        return error
    return EnvironmentFault(f"the model failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _settle(done: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in done:
        if future.done():  # who asked has gone
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
