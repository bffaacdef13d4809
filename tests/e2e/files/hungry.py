"""As digits.py; once there is a file `go`, the workers behind w1 take 700 MiB and keep it until
they are ended.

So many do as `times` says. By `where` it is the worker itself, or a `child` that it starts.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import digits
from digits import dataset, metrics, model, optimizer  # noqa: F401

import brim

TIMES = brim.param("times", 1)
NOTES = Path(brim.param("notes", ""))
WHERE = brim.param("where", "here")
TAKE = "held = bytearray(b'x') * (700 << 20)"


def loss(output, target):
    me = os.environ.get("BRIM_WORKER", "w1")  # the template has none
    if me != "w1" and (NOTES / "go").exists() and len(list(NOTES.glob("w*"))) < TIMES:
        (NOTES / me).touch()
        if WHERE == "child":
            subprocess.run(
                [sys.executable, "-c", f"{TAKE}; import time; time.sleep(600)"], check=False
            )
        else:
            exec(TAKE, globals())
        time.sleep(600)
    return digits.loss(output, target)
