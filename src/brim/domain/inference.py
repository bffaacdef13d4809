"""Jobs that use a model instead of training it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brim.domain.batch import Span

# samples of one forward pass: never of another size, so that no number depends on who computes it
CHUNK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """A job that evaluates a model or predicts with it.

    Args:
        kind: `evaluate` (the metrics of a split or a file) or `predict` (an output for every row).
        run: directory of the run that trained the model.
        checkpoints: directory or URL of the run's checkpoints.
        step: of the checkpoint that has the weights.
        checkpoint: its name for people.
        split: what the training file's `dataset` is asked for, where there is no `input`.
        input: a file to read with the columns as they were fitted in training; empty for none.
        output: the file that predictions go to.
        keep: columns of the input that are copied into the output.
    """

    kind: Literal["evaluate", "predict"]
    run: str
    checkpoints: str
    step: int
    checkpoint: str
    split: str = "test"
    input: str = ""
    output: str = ""
    keep: tuple[str, ...] = ()


def steps_of(samples: int, parts: int) -> int:
    """Steps of a job that takes `parts` chunks a step; a job without samples has none.

    >>> steps_of(3 * CHUNK + 1, 2), steps_of(0, 2)
    (2, 0)
    """
    return -(-samples // (CHUNK * parts))


def chunks_of_step(step: int, parts: int, samples: int, *, size: int = CHUNK) -> dict[int, Span]:
    """The samples of each chunk of a step, by the chunk's number among all of the job.

    >>> chunks_of_step(1, 2, 3 * CHUNK + 1)
    {2: Span(start=4096, stop=6144), 3: Span(start=6144, stop=6145)}
    """
    numbers = range(step * parts, min((step + 1) * parts, -(-samples // size)))
    return {number: Span(number * size, min((number + 1) * size, samples)) for number in numbers}
