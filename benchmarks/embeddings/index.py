"""How long finding and adding the keys of a step takes, in tables of 200,000 and of 10 million
rows.

python -m benchmarks.embeddings.index
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from brim.embeddings.tables.index import Index, Shape
from brim.tensors.memory import keep_what_is_freed

KEYS = 23_600  # distinct ones of a step of 4,096 clicks with 26 fields
TURNS = 40


def quickest(run: Callable[[Tensor], object], keys: list[Tensor]) -> float:
    """Milliseconds of the quickest turn: other work on the machine only adds."""
    seconds = []
    for key in keys:
        started = time.perf_counter()
        run(key)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)


def main() -> None:
    torch.set_num_threads(1)
    keep_what_is_freed()
    chance = torch.Generator().manual_seed(1)
    for rows in (200_000, 10_000_000):
        shape = Shape.for_keys(rows)
        index = Index(torch.zeros(shape.bytes, dtype=torch.uint8), shape)
        keys = torch.randint(0, (1 << 63) - 1, (rows,), generator=chance)

        def add(keys: Tensor, index: Index = index) -> None:
            index.insert(keys, index.reserve(keys))

        added = quickest(add, [part.sort().values for part in keys.split(KEYS)][:-1])
        present = [keys[torch.randint(0, rows - KEYS, (KEYS,))].unique() for _ in range(TURNS)]
        absent = [torch.randint(0, (1 << 63) - 1, (KEYS,)).unique() for _ in range(TURNS)]
        print(
            f"{rows:,} rows, {shape.bytes / rows:.1f} bytes each: "
            f"find {quickest(index.find, present):.2f} ms, of absent keys "
            f"{quickest(index.find, absent):.2f} ms, "
            f"add {added:.2f} ms"
        )


if __name__ == "__main__":
    main()
