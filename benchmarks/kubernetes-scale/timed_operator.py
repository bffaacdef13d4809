"""The operator, which also writes down how long its cycles take: `OUT ARGUMENT…`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from brim.backends.live import LiveBackend
from brim.domain.schedule import Decision
from brim.kubernetes import operator


def timed(out_file: Path) -> type[LiveBackend]:
    """Return a backend that adds a line for each cycle to a file: seconds of it and of its look."""
    lines = out_file.open("a", buffering=1)

    class TimedBackend(LiveBackend):
        async def apply(self, decision: Decision) -> None:
            await super().apply(decision)
            if self.cycles:
                lines.write(json.dumps([self.cycles[-1], self.looks[-1]]) + "\n")

    return TimedBackend


if __name__ == "__main__":
    vars(operator)["LiveBackend"] = timed(Path(sys.argv.pop(1)))
    from brim.cli.__main__ import main

    main()
