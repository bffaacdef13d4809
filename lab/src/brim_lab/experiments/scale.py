"""The size of the experiments: jobs, slots, and the times at which they come and go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

JOB_FILE = Path(str(resources.files("brim.demo"))) / "flights.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One experiment's size.

    Args:
        slots: worker slots of the cluster.
        workers: the most that a job wants.
        micro_batches: of a step; a number that the worker counts of the experiment divide, so that
            no worker waits for another.
        wait: seconds that a sample waits; see `brim.demo.flights`.
        sizes: worker counts at which the job is measured before, `steps_each` steps each.
        gap: seconds between the two submissions of experiment 1.
        service: slots that the online service of experiments 2 and 3 takes, one after the other and again
            from the start, for `every` seconds each.
        fixed: worker counts of the undisturbed runs that an elastic one is compared with.
        file: the training file, with its `parameters`; it has a parameter `wait`.
    """

    slots: int = 8
    workers: int
    global_batch_size: int
    micro_batches: int
    wait: float
    epochs: int = 1
    sizes: tuple[int, ...]
    steps_each: int = 8
    gap: float = 0.0
    service: tuple[int, ...] = ()
    every: float = 0.0
    fixed: tuple[int, ...] = ()
    file: Path = JOB_FILE
    parameters: Mapping[str, str] = field(default_factory=dict)

    def capacity(self, *, end: float) -> tuple[tuple[float, int], ...]:
        """Return the slots that the service leaves for training: (seconds since it began, slots).

        >>> QUICK_CHANGING_WORKERS.capacity(end=4.0)
        ((0.0, 8), (2.0, 4), (4.0, 6))
        """
        changes = int(end / self.every) + 1
        return tuple(
            (turn * self.every, self.slots - self.service[turn % len(self.service)])
            for turn in range(changes)
        )


TWO_JOBS = Scale(
    workers=5,
    global_batch_size=1800,
    micro_batches=15,
    wait=0.7e-3,
    sizes=(5, 3, 1),
    gap=15.0,
    fixed=(1,),
    parameters={"months": "9"},
)
# A month of the flights, and so many steps that each size of the world has a few.
QUICK_TWO_JOBS = replace(
    TWO_JOBS,
    global_batch_size=720,
    wait=0.8e-3,
    sizes=(5, 3),
    steps_each=5,
    gap=2.0,
    parameters={"months": "1"},
)

_SERVICE = (0, 4, 2, 6, 4, 0, 5, 2)
CHANGING_WORKERS = Scale(
    workers=8,
    global_batch_size=1200,
    micro_batches=24,
    wait=0.8e-3,
    epochs=4,
    sizes=(8, 6, 4, 2),
    service=_SERVICE,
    every=4.0,
    fixed=(4, 8),
    parameters={
        "months": "6"
    },  # what computes beside the waiting must leave the cores idle for the most part
)
QUICK_CHANGING_WORKERS = replace(
    CHANGING_WORKERS,
    global_batch_size=768,
    wait=1.2e-3,
    epochs=3,
    sizes=(8, 4),
    steps_each=5,
    every=2.0,
    parameters={"months": "1"},
)

BESIDE_SERVICE = replace(
    CHANGING_WORKERS,
    wait=2.4e-3,
    every=30.0,  # a pod takes ten seconds until it trains
    fixed=(4,),
)
QUICK_BESIDE_SERVICE = replace(
    BESIDE_SERVICE,
    epochs=2,
    sizes=(8, 4),
    steps_each=5,
    every=10.0,
    parameters={"months": "1"},
)

# Longer than a day of the web service.
BESIDE_WEB_SERVICE = replace(CHANGING_WORKERS, wait=2.4e-3, epochs=5, fixed=(4,))
QUICK_BESIDE_WEB_SERVICE = replace(QUICK_BESIDE_SERVICE, epochs=4)
