"""The digits with code that hangs, or ends its process, at one call of the loss on one worker."""

import ctypes
import os
import re
import sys
import time
from pathlib import Path

from digits import dataset, metrics, model, optimizer  # noqa: F401
from torch.nn import functional

from brim import param
from brim.train import membership
from brim.train.exchange import folding as exchange

HOW = param("how", "sleep")
CALL = param("call", 100)  # of the loss, on that worker
PAUSE = param("pause", 0.0)
SECONDS = param("seconds", 3600.0)
WORKERS = param("worker", "w2").split(",")
calls = []

if PATIENCE := param(
    "patience", 0.0
):  # of a worker with others that send nothing, instead of a minute
    membership._EXTRA_PATIENCE = exchange._TO_CONNECT = exchange._PATIENCE = PATIENCE


def loss(output, target):
    time.sleep(PAUSE)
    if Path("/proc/self/comm").read_text().strip().removeprefix("brim-") in WORKERS:
        calls.append(1)
        if len(calls) == CALL:
            stuck_here()
    return functional.cross_entropy(output, target)


def stuck_here():
    match HOW:
        case "sleep":
            time.sleep(SECONDS)
        case "lock":  # in C code, with Python's lock in hand
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(SECONDS * 1e6)))
        case "deadlock":  # the same, for ever: a signal interrupts it, and it goes on to wait
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        case "regex":  # the same, busy for longer than anybody lives
            re.match(r"(a*)*b", "a" * 100)
        case "exit":
            os._exit(0)
        case "leave":
            sys.exit(0)
