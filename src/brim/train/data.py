"""placeholder"""

from typing import Any

import numpy as np
from torch.utils.data import default_collate


def fetch(dataset: Any, indices: np.ndarray) -> Any:
    if hasattr(dataset, "take"):
        return dataset.take(indices)
    return default_collate([dataset[int(i)] for i in indices])
