"""The imports of a template, before any job is known."""

from __future__ import annotations

import json
import subprocess
import sys

LOOKS = """
import gc, json
import brim.worker.template as template

looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
template._import_torch()
print(json.dumps({"looks": looks, "enabled": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""


def test_nothing_is_collected_during_torch_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["looks"] == []
    assert found["enabled"]
    assert found["frozen"] > 100_000
