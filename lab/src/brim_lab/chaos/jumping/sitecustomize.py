"""Lets the wall clock of a Python process jump: on PYTHONPATH, it is imported before anything else.

The offset, in seconds, is a number in a file that `brim_lab.chaos.clocks` changes while the process
runs. libfaketime would reach C code too, but with it a jump makes Python's `sleep` fail, and it
leaves named shared memory behind.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("BRIM_CHAOS_CLOCK")
if _path:
    with open(_path, "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time, _time_ns, _read = time.time, time.time_ns, struct.Struct("d").unpack

    def _jumping() -> float:
        return _time() + float(_read(_offset)[0])

    def _jumping_ns() -> int:
        return _time_ns() + int(_read(_offset)[0] * 1e9)

    time.time, time.time_ns = _jumping, _jumping_ns
