"""What a micro-batch draws by chance follows from its place in the job alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from brim.domain.seeds import mix
from brim.tensors.chance import seed_host
from brim.train.context import spec_of_a_loner
from brim.train.job import Job

PARTS, STEPS = 4, 7
DATA = [(torch.zeros(2), torch.zeros(1))] * (PARTS * STEPS)


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def drawn_and_hidden() -> tuple[float, float, float]:
    """Draw, and leave all generators as they were: their states do not tell of it."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        values = drawn()
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    return values


def drawn_and_reseeded() -> tuple[float, float, float]:
    values = drawn()
    seed_host(3)
    return values


@pytest.mark.parametrize("draw", [drawn, drawn_and_hidden, drawn_and_reseeded])
@pytest.mark.parametrize(
    "draws",
    [
        lambda step, micro: True,
        lambda step, micro: step == 5,
        lambda step, micro: micro == 2,
        lambda step, micro: (step, micro) == (5, 2),
    ],
    ids=["always", "in the sixth step", "in the third part", "once"],
)
def test_draws_follow_from_the_place_in_the_job(
    draw: Callable[[], tuple[float, float, float]], draws: Callable[[int, int], bool]
) -> None:
    model = nn.Linear(2, 1)
    spec = replace(spec_of_a_loner(), micro_batches=PARTS, audit=False, seed=11)
    job = Job(model, torch.optim.SGD(model.parameters(), lr=0.1), spec=spec, context=None)
    found = {}
    for number, batch in enumerate(job.batches(DATA, global_batch_size=PARTS, epochs=1)):
        place = divmod(number, PARTS)
        if draws(*place):
            found[place] = draw()
        job.step(model(batch.inputs).mean())
    assert len(found) == sum(draws(step, micro) for step in range(STEPS) for micro in range(PARTS))
    for place, values in found.items():
        seed_host(mix(spec.seed, *place))
        assert values == drawn(), place
