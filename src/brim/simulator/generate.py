"""Makes traces: the generator of ElasticFlow's paper, and two more arrival processes.

All of them are seeded throughout.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from brim.errors import SpecError
from brim.simulator.profiles import Profiles

ARRIVALS = ("poisson", "diurnal", "bursty")

_SIZES = (1, 2, 4, 8, 16)
_WEIGHTS = (0.83, 0.03, 0.03, 0.10, 0.01)
_DAY = 86400.0
HEADER = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The distributions that a trace is drawn from.

    Args:
        jobs: how many.
        interarrival: mean seconds between two arrivals.
        arrivals: `poisson`; `diurnal`, where the rate follows a day's curve between 0.2 and 1.8 of
            the mean; `bursty`, where jobs come in groups of 8 on average within minutes.
        tightest, loosest: bounds of the deadline in multiples of the duration.
        best_effort: probability that a job has no deadline.
    """

    jobs: int = 100
    interarrival: float = 1500.0
    arrivals: str = "poisson"
    tightest: float = 0.5
    loosest: float = 1.5
    best_effort: float = 0.0
    seed: int = 0


def generate(recipe: Recipe, profiles: Profiles) -> Iterator[str]:
    """The trace's lines, header first, in the format of the artifact's generator.

    Every draw comes from `recipe.seed`, deadlines and best effort included.

    Raises:
        SpecError: no profile that runs on the sizes drawn, or an unknown arrival process.

    Source: ElasticFlow, section 6.1, and the distributions of its artifact (section 5 of our
    reference).
    """
    if recipe.arrivals not in ARRIVALS:
        raise SpecError("--arrivals", got=recipe.arrivals, need=" or ".join(ARRIVALS))
    models = sorted(key for key, curve in profiles.items() if curve.points[-1][0] >= _SIZES[-1])
    if not models:
        raise SpecError("--profiles", got="no model measured on 16 workers", need="at least one")
    rng = random.Random(recipe.seed)
    yield HEADER
    times = _arrivals(recipe, rng)
    for number in range(recipe.jobs):
        submitted = int(next(times))
        model, batch = rng.choice(models)
        size = rng.choices(_SIZES, _WEIGHTS)[0]
        exponent = rng.uniform(2.5, 4.0) if rng.random() < 0.2 else rng.uniform(1.0, 2.5)
        duration = int(60 * 10**exponent)
        steps = max(int(duration * profiles[model, batch].rate(size)), 1)
        due = submitted + int(rng.uniform(recipe.tightest, recipe.loosest) * duration)
        free = int(rng.random() < recipe.best_effort)
        yield f"{number},{submitted},{steps},{model},{due},{batch},{size},{duration},{free}"


def _arrivals(recipe: Recipe, rng: random.Random) -> Iterator[float]:
    now, group = 0.0, 0
    while True:
        yield now
        if recipe.arrivals == "bursty":
            group = group - 1 if group > 0 else int(rng.expovariate(1 / 8))
            mean = recipe.interarrival * (0.05 if group else 7.65)
            now += rng.expovariate(1 / mean)
        elif recipe.arrivals == "diurnal":
            while True:  # thinning: draw at the peak rate, keep by the rate of the hour
                now += rng.expovariate(1.8 / recipe.interarrival)
                if rng.random() < (1 - 0.8 * math.cos(2 * math.pi * now / _DAY)) / 1.8:
                    break
        else:
            now += rng.expovariate(1 / recipe.interarrival)
