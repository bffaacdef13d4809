"""Slowness that does not compete for cores: a network that sleeps for every sample, and for more on
one worker.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

VARIABLE = "BENCHMARK_PACE"  # path of a file; without it nothing sleeps


class Pace:
    """The file by which a benchmark says how long workers sleep.

    Args:
        path: of the file.
        per_sample: seconds that every worker sleeps for a sample.
        slow: the names of the slow worker: brim's (`w4`), and the peer's rank (`3`).
    """

    def __init__(self, path: Path, *, per_sample: float, slow: tuple[str, str]) -> None:
        self._path, self._per_sample, self._slow = path, per_sample, slow

    def say(self, times: float) -> None:
        """From now on the slow worker takes so many times as long as the others."""
        content = {"per_sample": self._per_sample, "slow": self._slow, "times": times}
        self._path.with_suffix(".new").write_text(json.dumps(content))
        os.replace(self._path.with_suffix(".new"), self._path)


class _Paced(nn.Module):
    def __init__(self, inner: nn.Module, file: Path) -> None:
        super().__init__()
        self.inner, self._file = inner, file

    def forward(self, inputs: Any) -> Tensor:
        output: Tensor = self.inner(inputs)
        fields = json.loads(self._file.read_text())
        me = os.environ.get("RANK") or Path("/proc/self/comm").read_text().strip().removeprefix(
            "brim-"
        )
        times = fields["times"] if me in fields["slow"] else 1.0
        time.sleep(len(output) * fields["per_sample"] * times)
        return output


def paced(network: nn.Module) -> nn.Module:
    """The network, slowed down where the environment asks for it."""
    file = os.environ.get(VARIABLE)
    return _Paced(network, Path(file)) if file else network
