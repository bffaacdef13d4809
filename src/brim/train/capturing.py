"""Programs for the steps of a job, or the reason why its passes are eager."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from brim.train.captured.captured_steps import FOLDER, CapturedSteps, tell_of_eager_steps
from brim.train.captured.lookups import Lookups
from brim.train.captured.step_function import StepFunction
from brim.train.job_parts import JobParts


def captured_steps(
    parts: JobParts,
    one_pass: Callable[[Any], Tensor],
    *,
    key: bytes,
    obstacles: Mapping[str, bool],
    function: StepFunction | None = None,
) -> CapturedSteps | None:
    """Return programs for the steps of a job; None where its passes have to be eager.

    Args:
        parts: of the job.
        one_pass: the loss of a micro-batch's samples.
        key: of the code: recipes of other code are not read.
        obstacles: reasons of the caller's for eager steps, and whether they are there.
        function: of an own loop; None in a training file.
    """
    all_obstacles = {
        "workers take turns": parts.asynchrony is not None,
        "the job computes on a GPU": parts.device.type != "cpu",
        "the run has no directory": parts.run_dir is None,
        **obstacles,
    }
    for reason, stands_in_the_way in all_obstacles.items():
        if stands_in_the_way:
            tell_of_eager_steps(reason)
            return None
    assert parts.run_dir is not None, "looked at above"
    return CapturedSteps(
        parts.model,
        parts.contributions,
        one_pass,
        key=key,
        folder=parts.run_dir / FOLDER,
        seed=parts.spec.seed,
        lookups=Lookups(parts.embeddings),
        function=function,
    )


def key_of_code(function: Callable[..., Any]) -> bytes:
    """Return what tells the code of an own loop from that of another version of it."""
    module = inspect.getsourcefile(function) if inspect.isroutine(function) else None
    sources = {Path(name) for name in (module, sys.argv[0]) if name}
    texts = [path.read_bytes() for path in sorted(sources) if path.is_file()]
    return b"\0".join([*texts, repr(sys.argv).encode()])
