"""Requests that wait are computed together; each answer is of one version, beside any
others.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from brim.errors import EnvironmentFault, SpecError
from brim.serving.batches import Batches, Busy, Prediction
from brim.serving.bundle import Model

_PATIENCE = 20.0  # seconds


@dataclass
class FakeModel:
    """Says its version in each row, and keeps its requests."""

    number: int
    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def version(self) -> str:
        return f"v{self.number}"

    def predict(self, inputs: Tensor, rows: int) -> dict[str, Tensor]:
        assert self.gate.wait(_PATIENCE)
        self.batches.append(inputs.tolist())
        if (inputs == 13).any():
            raise RuntimeError("thirteen")
        assert len(inputs) == rows
        return {"row": inputs, "version": torch.full_like(inputs, self.number)}


def run(
    scenario: Callable[[Callable[..., Batches]], Awaitable[None]], *, in_loop: bool = False
) -> None:
    """Run a scenario; `in_loop`: the event loop computes, else a thread beside it."""

    async def all_of_it() -> None:
        batches_made: list[Batches] = []

        def batches(
            model: FakeModel, *, limit: int = 8, wait: float = 0.0, room: int = 1000
        ) -> Batches:
            at_once = 1000 if in_loop else 0
            batches_made.append(
                Batches(cast(Model, model), limit=limit, wait=wait, room=room, at_once=at_once)
            )
            return batches_made[-1]

        try:
            await asyncio.wait_for(scenario(batches), _PATIENCE)
        finally:
            for batches_closed in batches_made:
                batches_closed.close()

    asyncio.run(all_of_it())


def ask(batches: Batches, *rows: float) -> asyncio.Task[Prediction]:
    def read(model: Model) -> tuple[Any, int]:
        if -1.0 in rows:
            raise SpecError("rows", got="-1", need="more")
        return torch.tensor(rows), len(rows)

    return asyncio.ensure_future(batches.predict(read, len(rows)))


async def until_asked(*requests: asyncio.Task[Prediction]) -> None:
    """Each has been put where the thread finds it."""
    while any(request.get_coro().cr_await is None for request in requests):  # type: ignore[union-attr]
        await asyncio.sleep(0)


def test_waiting_requests_are_computed_together() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        model.gate.clear()
        batches = make(model)
        first = ask(batches, 0)
        await until_asked(first)
        requests = [
            ask(batches, 1, 2),
            ask(batches, 3),
            ask(batches, 4, 5, 6, 7, 8),
            ask(batches, 9),
        ]
        await until_asked(*requests)
        model.gate.set()
        answers = await asyncio.gather(first, *requests)
        assert [answer.columns["row"] for answer in answers] == [
            [0],
            [1, 2],
            [3],
            [4, 5, 6, 7, 8],
            [9],
        ]
        assert sorted(row for batch in model.batches for row in batch) == list(range(10))
        assert len(model.batches) < 5
        assert max(map(len, model.batches)) <= 8

    run(scenario)


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_zero_limit_computes_requests_singly(in_loop: bool) -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        batches = make(model, limit=0)
        await asyncio.gather(*(ask(batches, row, row) for row in range(6)))
        assert model.batches == [[row, row] for row in range(6)]

    run(scenario, in_loop=in_loop)


def test_requests_found_together_form_one_batch() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        batches = make(model)
        await asyncio.gather(*(ask(batches, row) for row in range(6)))
        assert model.batches == [[0, 1, 2, 3, 4, 5]]

    run(scenario, in_loop=True)


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_batch_waits_for_what_comes_in_time(in_loop: bool) -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        batches = make(model, limit=3, wait=_PATIENCE)
        await asyncio.gather(*(ask(batches, row) for row in range(3)))
        assert model.batches == [[0, 1, 2]]

    run(scenario, in_loop=in_loop)


def test_one_bad_request_spoils_no_other() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        model.gate.clear()
        batches = make(model)
        first = ask(batches, 0)
        await until_asked(first)
        requests = [ask(batches, 1), ask(batches, 13), ask(batches, -1), ask(batches, 2)]
        await until_asked(*requests)
        model.gate.set()
        await first
        good, failed, refused, also_good = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(good, Prediction)
        assert good.columns["row"] == [1]
        assert isinstance(also_good, Prediction)
        assert also_good.columns["row"] == [2]
        assert isinstance(failed, EnvironmentFault)
        assert "the model failed: RuntimeError: thirteen" in str(failed)
        assert isinstance(refused, SpecError)

    run(scenario)


@pytest.mark.parametrize("in_loop", [True, False])
def test_each_answer_is_of_one_version(in_loop: bool) -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        models = [FakeModel(number) for number in range(20)]
        batches = make(models[0])
        stop = False

        async def client() -> set[str]:
            seen = set()
            while not stop:
                answer = await ask(batches, 1, 2, 3)
                assert answer.columns["version"] == [float(answer.version[1:])] * 3
                seen.add(answer.version)
            return seen

        clients = [asyncio.ensure_future(client()) for _ in range(5)]
        for previous, model in pairwise(models):
            await ask(batches, 1)
            await batches.use(cast(Model, model))
            done = len(previous.batches)
            await ask(batches, 1)
            assert len(previous.batches) == done, (
                "nobody computes with a version that another took over from"
            )
        stop = True
        seen = set().union(*await asyncio.gather(*clients))
        assert len(seen) > 10

    run(scenario, in_loop=in_loop)


def test_excess_requests_are_refused() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        model.gate.clear()
        batches = make(model, room=3)
        waiting = [ask(batches, 1, 2), ask(batches, 3)]
        await until_asked(*waiting)
        with pytest.raises(Busy):
            await ask(batches, 4)
        model.gate.set()
        await asyncio.gather(*waiting)
        assert (await ask(batches, *range(5))).columns["row"] == list(range(5)), (
            "alone, any request has room"
        )

    run(scenario)


def test_slow_requests_are_read_outside_the_loop() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        batches = make(FakeModel(1))
        readers: list[str] = []

        def read(model: Model) -> tuple[Any, int]:
            readers.append(threading.current_thread().name)
            return torch.tensor([1.0]), 1

        await batches.predict(read, 1)
        await batches.predict(read, 1, in_thread=True)
        assert readers[0] == threading.main_thread().name
        assert readers[1].startswith("brim-predict")

    run(scenario, in_loop=True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_invalid_predictions_fail_only_their_request(value: float) -> None:
    """JSON has no word for it, and null would look like a value that is missing."""

    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        batches = make(model)
        answers: list[object] = await asyncio.gather(
            ask(batches, 1, 2), ask(batches, 3, value), return_exceptions=True
        )
        good, bad = answers
        assert len(model.batches) == 1
        assert isinstance(good, Prediction)
        assert isinstance(bad, EnvironmentFault)
        assert f"the model gives {value} for row 1, column 'row'" in str(bad)

    run(scenario, in_loop=True)


def test_who_goes_before_the_answer_is_nobodys_trouble() -> None:
    async def scenario(make: Callable[..., Batches]) -> None:
        model = FakeModel(1)
        model.gate.clear()
        batches = make(model, room=2)
        cancelled, stays = ask(batches, 1), ask(batches, 2)
        await until_asked(cancelled, stays)
        cancelled.cancel()
        model.gate.set()
        assert (await stays).columns["row"] == [2]
        assert isinstance(await ask(batches, 3, 4), Prediction)

    run(scenario)
