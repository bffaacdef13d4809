"""Keys that steps wrote to are followed as long as that is quicker than a look at all rows."""

from __future__ import annotations

import numpy as np

from brim.embeddings.tables.changes import Changes


def test_excess_keys_are_not_followed() -> None:
    changes = Changes(rows=50_000_000)
    changes.begin(3)
    for step in range(4, 24):
        changes.add(step, np.arange(70_000) + 70_000 * step)
    keys_changed = changes.keys_since(3)
    assert keys_changed is not None
    assert len(keys_changed) == 20 * 70_000
    for step in range(24, 40):
        changes.add(step, np.arange(70_000) + 70_000 * step)
    assert changes.keys_since(3) is None
    changes.begin(39)
    changes.add(40, np.array([7]))
    assert changes.keys_since(39) is not None


def test_small_tables_are_scanned_early() -> None:
    changes = Changes(rows=100_000)
    changes.begin(0)
    changes.add(1, np.arange(66_000))
    assert changes.keys_since(0) is None
