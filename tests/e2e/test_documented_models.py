"""The models that the README and the guide to a first job show are trained as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.running import DEADLINE, ROOT

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("page", ["README.md", "docs/guides/first-job.md"])
def test_a_shown_model_trains(page: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    (tmp_path / "shown.py").write_text(code)
    words = ["train", "shown.py", "--workers", "2", "--json"]
    words += ["--faults", "kill rank 1 at step 3; add 1 at step 6"]
    command = [sys.executable, "-m", "brim.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["steps"] >= 39
    assert len(summary["weights_sha256"]) == 64
