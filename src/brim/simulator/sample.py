"""The sample that `brim simulate` runs without a `--trace`, made up from formulas and one seed.

`python -m brim.simulator.sample FOLDER` writes it: profiles of four kinds of model, and a
trace of 200 jobs that arrive within half a day. None of it was measured on anything.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from brim.simulator.generate import Recipe, generate
from brim.simulator.profiles import read_profiles
from brim.storage.files import write_whole

SAMPLE = Path(str(resources.files("brim.simulator"))) / "sample"
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_RECIPE = Recipe(
    jobs=200,
    interarrival=120.0,
    arrivals="diurnal",
    tightest=0.3,
    loosest=1.2,
    best_effort=0.1,
    seed=7,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of model, with the time of its steps.

    Seconds of a step are `sample x batch / n + fixed + exchange x log2(n)` on n workers.
    """

    sample: float
    fixed: float
    exchange: float
    batches: tuple[int, ...]


_KINDS = {
    "cnn": _Kind(sample=0.004, fixed=0.02, exchange=0.010, batches=(128, 256)),
    "ctr": _Kind(sample=0.00004, fixed=0.01, exchange=0.015, batches=(4096, 8192)),
    "lstm": _Kind(sample=0.006, fixed=0.03, exchange=0.025, batches=(64, 128)),
    "transformer": _Kind(sample=0.012, fixed=0.02, exchange=0.050, batches=(64, 128)),
}


def write_sample(folder: Path) -> None:
    """Write `profiles/MODEL.csv` and `trace.csv` into a folder that exists.

    The bytes are the same each time.
    """
    profiles = folder / "profiles"
    profiles.mkdir(exist_ok=True)
    for name, kind in _KINDS.items():
        write_whole(profiles / f"{name}.csv", _profile(kind).encode())
    lines = generate(_RECIPE, read_profiles(profiles))
    write_whole(folder / "trace.csv", "".join(line + "\n" for line in lines).encode())


def _profile(kind: _Kind) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["global_batch_size", *_COUNTS])
    for batch in kind.batches:
        seconds = [
            kind.sample * batch / n + kind.fixed + kind.exchange * math.log2(n) for n in _COUNTS
        ]
        writer.writerow([batch, *(f"{1 / second:.4f}" for second in seconds)])
    return text.getvalue()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_sample(folder)


if __name__ == "__main__":
    main()
