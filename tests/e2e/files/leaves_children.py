"""As digits.py, with its pauses; each worker starts a process without a parent that waits, in a session of its own, and
notes its number.
"""

import os
import subprocess
from pathlib import Path

import digits
from digits import dataset, metrics, model, optimizer  # noqa: F401

import brim

NOTES = Path(brim.param("notes", ""))
started = set()


def loss(output, target):
    if os.getpid() not in started:
        started.add(os.getpid())
        # By way of a shell, which ends: to the kernel it is no child of this worker any more.
        script = f"setsid sleep 600 & echo $! > {NOTES}/{os.getpid()}"
        subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.DEVNULL)
    return digits.loss(output, target)
