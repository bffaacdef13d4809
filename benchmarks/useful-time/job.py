"""Wide & Deep on Criteo's sample, as the example trains it, but without the evaluation that
torchrun does not do.
"""

import importlib.util
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-first-job" / "criteo.py"
_spec = importlib.util.spec_from_file_location("criteo", EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
_example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_example)

model, loss, optimizer = _example.model, _example.loss, _example.optimizer


def dataset(split: str) -> Any:
    return _example.dataset(split) if split == "train" else None
