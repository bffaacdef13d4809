"""A command that knows nothing of brim: it counts, saves, and goes on from what it has saved."""

import json
import os
import signal
import sys
import time
from pathlib import Path

TOTAL = int(sys.argv[1])
TO_LOAD = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0  # seconds, where it goes on
FOLDER = Path(os.environ["BRIM_CHECKPOINTS"])
RANK, SIZE, MOST = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "BRIM_WORLD_MAX"))
is_asked = False


def ask(*_: object) -> None:
    global is_asked
    is_asked = True


def save(step: int) -> None:
    draft = FOLDER / "state.draft"
    draft.write_text(str(step))
    draft.replace(FOLDER / "state")


signal.signal(signal.SIGTERM, ask)
step = int((FOLDER / "state").read_text()) if (FOLDER / "state").exists() else 0
with (FOLDER / f"starts-{RANK}").open("a") as starts:
    starts.write(json.dumps({"size": SIZE, "step": step, "accumulate": MOST // SIZE}) + "\n")
time.sleep(TO_LOAD if step else 0.0)
while step < TOTAL and not is_asked:
    time.sleep(0.02 if (FOLDER / "hurry").exists() else 0.1)
    step += 1
    print(f"step {step}/{TOTAL} loss {1 / step:.4f}", flush=True)
    if RANK == 0 and step % 10 == 0:
        save(step)
if RANK == 0:
    save(step)
sys.exit(0 if step >= TOTAL else 143)
