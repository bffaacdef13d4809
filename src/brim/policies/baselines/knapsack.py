"""The multiple-choice knapsack of policies that give each job one of several sizes.

Pure, and solved by HiGHS, which is in the extra `simulate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_MAX_NODES = 200  # of the search; the solution found by then is within a part of a percent


class Choice(NamedTuple):
    """One of the sizes that a job could have: its devices, and its value to the policy."""

    devices: int
    value: float


def choose(choices: Mapping[str, Sequence[Choice]], *, capacity: int) -> dict[str, int]:
    """Return the devices of each job that make the sum of values largest.

    Args:
        choices: by job; one of them or none is taken. Those without a value are never taken.
        capacity: devices that there are.

    Returns:
        Devices by job, of those that get some. They are the same whatever the order of `choices`.

    >>> choose({"a": [Choice(1, 3.0), Choice(2, 5.0)], "b": [Choice(2, 4.0)]}, capacity=3)
    {'a': 1, 'b': 2}
    """
    columns = [
        (job, choice)
        for job in sorted(choices)
        for choice in sorted(choices[job])
        if choice.value > 0 and choice.devices <= capacity
    ]
    best: dict[str, Choice] = {}
    for job, choice in columns:
        if job not in best or choice.value > best[job].value:
            best[job] = choice
    if sum(choice.devices for choice in best.values()) > capacity:
        best = _solve(columns, capacity)
    return {job: choice.devices for job, choice in best.items()}


def _solve(columns: Sequence[tuple[str, Choice]], capacity: int) -> dict[str, Choice]:
    import highspy  # here, since few policies need a solver

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in {
        "output_flag": False,
        "threads": 1,
        "mip_max_nodes": _MAX_NODES,
    }.items():
        solver.setOptionValue(option, value)
    count = len(columns)
    places = np.arange(count, dtype=np.int32)
    solver.addVars(count, np.zeros(count), np.ones(count))
    solver.changeColsCost(count, places, np.array([-choice.value for _, choice in columns]))
    integer = np.full(count, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    solver.changeColsIntegrality(count, places, integer)
    # One row for the devices, then one for each job: the columns of a job are neighbours.
    devices = np.array([float(choice.devices) for _, choice in columns])
    firsts = [k for k in range(count) if k == 0 or columns[k][0] != columns[k - 1][0]]
    starts = np.array([0, *(count + first for first in firsts)], dtype=np.int32)
    upper = np.array([float(capacity), *np.ones(len(firsts))])
    solver.addRows(
        len(upper), np.full(len(upper), -solver.getInfinity()), upper, 2 * count, starts,
        np.concatenate([places, places]), np.concatenate([devices, np.ones(count)]),
    )  # fmt: skip
    solver.run()
    values = solver.getSolution().col_value
    return {
        job: choice for (job, choice), value in zip(columns, values, strict=True) if value > 0.5
    }
