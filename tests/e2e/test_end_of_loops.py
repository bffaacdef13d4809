"""Lines of a script behind its loop, where a worker dies as the job ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.running import DEADLINE

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import brim
from brim.train.membership import Membership
from brim.wire.messages import Completed

EVENTS = Path(os.environ["BRIM_RUN_DIR"], "events.jsonl")
tell, wait = Membership.tell, Membership.wait_for_dismissal

def tell_late(members, message):
    if isinstance(message, Completed):
        time.sleep(1.0)  # the next round is named meanwhile
        while EVENTS.read_text().count('"kind":"round"') < 2:
            time.sleep(0.1)
    tell(members, message)

def die_waiting(members):
    if members.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait(members)

Membership.tell, Membership.wait_for_dismissal = tell_late, die_waiting
model = nn.Linear(2, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = TensorDataset(torch.ones(32, 2), torch.ones(32, 1))
for inputs, target in job.batches(data, global_batch_size=16, epochs=1):
    job.step(nn.functional.mse_loss(model(inputs), target))
print("behind the loop")
"""


def test_lines_behind_a_loop_outlive_a_death(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "brim", "run", "--workers", "3", "--run-dir", "run"]
    command += ["--", "python", "loop.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "w2 lost" in done.stdout + done.stderr
    logs = [log.read_text() for log in (tmp_path / "run" / "logs").glob("w*.log")]
    assert "behind the loop" in "".join(logs)
