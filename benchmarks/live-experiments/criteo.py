"""Which advertisements are clicked?

An example's job; a micro-batch mostly waits, as it would for an accelerator.
"""

import importlib.util
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from brim import param

EXAMPLES = Path(__file__).parents[2] / "examples"
# Either over a vocabulary, trained densely; or over one table of hashed ids, trained by rows.
KIND = param("kind", "dense")
_FILE = {"dense": "01-first-job/criteo.py", "by_rows": "05-parameter-servers/criteo.py"}[KIND]
_spec = importlib.util.spec_from_file_location("criteo", EXAMPLES / _FILE)
assert _spec is not None
assert _spec.loader is not None
_example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_example)

dataset, model, optimizer, metrics = (
    _example.dataset,
    _example.model,
    _example.optimizer,
    _example.metrics,
)
WAIT = param("wait", 0.8e-3)


def loss(output: Tensor, target: Tensor) -> Any:
    time.sleep(WAIT * len(target))
    return _example.loss(output, target)
