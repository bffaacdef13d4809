"""Batches of waiting requests, computed together on one version of the model.

One batch at a time.

Small batches are computed by the thread of the event loop: handing them to another takes longer
than computing them. While it computes, requests gather in their connections, and those that are
found together are the next batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from brim.errors import BrimError, EnvironmentFault
from brim.serving.bundle import Model
from brim.serving.inputs import Inputs, join

_INLINE_ROWS = 256  # rows that the event loop computes by itself: some milliseconds


class Prediction(NamedTuple):
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
    in_thread: bool
    answer: asyncio.Future[Prediction]


_Done = list[tuple[asyncio.Future[Prediction], Any]]


class Batches:
    """Computes requests. All its methods are called by the thread of the event loop.

    Args:
        model: that answers at first.
        limit: rows of a batch; a request with more is a batch of its own. 0: each request is.
        wait: seconds that a batch waits for further requests.
        room: rows that may wait.
        at_once: rows of a batch up to which the event loop computes it.

    Attributes:
        batches: that were computed so far.
    """

    def __init__(
        self, model: Model, *, limit: int, wait: float, room: int, at_once: int = _INLINE_ROWS
    ) -> None:
        self._model, self._max_rows, self._wait, self._room, self._at_once = (
            model,
            limit,
            wait,
            room,
            at_once,
        )
        self._waiting: deque[_Request] = deque()
        self._rows = 0  # that wait or are being computed
        self._came = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._thread_work: asyncio.Future[_Done] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-predict")
        self.batches = 0

    @property
    def model(self) -> Model:
        """The version that answers from the next batch on."""
        return self._model

    async def predict(
        self, read: Callable[[Model], tuple[Inputs, int]], size: int, *, in_thread: bool = False
    ) -> Prediction:
        """Answer a request.

        Args:
            read: gives the inputs of the request and how many rows they are.
            size: about how many that will be.
            in_thread: reading takes long, so the event loop must not do it.

        Raises:
            Busy: too many wait already.
            BrimError: the request cannot be answered.
        """
        if self._rows and self._rows + size > self._room:
            raise Busy("too many rows are waiting: ask again")
        request = _Request(read, size, in_thread, asyncio.get_running_loop().create_future())
        self._rows += size
        self._waiting.append(request)
        self._came.set()
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await request.answer
        finally:
            self._rows -= size

    async def use(self, model: Model) -> None:
        """Have another version answer.

        Returns once nothing is computed with the one before.
        """
        self._model = model
        if self._thread_work is not None:
            await asyncio.wait([self._thread_work])

    def close(self) -> None:
        """Wait for the batch under way."""
        self._thread.shutdown()

    async def _work(self) -> None:
        """Compute until nothing waits."""
        try:
            while self._waiting:
                await self._gather()
                batch = self._next()
                rows = sum(request.size for request in batch)
                if rows > self._at_once or any(request.in_thread for request in batch):
                    done = await self._compute_beside(batch)
                else:
                    done = self._compute(batch, self._model)
                for future, result in done:
                    _settle(future, result)
                await asyncio.sleep(0)  # what has come meanwhile is heard before the next batch
        finally:
            self._working = None

    async def _gather(self) -> None:
        """Wait for further requests, as long as a batch may."""
        if not self._wait:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                while sum(request.size for request in self._waiting) < self._max_rows:
                    self._came.clear()
                    await self._came.wait()

    def _next(self) -> list[_Request]:
        batch = [self._waiting.popleft()]
        rows = batch[0].size
        while self._waiting and rows + self._waiting[0].size <= self._max_rows:
            batch.append(self._waiting.popleft())
            rows += batch[-1].size
        return batch

    async def _compute_beside(self, batch: Sequence[_Request]) -> _Done:
        loop = asyncio.get_running_loop()
        self._thread_work = loop.run_in_executor(self._thread, self._compute, batch, self._model)
        try:
            return await self._thread_work
        finally:
            self._thread_work = None

    def _compute(self, batch: Sequence[_Request], model: Model) -> _Done:
        """The answer, or the error, of each request."""
        read: list[tuple[_Request, Inputs, int]] = []
        done: _Done = []
        for request in batch:
            try:
                read.append((request, *request.read(model)))
            except Exception as error:  # noqa: BLE001 - whatever a request does, the others are answered
                done.append((request.answer, _caller_error(error)))
        if not read:
            return done
        self.batches += 1
        try:
            answers = _predict(model, [(inputs, rows) for _, inputs, rows in read])
        except Exception as error:  # noqa: BLE001 - the user's model, whose caller is told
            if len(read) == 1:
                return [*done, (read[0][0].answer, _caller_error(error))]
            for request, _, _ in read:  # one of them is to blame, the others are not
                done += self._compute([request], model)
            return done
        return [
            *done,
            *(
                (request.answer, answer)
                for (request, _, _), answer in zip(read, answers, strict=True)
            ),
        ]


def _predict(
    model: Model, requests: Sequence[tuple[Inputs, int]]
) -> list[Prediction | EnvironmentFault]:
    columns = model.predict(
        join([inputs for inputs, _ in requests]), sum(rows for _, rows in requests)
    )
    are_numbers = all(bool(tensor.isfinite().all()) for tensor in columns.values())
    answers: list[Prediction | EnvironmentFault] = []
    start = 0
    for _, rows in requests:
        part = {name: tensor[start : start + rows] for name, tensor in columns.items()}
        problem = "" if are_numbers else _no_number_in(part)
        answers.append(
            EnvironmentFault(problem)
            if problem
            else Prediction(model.version, {name: column.tolist() for name, column in part.items()})
        )
        start += rows
    return answers


def _no_number_in(columns: Mapping[str, Tensor]) -> str:
    """Say which prediction is no number, for which JSON has no word; empty where all are."""
    for name, tensor in columns.items():
        if len(wrong := (~tensor.isfinite()).nonzero()):
            row = int(wrong[0])
            return (
                f"the model gives {tensor[row].item()} for row {row}, column {name!r}: JSON has "
                "no word for it"
            )
    return ""


def _caller_error(error: Exception) -> BrimError:
    """Return the error that the caller gets.

    An error of brim's names the problem; any other is the model's own.
    """
    if isinstance(error, BrimError):
        return error
    return EnvironmentFault(
        f"the model failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    )


def _settle(future: asyncio.Future[Prediction], result: Any) -> None:
    if future.done():  # who asked has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
